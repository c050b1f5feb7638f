//! Which process has a connection.
//!
//! The kernel tells a connection's inode, and `/proc` every process's descriptors. A walk over all of them
//! is what makes `ss -p` dear; here it is made for connections that are new, and for no more than
//! [`READS`] descriptors in one look. Of several processes that have one, it is the first that is found.

mod process;

use std::collections::hash_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;

use rustc_hash::FxHashMap;

pub use self::process::Process;
use self::process::Walk;

/// Descriptors that are read in one look, and processes that are opened, one to three microseconds each.
pub const READS: usize = 20_000;

/// Processes that are asked in one look whether they still are who they were.
const CHECKS: usize = 500;

/// Looks after which an owner is looked up anew, and one that was not found is looked for again: a
/// process may have closed what another goes on with.
const RENEW: u32 = 30;

/// Who has which connection.
#[derive(Debug)]
pub struct Owners {
    proc: PathBuf,
    /// By cookie: an inode's number comes again.
    known: FxHashMap<u64, Known>,
    walk: Option<Walk>,
    wanted: FxHashMap<u32, Vec<u64>>,
    looks: u32,
    /// Processes that are still to be asked.
    unchecked: Vec<Arc<Process>>,
    denied: usize,
}

#[derive(Debug)]
struct Known {
    inode: u32,
    process: Option<Arc<Process>>,
    /// The look in which it was first seen.
    first: u32,
    /// The look in which it was last seen.
    seen: u32,
    /// The look in which its owner was found, or was not.
    settled: Option<u32>,
}

impl Default for Owners {
    fn default() -> Self {
        Self::in_proc("/proc".into())
    }
}

// === impl Owners ===

impl Owners {
    fn in_proc(proc: PathBuf) -> Self {
        Self {
            proc,
            known: FxHashMap::default(),
            walk: None,
            wanted: FxHashMap::default(),
            looks: 0,
            unchecked: Vec::new(),
            denied: 0,
        }
    }

    /// Learns which connections there are now, by cookie and inode, and looks for owners of those that
    /// have none.
    pub fn look(&mut self, sockets: impl Iterator<Item = (u64, u32)>) {
        self.looks = self.looks.wrapping_add(1);
        let look = self.looks;
        for (cookie, inode) in sockets {
            let new = Known {
                inode,
                process: None,
                first: look,
                seen: look,
                settled: None,
            };
            match self.known.entry(cookie) {
                Entry::Occupied(entry) if entry.get().inode == inode => {
                    entry.into_mut().seen = look
                }
                // Accepted since, or closed by all who had it.
                entry => {
                    entry.insert_entry(new);
                }
            }
        }
        self.known.retain(|_, known| known.seen == look);
        self.check();
        self.find();
    }

    /// Who has the connection of this cookie, as far as it is known.
    pub fn of(&self, cookie: u64) -> Option<&Arc<Process>> {
        self.known.get(&cookie)?.process.as_ref()
    }

    /// Processes of which the last walk could not see the descriptors.
    pub fn denied(&self) -> usize {
        self.denied
    }

    /// Forgets processes that have ended or are another program now.
    fn check(&mut self) {
        if self.unchecked.is_empty() {
            let holders = self
                .known
                .values()
                .filter_map(|known| known.process.as_ref());
            let holders: FxHashMap<u32, &Arc<Process>> = holders.map(|p| (p.pid, p)).collect();
            self.unchecked = holders.into_values().cloned().collect();
        }
        let rest = self.unchecked.len().saturating_sub(CHECKS);
        let asked = self.unchecked.drain(rest..);
        let changed: FxHashMap<u32, Arc<Process>> = asked
            .filter(|process| !process.is_still(&self.proc))
            .map(|process| (process.pid, process))
            .collect();
        if changed.is_empty() {
            return;
        }
        for known in self.known.values_mut() {
            if let Some(process) = &known.process
                && changed.get(&process.pid) == Some(process)
            {
                known.process = None;
                known.settled = None;
            }
        }
    }

