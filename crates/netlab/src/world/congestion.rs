//! Sets a congestion control that the machine does not allow namespaces to choose.
//!
//! A namespace may make default only what is in the machine's `tcp_allowed_congestion_control`, and a
//! kernel built with BBR as its default does not even list Cubic there. The kernel checks the list only
//! when a choice is made. So the list is extended for the moment of the choice, under a lock, and
//! restored. Meanwhile the lock's file has the original list, in case of a `kill -9`.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use taut_sys::job_dir::JobDir;

const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
const DIRECTORY: &str = "/run/taut/lab-settings";
const LOCK: &str = "congestion";

/// Runs `choose` while namespaces are allowed to choose the congestion control `name`.
pub(super) fn allowing<T>(name: &str, choose: impl FnOnce() -> T) -> io::Result<T> {
    let mut saved = lock()?;
    restore(&mut saved)?;
    let list = fs::read_to_string(ALLOWED)?;
    saved.write_all(list.as_bytes())?;
    allow(&format!("{} {name}", list.trim_end()))?;
    let chosen = choose();
    restore(&mut saved)?;
    Ok(chosen)
}

/// Keeps worlds from changing the list until the file is dropped. A congestion control that is registered
/// while they do is missing in the list that they restore, and no namespace may choose it.
///
/// # Errors
/// The system's.
pub fn keep_allowed() -> io::Result<File> {
    lock()
}

/// Restores the list if a process was killed before it could.
pub(super) fn recover() -> io::Result<()> {
    let Some(folder) = JobDir::find(Path::new(DIRECTORY)).map_err(io::Error::other)? else {
        return Ok(());
    };
    match folder.open_existing(LOCK)? {
        Some(saved) if saved.metadata()?.len() > 0 => restore(&mut lock()?),
        _ => Ok(()),
    }
}

fn lock() -> io::Result<File> {
    let folder = JobDir::create(Path::new(DIRECTORY)).map_err(io::Error::other)?;
    folder.lock(LOCK)
}

fn restore(saved: &mut File) -> io::Result<()> {
    let mut list = String::new();
    saved.seek(SeekFrom::Start(0))?;
    saved.read_to_string(&mut list)?;
    // Without its line break the copy is incomplete, and the list had not been changed yet.
    if list.ends_with('\n') {
        allow(&list)?;
    }
    saved.set_len(0)
}

/// Allows the congestion controls of a list that the kernel has. It refuses a list with one that is gone:
/// those of `taut guest` and of relays may be unregistered at any time.
fn allow(list: &str) -> io::Result<()> {
    let mut before = None;
    loop {
        let available = fs::read_to_string(AVAILABLE)?;
        match fs::write(ALLOWED, those_of(list, &available)) {
            // One was unregistered between the two calls.
            Err(e)
                if e.kind() == io::ErrorKind::NotFound && before.as_ref() != Some(&available) =>
            {
                before = Some(available);
            }
            other => return other,
        }
    }
}

fn those_of(list: &str, available: &str) -> String {
    let is_available = |name: &&str| available.split_whitespace().any(|other| other == *name);
    let names: Vec<_> = list.split_whitespace().filter(is_available).collect();
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_set_again_without_what_is_gone() {
        let list = "reno bbr taut_cubic\n";
        assert_eq!(those_of(list, "reno cubic bbr\n"), "reno bbr");
        assert_eq!(those_of(list, "reno taut_cubic bbr"), "reno bbr taut_cubic");
        // A list of names that begin alike.
        assert_eq!(those_of("cubic", "taut_cubic"), "");
    }
}
