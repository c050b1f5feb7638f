//! The resources of a relay's processes and all their descendants.

use std::fs;
use std::io;
use std::time::Duration;

/// The ids of the processes that were started as the relay.
#[derive(Clone, Debug, Default)]
pub(in crate::experiment) struct ProcessTree(Vec<u32>);

/// A line of `/proc/PID/stat`.
struct Stat {
    id: u32,
    parent: u32,
    /// The CPU time of the process and of the children that it has waited for, in ticks.
    ticks: u64,
}

// === impl ProcessTree ===

impl ProcessTree {
    pub(in crate::experiment) fn of(roots: &[u32]) -> Self {
        Self(roots.to_vec())
    }

    /// Returns the CPU time, user and system, including that of ended processes that their parents
    /// have waited for. The kernel counts this time exactly and reports it in hundredths of a
    /// second.
    pub(in crate::experiment) fn cpu(&self) -> io::Result<Duration> {
        let ticks: u64 = self.alive()?.iter().map(|stat| stat.ticks).sum();
        let per_second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_secs(ticks) / u32::try_from(per_second).unwrap_or(100))
    }

    /// Returns the resident memory in bytes; the pages that processes share are divided among them
    /// (Pss).
    pub(in crate::experiment) fn memory(&self) -> io::Result<u64> {
        let mut sum = 0;
        for stat in self.alive()? {
            match fs::read_to_string(format!("/proc/{}/smaps_rollup", stat.id)) {
                Ok(text) => sum += kilobytes(&text, "Pss:").unwrap_or(0) * 1024,
                // The process has ended since it was listed, so it has no memory.
                Err(e) if gone(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(sum)
    }

    fn alive(&self) -> io::Result<Vec<Stat>> {
        if self.0.is_empty() {
            return Ok(Vec::new());
        }
        let mut others = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // The CPU time of a process that has ended since it was listed is included in its
            // parent's.
            if let Ok(text) = fs::read_to_string(format!("/proc/{id}/stat")) {
                others.extend(Stat::parse(id, &text));
            }
        }
        let mut tree: Vec<Stat> = Vec::new();
        loop {
            let belongs = |stat: &Stat| {
                self.0.contains(&stat.id) || tree.iter().any(|known| known.id == stat.parent)
            };
            let (mut more, rest) = others.into_iter().partition(belongs);
            others = rest;
            if Vec::is_empty(&more) {
                return Ok(tree);
            }
            tree.append(&mut more);
        }
    }
}

// === impl Stat ===

impl Stat {
    fn parse(id: u32, text: &str) -> Option<Self> {
        // The name of the process, which comes first, may contain spaces and brackets.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        // proc_pid_stat(5) counts fields from 1, and `fields` begins with the third.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            id,
            parent: u32::try_from(field(4)?).ok()?,
            ticks: (14..=17).map(field).sum::<Option<u64>>()?,
        })
    }
}

/// Returns the number in a line such as `Pss:     1234 kB`.
pub(in crate::experiment) fn kilobytes(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?;
        rest.split_whitespace().next()?.parse().ok()
    })
}

fn gone(e: &io::Error) -> bool {
    // Reading a file of a process that ended after the file was opened fails with ESRCH.
    e.kind() == io::ErrorKind::NotFound
        || e.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let text = "7 (a) (b) c) S 5 7 7 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 1 0 100";
        let stat = Stat::parse(7, text).unwrap();
        assert_eq!((stat.parent, stat.ticks), (5, 100));
    }

    #[test]
    fn a_tree_has_its_children_in_it() {
        let this = ProcessTree::of(&[std::process::id()]);
        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg("60").spawn().unwrap();
        let found = this.alive().unwrap().iter().any(|s| s.id == child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found);
        assert!(this.memory().unwrap() > 0);
    }
}