    fn find(&mut self) {
        if self.walk.is_none() {
            let look = self.looks;
            let due = |known: &Known| match known.settled {
                // What comes and goes within a look is not worth a walk; at the first, all is new.
                None => known.first != look || look == 1,
                Some(settled) => look.wrapping_sub(settled) >= RENEW,
            };
            self.wanted.clear();
            for (&cookie, known) in &self.known {
                // Inode 0: nobody has it any more.
                if known.inode != 0 && due(known) {
                    self.wanted.entry(known.inode).or_default().push(cookie);
                }
            }
            if self.wanted.is_empty() {
                return;
            }
            // Who has one has others.
            let holders = self
                .known
                .values()
                .filter_map(|known| known.process.as_ref());
            let holders = holders.map(|process| process.pid).collect();
            self.walk = Some(Walk::new(&self.proc, &holders));
        }
        let Some(walk) = &mut self.walk else { return };
        let (known, look) = (&mut self.known, self.looks);
        let everywhere = walk.go_on(READS, &mut self.wanted, |cookie, process| {
            if let Some(known) = known.get_mut(&cookie) {
                known.process = Some(process.clone());
                known.settled = Some(look);
            }
        });
        if !everywhere {
            return;
        }
        self.denied = walk.denied;
        self.walk = None;
        // Nobody has these, or nobody whom the caller may see.
        for cookie in self.wanted.drain().flat_map(|(_, cookies)| cookies) {
            if let Some(known) = known.get_mut(&cookie) {
                known.process = None;
                known.settled = Some(look);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A `/proc` in which processes come, go and change.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> (Self, Owners) {
            let machine = Self(tempfile::tempdir().unwrap());
            let owners = Owners::in_proc(machine.0.path().to_owned());
            (machine, owners)
        }

        fn starts(&self, pid: u32, name: &str, began: u64, sockets: &[u32]) {
            let directory = self.0.path().join(pid.to_string());
            fs::create_dir_all(directory.join("fd")).unwrap();
            let zeros = " 0".repeat(18);
            fs::write(
                directory.join("stat"),
                format!("{pid} ({name}) S{zeros} {began} 0"),
            )
            .unwrap();
            fs::write(directory.join("cgroup"), "0::/\n").unwrap();
            for (fd, inode) in sockets.iter().enumerate() {
                symlink(
                    format!("socket:[{inode}]"),
                    directory.join(format!("fd/{fd}")),
                )
                .unwrap();
            }
        }

        fn ends(&self, pid: u32) {
            fs::remove_dir_all(self.0.path().join(pid.to_string())).unwrap();
        }
    }

    fn owner(owners: &Owners, cookie: u64) -> Option<(u32, &str)> {
        owners
            .of(cookie)
            .map(|process| (process.pid, &*process.name))
    }

    #[test]
    fn each_connection_has_the_process_whose_descriptor_it_is() {
        let (machine, mut owners) = Machine::new();
        machine.starts(10, "nginx", 1, &[100, 101]);
        machine.starts(11, "sshd", 1, &[102]);
        owners.look([(1, 100), (2, 101), (3, 102), (4, 999), (5, 0)].into_iter());
        assert_eq!(owner(&owners, 1), Some((10, "nginx")));
        assert_eq!(owner(&owners, 2), Some((10, "nginx")));
        assert_eq!(owner(&owners, 3), Some((11, "sshd")));
        assert_eq!((owner(&owners, 4), owner(&owners, 5)), (None, None));
    }

    #[test]
    fn an_inode_that_comes_again_is_not_its_last_owners() {
        let (machine, mut owners) = Machine::new();
        machine.starts(10, "old", 1, &[100]);
        owners.look([(1, 100)].into_iter());
        machine.ends(10);
        machine.starts(11, "new", 2, &[100]);
        owners.look([(2, 100)].into_iter());
        assert_eq!(owner(&owners, 2), None);
        owners.look([(2, 100)].into_iter());
        assert_eq!(
            (owner(&owners, 1), owner(&owners, 2)),
            (None, Some((11, "new")))
        );
    }

    #[test]
    fn a_number_that_is_given_to_another_process_is_noticed() {
        let (machine, mut owners) = Machine::new();
        machine.starts(10, "parent", 1, &[100]);
        machine.starts(12, "child", 1, &[]);
        owners.look([(1, 100)].into_iter());
        assert_eq!(owner(&owners, 1), Some((10, "parent")));
        // The child goes on with the connection, and a stranger has the parent's number.
        machine.ends(10);
        machine.starts(10, "stranger", 9, &[]);
        machine.ends(12);
        machine.starts(12, "child", 1, &[100]);
        owners.look([(1, 100)].into_iter());
        assert_eq!(owner(&owners, 1), Some((12, "child")));
    }

    #[test]
    fn a_process_that_becomes_another_program_has_its_name() {
        let (machine, mut owners) = Machine::new();
        machine.starts(10, "sh", 1, &[100]);
        owners.look([(1, 100)].into_iter());
        machine.ends(10);
        machine.starts(10, "curl", 1, &[100]);
        owners.look([(1, 100)].into_iter());
        assert_eq!(owner(&owners, 1), Some((10, "curl")));
    }

    #[test]
    fn one_that_was_closed_here_and_kept_there_is_found_in_time() {
        let (machine, mut owners) = Machine::new();
        machine.starts(10, "parent", 1, &[100]);
        owners.look([(1, 100)].into_iter());
        machine.ends(10);
        machine.starts(10, "parent", 1, &[]);
        machine.starts(12, "child", 2, &[100]);
        for _ in 0..=RENEW {
            owners.look([(1, 100)].into_iter());
        }
        assert_eq!(owner(&owners, 1), Some((12, "child")));
    }

    #[test]
    fn many_descriptors_are_read_in_several_looks_and_none_is_missed() {
        let (machine, mut owners) = Machine::new();
        let inodes: Vec<u32> = (1..=READS as u32 + 500).collect();
        machine.starts(10, "busy", 1, &inodes);
        let sockets = || inodes.iter().map(|&inode| (u64::from(inode), inode));
        owners.look(sockets());
        let owned = |owners: &Owners| sockets().filter(|s| owners.of(s.0).is_some()).count();
        // Less than all of what is read, which is the process itself, `.` and `..` too.
        assert!((READS - 3..READS).contains(&owned(&owners)));
        owners.look(sockets());
        assert_eq!(owned(&owners), inodes.len());
    }

    #[test]
    fn an_end_among_many_takes_no_others_owner_away() {
        let (machine, mut owners) = Machine::new();
        let count = CHECKS as u32 * 2;
        let sockets = |count: u32| (1..=count).map(|n| (u64::from(n), n));
        for n in 1..=count {
            machine.starts(n, "worker", 1, &[n]);
        }
        owners.look(sockets(count));
        owners.look(sockets(count));
        // One comes that is not among those that are being asked, and another ends.
        machine.starts(count + 1, "new", 1, &[count + 1]);
        owners.look(sockets(count + 1));
        owners.look(sockets(count + 1));
        machine.ends(count);
        for _ in 0..3 {
            owners.look(sockets(count + 1));
            let owned = sockets(count + 1)
                .filter(|s| owners.of(s.0).is_some())
                .count();
            assert!(owned >= count as usize, "{owned}");
        }
        assert_eq!(owner(&owners, count.into()), None);
        assert_eq!(
            owner(&owners, u64::from(count) + 1),
            Some((count + 1, "new"))
        );
    }

    #[test]
    fn what_nobody_has_is_not_looked_for_in_every_look() {
        let (_machine, mut owners) = Machine::new();
        owners.look([(1, 100)].into_iter());
        assert_eq!(owners.known[&1].settled, Some(1));
        owners.look([(1, 100)].into_iter());
        assert!(owners.walk.is_none() && owners.known[&1].settled == Some(1));
    }
}
