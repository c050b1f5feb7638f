//! Locks of whole files that can be looked for without being taken.
//!
//! They belong to the open file, as those of flock(2) do, and are released when its last descriptor is
//! closed (F_OFD_SETLK, fcntl(2)). But flock(2) has no way to ask: whoever takes a lock only to see whether
//! it is free keeps a process that starts at that moment from taking it.

use std::io;
use std::os::fd::AsFd;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// Takes the lock of a file that is open for writing.
///
/// # Errors
/// `WouldBlock` if another open file has it.
pub fn try_lock(file: impl AsFd) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&whole()))?;
    Ok(())
}

/// Waits for the lock of a file that is open for writing.
///
/// # Errors
/// The system's.
pub fn lock(file: impl AsFd) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLKW(&whole()))?;
    Ok(())
}

/// Returns whether another open file has the lock.
///
/// # Errors
/// The system's.
pub fn is_locked(file: impl AsFd) -> io::Result<bool> {
    let mut lock = whole();
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Returns an exclusive lock of all bytes.
fn whole() -> libc::flock {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the kernel's constants are small, and their types differ"
    )]
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_lock_is_seen_by_others_and_looking_does_not_take_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let open = || File::options().append(true).create(true).open(&path);
        let (holder, other) = (open().unwrap(), open().unwrap());
        assert!(!is_locked(&other).unwrap());
        try_lock(&holder).unwrap();
        // The holder's own lock is no conflict.
        assert!(!is_locked(&holder).unwrap());
        assert!(is_locked(File::open(&path).unwrap()).unwrap());
        let refused = try_lock(&other).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(holder);
        // A child that another test has just forked may have the file for a moment, too.
        lock(&other).unwrap();
    }
}
