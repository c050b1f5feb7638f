//! A socket of another process, and its buffers.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::RawFd;
use std::path::Path;

use taut_sys::Errno;
use taut_sys::borrow::{Borrowed, Buffers, Lender};

use super::Socket;
use crate::demand::Direction;

/// Descriptors of a process that are looked at for one socket; one that has more is not looked through.
const DESCRIPTORS: usize = 1 << 20;

pub(super) fn set(
    borrowed: &Borrowed,
    now: &Buffers,
    direction: Direction,
    to: u32,
    fixed: bool,
) -> Result<(), Errno> {
    if to != bytes(now, direction) {
        match direction {
            Direction::Send => borrowed.set_send(to)?,
            Direction::Receive => borrowed.set_receive(to)?,
        }
    }
    // Of the other direction it stays.
    let mut locks = now.locks;
    match direction {
        Direction::Send => locks.send = fixed,
        Direction::Receive => locks.receive = fixed,
    }
    borrowed.set_locks(locks)
}

pub(super) fn bytes(buffers: &Buffers, direction: Direction) -> u32 {
    match direction {
        Direction::Send => buffers.send,
        Direction::Receive => buffers.receive,
    }
}

pub(super) fn is_fixed(buffers: &Buffers, direction: Direction) -> bool {
    match direction {
        Direction::Send => buffers.locks.send,
        Direction::Receive => buffers.locks.receive,
    }
}

/// The socket; `None`: its process has none like it, or is not there.
pub(super) fn borrow(socket: &Socket) -> Result<Option<Borrowed>, Errno> {
    let lender = match Lender::of(socket.pid) {
        Err(Errno::SRCH) => return Ok(None),
        other => other?,
    };
    for descriptor in descriptors(socket)? {
        match lender.lend(descriptor, socket.cookie) {
            Ok(Some(borrowed)) => return Ok(Some(borrowed)),
            // It is another by now; the socket may be found under another number.
            Ok(None) => {}
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Numbers under which the process has a socket of this inode.
pub(super) fn descriptors(socket: &Socket) -> Result<Vec<RawFd>, Errno> {
    let entries = match fs::read_dir(format!("/proc/{}/fd", socket.pid)) {
        // It has ended.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
        Ok(entries) => entries,
    };
    let target = format!("socket:[{}]", socket.inode);
    let mut found = Vec::new();
    for (count, entry) in entries.flatten().enumerate() {
        if count == DESCRIPTORS {
            return Err(Errno::MFILE);
        }
        let is_it = fs::read_link(entry.path()).is_ok_and(|link| link == Path::new(&target));
        let number = || entry.file_name().to_str()?.parse::<RawFd>().ok();
        found.extend(is_it.then(number).flatten());
    }
    Ok(found)
}

/// The socket, of whoever has it now.
pub(super) fn holder(socket: &Socket) -> Result<Option<Borrowed>, Errno> {
    let entries =
        fs::read_dir("/proc").map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    let pids = entries.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut last = Ok(None);
    for pid in pids.filter(|pid| *pid != socket.pid) {
        match borrow(&Socket { pid, ..*socket }) {
            Ok(None) => {}
            Ok(found) => return Ok(found),
            // Somebody else may have it, too.
            Err(error) => last = Err(error),
        }
    }
    last
}
