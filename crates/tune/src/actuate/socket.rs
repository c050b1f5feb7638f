//! A socket of another process, and its buffers.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::RawFd;

use taut_sys::Errno;
use taut_sys::pidfd_socket::{Buffers, Pidfd, PidfdSocket};

use super::Socket;
use crate::demand::Direction;

/// Descriptors of a process that are looked at; one that has more is not looked through.
const DESCRIPTORS: usize = 1 << 20;
/// Processes whose sockets are remembered; with more, all are read anew.
const PROCESSES: usize = 10_000;

pub(super) fn set(
    borrowed: &PidfdSocket,
    now: &Buffers,
    direction: Direction,
    to: u32,
    fixed: bool,
) -> Result<(), Errno> {
    if to != bytes(now, direction) {
        match direction {
            Direction::Send => borrowed.set_send_buffer(to)?,
            Direction::Receive => borrowed.set_receive_buffer(to)?,
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

/// Which process has which sockets, under which numbers: read once for many.
#[derive(Debug, Default)]
pub(super) struct Holders {
    processes: HashMap<u32, Process>,
    /// Who has sockets, by inode: read once a round, when it is first needed.
    everybody: Option<HashMap<u32, Vec<u32>>>,
    round: u64,
}

/// A process's sockets, as they were.
#[derive(Debug)]
struct Process {
    /// Numbers by inode; or why they cannot be read.
    sockets: Result<HashMap<u32, Vec<RawFd>>, Errno>,
    /// The round in which they were read,
    read: u64,
    /// and the last in which they were asked for.
    asked: u64,
}

// === impl Holders ===

impl Holders {
    /// What is known from now on may be wrong, and is read again where it is.
    pub(super) fn begin(&mut self) {
        let last = self.round;
        self.round += 1;
        self.everybody = None;
        self.processes.retain(|_, process| process.asked == last);
    }

    /// The socket; `None`: its process has none like it, or is not there.
    pub(super) fn borrow(&mut self, socket: &Socket) -> Result<Option<PidfdSocket>, Errno> {
        let lender = match Pidfd::open(socket.pid) {
            Err(Errno::SRCH) => return Ok(None),
            other => other?,
        };
        loop {
            let (numbers, is_fresh) = self.numbers(socket)?;
            for number in numbers {
                match lender.socket(number, socket.cookie) {
                    Ok(Some(borrowed)) => return Ok(Some(borrowed)),
                    // It is another by now; the socket may be found under another number.
                    Ok(None) => {}
                    Err(Errno::SRCH) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
            if is_fresh {
                return Ok(None);
            }
            self.processes.remove(&socket.pid);
        }
    }

    /// The socket, of whoever has it now.
    pub(super) fn anybody(&mut self, socket: &Socket) -> Result<Option<PidfdSocket>, Errno> {
        let everybody = match &self.everybody {
            Some(everybody) => everybody,
            None => self.everybody.insert(everybody()?),
        };
        let pids = everybody.get(&socket.inode).cloned().unwrap_or_default();
        let mut last = Ok(None);
        for pid in pids.into_iter().filter(|pid| *pid != socket.pid) {
            match self.borrow(&Socket { pid, ..*socket }) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                // Somebody else may have it, too.
                Err(error) => last = Err(error),
            }
        }
        last
    }

    /// Numbers under which the process has a socket of this inode, and whether that was read in this round.
    fn numbers(&mut self, socket: &Socket) -> Result<(Vec<RawFd>, bool), Errno> {
        if self.processes.len() >= PROCESSES && !self.processes.contains_key(&socket.pid) {
            self.processes.clear();
        }
        let round = self.round;
        let process = self.processes.entry(socket.pid);
        let process = process.or_insert_with(|| Process {
            sockets: sockets(socket.pid),
            read: round,
            asked: round,
        });
        process.asked = round;
        match &process.sockets {
            Ok(sockets) => {
                let numbers = sockets.get(&socket.inode).cloned().unwrap_or_default();
                Ok((numbers, process.read == round))
            }
            Err(error) => Err(*error),
        }
    }
}

/// All processes that may be looked into, by the inodes of their sockets.
fn everybody() -> Result<HashMap<u32, Vec<u32>>, Errno> {
    let entries =
        fs::read_dir("/proc").map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    let pids = entries.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut all: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in pids {
        // Of one that may not be looked into nothing was borrowed.
        for inode in sockets(pid).unwrap_or_default().into_keys() {
            all.entry(inode).or_default().push(pid);
        }
    }
    Ok(all)
}

/// The sockets of a process, by inode.
fn sockets(pid: u32) -> Result<HashMap<u32, Vec<RawFd>>, Errno> {
    let mut found: HashMap<u32, Vec<RawFd>> = HashMap::new();
    let entries = match fs::read_dir(format!("/proc/{pid}/fd")) {
        // It has ended.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(found),
        Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
        Ok(entries) => entries,
    };
    for (count, entry) in entries.flatten().enumerate() {
        if count == DESCRIPTORS {
            return Err(Errno::MFILE);
        }
        let inode = fs::read_link(entry.path()).ok().and_then(|link| {
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            inode.parse().ok()
        });
        let number = || entry.file_name().to_str()?.parse::<RawFd>().ok();
        if let Some((inode, number)) = inode.zip(number()) {
            found.entry(inode).or_default().push(number);
        }
    }
    Ok(found)
}
