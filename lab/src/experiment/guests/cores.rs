//! Assigns cores to processes, and reads their CPU time.

use std::fs;
use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

/// The niceness of processes on the shared core. It gives them priority over this machine's other
/// work there, because a hypervisor's core has no other work. (Without permission to set it, the
/// processes keep the default.)
const NICE: i32 = -15;

/// The shared core; the cores before it are for everything else.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct Cores {
    /// The core that guests and their driver domain share.
    pub(in crate::experiment) shared: usize,
}

// === impl Cores ===

impl Cores {
    /// Shares the last core; the others are for the client and the network.
    ///
    /// # Errors
    /// If there is only one core.
    pub(in crate::experiment) fn choose() -> io::Result<Self> {
        match std::thread::available_parallelism()?.get() {
            1 => Err(io::Error::other(
                "there is one CPU; the experiment needs one for the guests and one for everybody else",
            )),
            n => Ok(Self { shared: n - 1 }),
        }
    }

    /// Returns the core for guests of another host: the one before the shared core. With two cores,
    /// everything else runs there too.
    pub(in crate::experiment) fn before(self) -> Self {
        Self {
            shared: self.shared.saturating_sub(1),
        }
    }

    fn others(self) -> CpuSet {
        let mut set = CpuSet::new();
        (0..self.shared).for_each(|cpu| set.set(cpu));
        set
    }

    /// Moves the calling thread, and the threads it starts later, off the shared core.
    pub(in crate::experiment) fn keep_off(self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.others())?)
    }

    /// Moves a process group, and the processes it starts later, to the shared core.
    pub(in crate::experiment) fn share(self, group: u32) -> io::Result<()> {
        let mut set = CpuSet::new();
        set.set(self.shared);
        place(group, &set)
    }

    /// Moves a process group off the shared core.
    pub(in crate::experiment) fn set_apart(self, group: u32) -> io::Result<()> {
        place(group, &self.others())
    }
}

fn place(group: u32, set: &CpuSet) -> io::Result<()> {
    for process in members(group)? {
        let tasks = fs::read_dir(format!("/proc/{process}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let id = task.file_name().to_str().and_then(|id| id.parse().ok());
            let Some(id) = id.and_then(Pid::from_raw) else {
                continue;
            };
            match sched_setaffinity(Some(id), set) {
                // The process has ended since it was listed.
                Err(rustix::io::Errno::SRCH) => {}
                other => other?,
            }
            let _ = rustix::process::setpriority_process(Some(id), NICE);
        }
    }
    Ok(())
}

/// Returns the CPU time of a process group, in nanoseconds.
pub(in crate::experiment) fn used(group: u32) -> io::Result<u64> {
    let mut sum = 0;
    for process in members(group)? {
        let text = fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap_or_default();
        let used = text.split_whitespace().next();
        sum += used.and_then(|used| used.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

/// Returns the processes of a group.
fn members(group: u32) -> io::Result<Vec<u32>> {
    let mut members = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        if group_in(&stat) == Some(group) {
            members.push(id);
        }
    }
    Ok(members)
}

/// Returns the process group in a line of `/proc/PID/stat`: the fifth field of proc_pid_stat(5).
fn group_in(stat: &str) -> Option<u32> {
    // The name of the process, which comes before it, may contain spaces and brackets.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(2)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_found_behind_any_name() {
        assert_eq!(group_in("7 (a) (b) c) S 5 9 7 0 -1"), Some(9));
        assert_eq!(group_in("7"), None);
    }

    #[test]
    fn a_groups_processor_time_is_its_processes() {
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        assert!(used(u32::try_from(group).unwrap()).unwrap() > 0);
    }
}
