//! Kills every process in a network namespace.

use std::fs;
use std::io;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use taut_sys::netns::{Netns, NetnsId};

/// Processes may start others while they are being killed. Each round kills those that the last one
/// missed; after this many rounds something keeps starting new ones.
const ROUNDS: usize = 100;

/// How long a killed process may take to end. Only one that is stuck in the kernel takes long.
const PATIENCE: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// Kills all processes in `netns` and waits until they have ended. Because `netns` is open, its inode
/// number cannot be reused meanwhile.
pub(crate) fn kill_all_in(netns: &Netns) -> io::Result<()> {
    for _ in 0..ROUNDS {
        let mut found = false;
        for pid in processes()? {
            found |= kill_if_in(pid, netns.id())?;
        }
        if !found {
            return Ok(());
        }
    }
    Err(io::Error::other(format!(
        "processes keep starting in network namespace {}; `ip netns pids {0}` lists them",
        netns.name()
    )))
}

/// Kills the process `pid` if it is in the namespace; returns whether it was.
fn kill_if_in(pid: Pid, netns: NetnsId) -> io::Result<bool> {
    let here = || NetnsId::of_process(pid.as_raw_nonzero().get().unsigned_abs()) == Some(netns);
    // Threads of this process enter the namespace at times.
    if pid == rustix::process::getpid() || !here() {
        return Ok(false);
    }
    let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        other => other?,
    };
    // The number may have been reused before the pidfd was opened.
    if !here() {
        return Ok(false);
    }
    match rustix::process::pidfd_send_signal(&pidfd, Signal::KILL) {
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        other => other?,
    }
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    match rustix::event::poll(&mut fds, Some(&PATIENCE)) {
        // The next round checks whether it has ended.
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

fn processes() -> io::Result<Vec<Pid>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        pids.extend(
            name.to_str()
                .and_then(|name| Pid::from_raw(name.parse().ok()?)),
        );
    }
    Ok(pids)
}
