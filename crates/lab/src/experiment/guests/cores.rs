//! Which core belongs to whom, and what processes took of it.

use std::fs;
use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Who shares the core goes before what else the machine does there: a hypervisor's core has no
/// other work. (Where it is not permitted, the share is an ordinary one.)
const NICE: i32 = -15;

/// The two sorts of cores of this experiment.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct Cores {
    /// The one that guests and their driver domain share.
    pub(in crate::experiment) shared: usize,
}

// === impl Cores ===

impl Cores {
    /// The last core is shared, the others are the client's and the network's.
    ///
    /// # Errors
    /// When there is only one.
    pub(in crate::experiment) fn choose() -> io::Result<Self> {
        match std::thread::available_parallelism()?.get() {
            1 => Err(io::Error::other(
                "there is one CPU; the experiment needs one for the guests and one for everybody else",
            )),
            n => Ok(Self { shared: n - 1 }),
        }
    }

    /// For guests of another host: the core before that one, which is everybody else's too where
    /// there are two.
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

    /// Keeps the calling thread, and those it will start, off the shared core.
    pub(in crate::experiment) fn keep_off(self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.others())?)
    }

    /// Keeps a process group on the shared core, and what its processes will start.
    pub(in crate::experiment) fn share(self, group: u32) -> io::Result<()> {
        let mut set = CpuSet::new();
        set.set(self.shared);
        place(group, &set)
    }

    /// Keeps a process group off the shared core.
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
                // It has ended since.
                Err(rustix::io::Errno::SRCH) => {}
                other => other?,
            }
            let _ = rustix::process::setpriority_process(Some(id), NICE);
        }
    }
    Ok(())
}

/// Processor time of a process group up to now, in nanoseconds.
pub(in crate::experiment) fn used(group: u32) -> io::Result<u64> {
    let mut sum = 0;
    for process in members(group)? {
        let text = fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap_or_default();
        let used = text.split_whitespace().next();
        sum += used.and_then(|used| used.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

/// The processes of a group.
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

/// The process group in a line of `/proc/PID/stat`: proc_pid_stat(5)'s fifth field.
fn group_in(stat: &str) -> Option<u32> {
    // The name before it may have spaces and brackets in it.
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
