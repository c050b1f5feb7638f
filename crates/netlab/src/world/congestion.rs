//! Giving a host a congestion control that the machine does not let namespaces choose.
//!
//! A namespace may only make default what is in `tcp_allowed_congestion_control` of the whole machine,
//! and a kernel that was built with BBR as its default has not even Cubic there. The list is checked
//! when a choice is made and never again. So it is widened for the moment of choosing, under a lock,
//! and put back; what it was stands in the lock's file meanwhile, for the case of a `kill -9`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use rustix::fs::FlockOperation;

const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
const DIR: &str = "/run/taut";
const HELD: &str = "/run/taut/lab-congestion";

/// Runs `choose` while namespaces may choose the congestion control `name`.
pub(super) fn allowing<T>(name: &str, choose: impl FnOnce() -> T) -> io::Result<T> {
    let mut held = lock()?;
    put_back(&mut held)?;
    let was = fs::read_to_string(ALLOWED)?;
    held.write_all(was.as_bytes())?;
    fs::write(ALLOWED, format!("{} {name}", was.trim_end()))?;
    let chosen = choose();
    put_back(&mut held)?;
    Ok(chosen)
}

/// Puts back what a process that was killed half-way has left widened.
pub(super) fn recover() -> io::Result<()> {
    if fs::metadata(HELD).is_ok_and(|held| held.len() > 0) {
        put_back(&mut lock()?)?;
    }
    Ok(())
}

fn lock() -> io::Result<File> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(DIR)?;
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(HELD)?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

fn put_back(held: &mut File) -> io::Result<()> {
    let mut was = String::new();
    held.seek(SeekFrom::Start(0))?;
    held.read_to_string(&mut was)?;
    // A last line without its end was never followed by a change.
    if was.ends_with('\n') {
        fs::write(ALLOWED, was.trim_end())?;
    }
    held.set_len(0)
}
