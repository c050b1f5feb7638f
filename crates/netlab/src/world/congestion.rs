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
const DIRECTORY: &str = "/run/taut/lab-settings";
const LOCK: &str = "congestion";

/// Runs `choose` while namespaces are allowed to choose the congestion control `name`.
pub(super) fn allowing<T>(name: &str, choose: impl FnOnce() -> T) -> io::Result<T> {
    let mut saved = lock()?;
    restore(&mut saved)?;
    let list = fs::read_to_string(ALLOWED)?;
    saved.write_all(list.as_bytes())?;
    fs::write(ALLOWED, format!("{} {name}", list.trim_end()))?;
    let chosen = choose();
    restore(&mut saved)?;
    Ok(chosen)
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
        fs::write(ALLOWED, list.trim_end())?;
    }
    saved.set_len(0)
}
