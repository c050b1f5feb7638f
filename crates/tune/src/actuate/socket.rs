//! Borrows sockets of other processes and resizes their buffers.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::RawFd;

use taut_sys::Errno;
use taut_sys::pidfd_socket::{Buffers, Pidfd, PidfdSocket};

use super::Socket;
use crate::demand::Direction;

/// The maximum number of descriptors to read of a process; a process with more fails.
const MAX_DESCRIPTORS: usize = 1 << 20;
/// The maximum number of processes whose sockets are remembered; beyond it, all are forgotten and
/// read again.
const MAX_PROCESSES: usize = 10_000;

/// Sets the size and the lock of a buffer.
pub(super) fn resize(
    borrowed: &PidfdSocket,
    now: &Buffers,
    direction: Direction,
    to: u32,
    fixed: bool,
) -> Result<(), Errno> {
    if to != size(now, direction) {
        match direction {
            Direction::Send => borrowed.set_send_buffer(to)?,
            Direction::Receive => borrowed.set_receive_buffer(to)?,
        }
    }
    // The lock of the other buffer stays as it is.
    let mut locks = now.locks;
    match direction {
        Direction::Send => locks.send = fixed,
        Direction::Receive => locks.receive = fixed,
    }
    borrowed.set_locks(locks)
}

/// Returns the size of a buffer, in bytes with overhead.
pub(super) fn size(buffers: &Buffers, direction: Direction) -> u32 {
    match direction {
        Direction::Send => buffers.send,
        Direction::Receive => buffers.receive,
    }
}

/// Whether a buffer is locked.
pub(super) fn is_fixed(buffers: &Buffers, direction: Direction) -> bool {
    match direction {
        Direction::Send => buffers.locks.send,
        Direction::Receive => buffers.locks.receive,
    }
}

/// A cache of the socket descriptors of processes, so that one read of /proc/PID/fd serves many sockets.
#[derive(Debug, Default)]
pub(super) struct SocketOwners {
    processes: HashMap<u32, ProcessSockets>,
    /// The processes that have each socket, by inode. Read at most once a round, on first use.
    by_inode: Option<HashMap<u32, Vec<u32>>>,
    round: u64,
}

/// The sockets of a process, when they were last read.
#[derive(Debug)]
struct ProcessSockets {
    /// The descriptors by inode, or why they cannot be read.
    descriptors: Result<HashMap<u32, Vec<RawFd>>, Errno>,
    /// The round that read the descriptors.
    read: u64,
    /// The last round that used the descriptors.
    used: u64,
}

// === impl SocketOwners ===

impl SocketOwners {
    /// Begins a round. Forgets processes that the last round did not use or could not read. Descriptors
    /// may be out of date from now on: they are read again if they refer to other sockets.
    pub(super) fn begin_round(&mut self) {
        let last = self.round;
        self.round += 1;
        self.by_inode = None;
        self.processes
            .retain(|_, process| process.used == last && process.descriptors.is_ok());
    }

    /// Borrows a socket; `None` if its process does not have it, or has ended.
    pub(super) fn borrow(&mut self, socket: &Socket) -> Result<Option<PidfdSocket>, Errno> {
        let pidfd = match Pidfd::open(socket.pid) {
            Err(Errno::SRCH) => return Ok(None),
            other => other?,
        };
        loop {
            let (descriptors, is_fresh) = self.descriptors(socket)?;
            for descriptor in descriptors {
                match pidfd.socket(descriptor, socket.cookie) {
                    Ok(Some(borrowed)) => return Ok(Some(borrowed)),
                    // The descriptor now refers to another socket; the wanted socket may have
                    // another descriptor.
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

    /// Borrows a socket from any other process that has it.
    pub(super) fn borrow_from_any(
        &mut self,
        socket: &Socket,
    ) -> Result<Option<PidfdSocket>, Errno> {
        let by_inode = match &self.by_inode {
            Some(by_inode) => by_inode,
            None => self.by_inode.insert(processes_by_inode()?),
        };
        let pids = by_inode.get(&socket.inode).cloned().unwrap_or_default();
        let mut last = Ok(None);
        for pid in pids.into_iter().filter(|pid| *pid != socket.pid) {
            match self.borrow(&Socket { pid, ..*socket }) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                // Another process may have the socket, too.
                Err(error) => last = Err(error),
            }
        }
        last
    }

    /// Returns the descriptors of the process that had this inode, and whether they were read in
    /// this round.
    fn descriptors(&mut self, socket: &Socket) -> Result<(Vec<RawFd>, bool), Errno> {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&socket.pid) {
            self.processes.clear();
        }
        let round = self.round;
        let process = self.processes.entry(socket.pid);
        let process = process.or_insert_with(|| ProcessSockets {
            descriptors: read_descriptors(socket.pid),
            read: round,
            used: round,
        });
        process.used = round;
        match &process.descriptors {
            Ok(all) => {
                let descriptors = all.get(&socket.inode).cloned().unwrap_or_default();
                Ok((descriptors, process.read == round))
            }
            Err(error) => Err(*error),
        }
    }
}

/// Reads the processes that have each socket, by inode.
fn processes_by_inode() -> Result<HashMap<u32, Vec<u32>>, Errno> {
    let entries =
        fs::read_dir("/proc").map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    let pids = entries.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut all: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in pids {
        // A process that cannot be read is skipped: no socket can be borrowed from it.
        for inode in read_descriptors(pid).unwrap_or_default().into_keys() {
            all.entry(inode).or_default().push(pid);
        }
    }
    Ok(all)
}

/// Reads the descriptors of a process that are sockets, by inode.
fn read_descriptors(pid: u32) -> Result<HashMap<u32, Vec<RawFd>>, Errno> {
    let mut found: HashMap<u32, Vec<RawFd>> = HashMap::new();
    let entries = match fs::read_dir(format!("/proc/{pid}/fd")) {
        // The process has ended.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(found),
        Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
        Ok(entries) => entries,
    };
    for (count, entry) in entries.flatten().enumerate() {
        if count == MAX_DESCRIPTORS {
            return Err(Errno::MFILE);
        }
        let inode = fs::read_link(entry.path()).ok().and_then(|link| {
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            inode.parse().ok()
        });
        let descriptor = || entry.file_name().to_str()?.parse::<RawFd>().ok();
        if let Some((inode, descriptor)) = inode.zip(descriptor()) {
            found.entry(inode).or_default().push(descriptor);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_could_not_be_read_is_read_again_in_the_next_round() {
        let socket = Socket {
            cookie: 0,
            inode: 0,
            pid: std::process::id(),
        };
        let mut owners = SocketOwners::default();
        let unread = ProcessSockets {
            descriptors: Err(Errno::MFILE),
            read: 0,
            used: 0,
        };
        owners.processes.insert(socket.pid, unread);
        assert_eq!(owners.descriptors(&socket), Err(Errno::MFILE));
        owners.begin_round();
        assert_eq!(owners.descriptors(&socket), Ok((Vec::new(), true)));
    }
}
