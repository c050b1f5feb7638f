//! A namespace's settings: files below /proc/sys.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use taut_observe::namespaces::Namespace;
use taut_sys::netns;

use crate::actuate::ActuateError;
use crate::demand::Direction;

/// The kernel's bounds of buffers in this direction.
pub(crate) fn of(direction: Direction) -> &'static str {
    match direction {
        Direction::Send => "net/ipv4/tcp_wmem",
        Direction::Receive => "net/ipv4/tcp_rmem",
    }
}

fn path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
}

/// Whether two texts of a setting say the same.
pub(crate) fn same(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}

/// The cookie of a namespace, and its setting; `None`: it is gone.
pub(crate) fn read(
    namespace: &Namespace,
    name: &str,
) -> Result<Option<(u64, String)>, ActuateError> {
    let path = path(name);
    let read = move || -> io::Result<_> { Ok((netns::cookie()?, fs::read_to_string(path)?)) };
    let found = namespace.run(read)?;
    let found = found.transpose().map_err(|e| failed(namespace, name, e))?;
    Ok(found.map(|(cookie, text)| (cookie, text.trim_end().to_owned())))
}

/// `false`: it is gone, also if another has taken its place: that has another cookie.
pub(crate) fn write(
    namespace: &Namespace,
    cookie: u64,
    name: &str,
    text: &str,
) -> Result<bool, ActuateError> {
    let path = path(name);
    let write = || -> io::Result<bool> {
        match netns::cookie()? == cookie {
            true => fs::write(path, text).map(|()| true),
            false => Ok(false),
        }
    };
    let written = namespace.run(write)?.transpose();
    let written = written.map_err(|e| failed(namespace, name, e))?;
    Ok(written.unwrap_or(false))
}

pub(crate) fn failed(namespace: &Namespace, name: &str, error: io::Error) -> ActuateError {
    ActuateError::Setting {
        name: name.to_owned(),
        netns: namespace.name.to_string(),
        error,
    }
}

/// The most that the kernel gives a buffer of this namespace, in either direction; `None`: it is gone.
///
/// # Errors
/// [`ActuateError`].
pub fn maxima(namespace: &Namespace) -> Result<Option<[(Direction, u64); 2]>, ActuateError> {
    let mut found = [(Direction::Send, 0), (Direction::Receive, 0)];
    for (direction, most) in &mut found {
        let name = of(*direction);
        let Some((_, text)) = read(namespace, name)? else {
            return Ok(None);
        };
        let third = text
            .split_whitespace()
            .nth(2)
            .and_then(|word| word.parse().ok());
        *most = third.ok_or_else(|| {
            let error = io::Error::other(format!("{text:?} has no third figure"));
            failed(namespace, name, error)
        })?;
    }
    Ok(Some(found))
}
