//! Ending every process that lives in a network namespace.

use std::fs;
use std::io;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use taut_sys::netns::{Netns, NetnsId};

/// Processes may start others while they are being killed; each round catches those that the last
/// missed, and a namespace that still has some after this many is being fought over.
const ROUNDS: usize = 100;

/// How long one killed process may take to end; only one stuck in the kernel takes any time.
const PATIENCE: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// Kills all processes in `netns` and waits until they have ended.
///
/// The namespace is held open by the caller, so its identity cannot have become another's.
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

/// Whether there was a process `pid` in the namespace; it has been killed then.
fn kill_if_in(pid: Pid, netns: NetnsId) -> io::Result<bool> {
    let here = || NetnsId::of_process(pid.as_raw_nonzero().get().unsigned_abs()) == Some(netns);
    // This process has threads in there at times, but does not live there.
    if pid == rustix::process::getpid() || !here() {
        return Ok(false);
    }
    let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        other => other?,
    };
    // The number may have become another process's before it was pinned down.
    if !here() {
        return Ok(false);
    }
    match rustix::process::pidfd_send_signal(&pidfd, Signal::KILL) {
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        other => other?,
    }
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    match rustix::event::poll(&mut fds, Some(&PATIENCE)) {
        // The next round looks whether it has ended.
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
