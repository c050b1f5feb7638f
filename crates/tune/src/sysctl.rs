//! Reads and writes settings of a network namespace: files below /proc/sys.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use taut_observe::namespaces::{Namespace, in_words};
use taut_sys::netns::{self, NetnsError};

use crate::demand::Direction;
use crate::journal::JournalWriteError;

/// Why a setting could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// The file could not be read or written.
    #[error("{name}, {}: {error}", in_words(netns))]
    File {
        /// The setting.
        name: String,
        /// The namespace's name.
        netns: String,
        /// The error.
        error: io::Error,
    },
    /// The namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// The change could not be written to the journal.
    #[error(transparent)]
    Journal(#[from] JournalWriteError),
}

/// Returns the path below /proc/sys of the setting with the minimum, default and maximum size of
/// buffers in this direction.
pub(crate) fn buffer_limits(direction: Direction) -> &'static str {
    match direction {
        Direction::Send => "net/ipv4/tcp_wmem",
        Direction::Receive => "net/ipv4/tcp_rmem",
    }
}

/// Returns the sysctl(8) name of the [`buffer_limits`] setting.
pub(crate) fn buffer_limits_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Send => "net.ipv4.tcp_wmem",
        Direction::Receive => "net.ipv4.tcp_rmem",
    }
}

fn path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
}

/// Whether two texts of a setting have the same values.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}

/// Reads the cookie and a setting of a namespace; `None` if the namespace has ended.
pub(crate) fn read(
    namespace: &Namespace,
    name: &str,
) -> Result<Option<(u64, String)>, SysctlError> {
    let path = path(name);
    let read = move || -> io::Result<_> { Ok((netns::cookie()?, fs::read_to_string(path)?)) };
    let found = namespace.run(read)?;
    let found = found
        .transpose()
        .map_err(|e| file_error(namespace, name, e))?;
    Ok(found.map(|(cookie, text)| (cookie, text.trim_end().to_owned())))
}

/// Writes a setting. Returns `false` if the namespace with this cookie has ended, even if another
/// namespace has taken its inode.
pub(crate) fn write(
    namespace: &Namespace,
    cookie: u64,
    name: &str,
    text: &str,
) -> Result<bool, SysctlError> {
    let path = path(name);
    let write = || -> io::Result<bool> {
        match netns::cookie()? == cookie {
            true => fs::write(path, text).map(|()| true),
            false => Ok(false),
        }
    };
    let written = namespace.run(write)?.transpose();
    let written = written.map_err(|e| file_error(namespace, name, e))?;
    Ok(written.unwrap_or(false))
}

pub(crate) fn file_error(namespace: &Namespace, name: &str, error: io::Error) -> SysctlError {
    SysctlError::File {
        name: name.to_owned(),
        netns: namespace.name.to_string(),
        error,
    }
}

/// Reads the maxima of buffers in both directions, in bytes; `None` if the namespace has ended.
pub(crate) fn maxima(namespace: &Namespace) -> Result<Option<[(Direction, u64); 2]>, SysctlError> {
    let mut found = [(Direction::Send, 0), (Direction::Receive, 0)];
    for (direction, maximum) in &mut found {
        let name = buffer_limits(*direction);
        let Some((_, text)) = read(namespace, name)? else {
            return Ok(None);
        };
        let third = text
            .split_whitespace()
            .nth(2)
            .and_then(|word| word.parse().ok());
        *maximum = third.ok_or_else(|| {
            let error = io::Error::other(format!("{text:?} has no third value"));
            file_error(namespace, name, error)
        })?;
    }
    Ok(Some(found))
}

/// Returns the text of a setting with its third value replaced by `maximum`, capped at `i32::MAX`.
pub(crate) fn with_maximum(text: &str, maximum: u64) -> String {
    let mut values: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    if let Some(third) = values.get_mut(2) {
        *third = maximum.min(i32::MAX as u64).to_string();
    }
    values.join("\t")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_setting_are_compared_by_their_values() {
        assert!(is_same("4096\t16384\t4194304\n", "4096 16384 4194304"));
        assert!(!is_same("4096 16384", "4096 16384 1"));
    }
}
