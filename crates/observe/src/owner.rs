//! Finds the process that owns a connection.
//!
//! The kernel reports the inode of a connection, and `/proc` lists the descriptors of each process.
//! `ss -p` is expensive because it reads all descriptors. This module reads descriptors only for
//! new connections, and at most [`READS`] in one scan. If several processes share a connection, the
//! first one found counts as its owner.

mod process;

use std::collections::hash_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use rustix::param::clock_ticks_per_second;

pub use self::process::Process;
pub(crate) use self::process::ProcessId;
use self::process::Walk;
use crate::bpf_iter::OwnerRecord;

/// The maximum number of descriptors and processes that one scan reads. Each read takes one to
/// three microseconds.
pub const READS: usize = 20_000;

/// The maximum number of processes for which one scan checks whether they have ended or changed
/// program.
const CHECKS: usize = 500;

/// The number of scans after which an owner is looked up again, found or not: a process may close a
/// connection that another process keeps.
const RENEW: u32 = 30;

/// The maximum number of recorded processes to remember. Beyond it all are forgotten, and each is
/// read again when a BPF program records it again.
const RECORDED: usize = 4096;

/// The owners of connections.
#[derive(Debug)]
pub struct Owners {
    proc: PathBuf,
    /// By cookie, because inode numbers are reused.
    known: FxHashMap<u64, Known>,
    walk: Option<Walk>,
    wanted: FxHashMap<u32, Vec<u64>>,
    scans: u32,
    /// Processes to check in the next scans.
    unchecked: Vec<Arc<Process>>,
    denied: usize,
    recorded: FxHashMap<OwnerRecord, Arc<Process>>,
    /// The unit of start times in `/proc`, in nanoseconds.
    start_unit: u64,
}

#[derive(Debug)]
struct Known {
    inode: u32,
    process: Option<Arc<Process>>,
    /// The scan that first found it.
    first: u32,
    /// The scan that last found it.
    last: u32,
    /// The scan in which the search for its owner ended, successfully or not.
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
            scans: 0,
            unchecked: Vec::new(),
            denied: 0,
            recorded: FxHashMap::default(),
            start_unit: 1_000_000_000 / clock_ticks_per_second().max(1),
        }
    }

    /// Returns the process that a BPF program has recorded.
    pub(crate) fn recorded(&mut self, owner: &OwnerRecord) -> Arc<Process> {
        if let Some(process) = self.recorded.get(owner) {
            return process.clone();
        }
        let began = owner.began / self.start_unit;
        let process = Process::recorded(&self.proc, owner.pid, began, &owner.name);
        let process = Arc::new(process);
        if self.recorded.len() >= RECORDED {
            self.recorded.clear();
        }
        self.recorded.insert(owner.clone(), process.clone());
        process
    }

    /// Updates the known connections from a scan, given by cookie and inode, and searches for
    /// missing owners.
    pub fn update(&mut self, sockets: impl Iterator<Item = (u64, u32)>) {
        self.scans = self.scans.wrapping_add(1);
        let scan = self.scans;
        for (cookie, inode) in sockets {
            let new = Known {
                inode,
                process: None,
                first: scan,
                last: scan,
                settled: None,
            };
            match self.known.entry(cookie) {
                Entry::Occupied(entry) if entry.get().inode == inode => {
                    entry.into_mut().last = scan
                }
                // The inode changed: the connection was accepted, or all its owners closed it.
                entry => {
                    entry.insert_entry(new);
                }
            }
        }
        self.known.retain(|_, known| known.last == scan);
        self.check();
        self.find();
    }

    /// Returns the owner of the connection with this cookie, if it is known.
    pub fn of(&self, cookie: u64) -> Option<&Arc<Process>> {
        self.known.get(&cookie)?.process.as_ref()
    }

    /// Returns whether the search for the owner of this connection has ended. A search reads at most
    /// [`READS`] descriptors in one scan.
    pub fn has_sought(&self, cookie: u64) -> bool {
        let known = self.known.get(&cookie);
        known.is_some_and(|known| known.process.is_some() || known.settled.is_some())
    }

    /// Returns the number of processes whose descriptors the last walk could not read.
    pub fn denied(&self) -> usize {
        self.denied
    }

    /// Forgets processes that have ended or become another program.
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
            let scan = self.scans;
            let due = |known: &Known| match known.settled {
                // A connection that ends before the next scan is not worth a walk, so new ones wait
                // for one scan. In the first scan all connections are new and none waits.
                None => known.first != scan || scan == 1,
                Some(settled) => scan.wrapping_sub(settled) >= RENEW,
            };
            self.wanted.clear();
            for (&cookie, known) in &self.known {
                // Inode 0: no process has the socket open any more.
                if known.inode != 0 && due(known) {
                    self.wanted.entry(known.inode).or_default().push(cookie);
                }
            }
            if self.wanted.is_empty() {
                return;
            }
            // A process with one connection often has others.
            let holders = self
                .known
                .values()
                .filter_map(|known| known.process.as_ref());
            let holders = holders.map(|process| process.pid).collect();
            self.walk = Some(Walk::new(&self.proc, &holders));
        }
        let Some(walk) = &mut self.walk else { return };
        let (known, scan) = (&mut self.known, self.scans);
        let everywhere = walk.resume(READS, &mut self.wanted, |cookie, process| {
            if let Some(known) = known.get_mut(&cookie) {
                known.process = Some(process.clone());
                known.settled = Some(scan);
            }
        });
        if !everywhere {
            return;
        }
        self.denied = walk.denied;
        self.walk = None;
        // No process that the caller may inspect has these sockets open.
        for cookie in self.wanted.drain().flat_map(|(_, cookies)| cookies) {
            if let Some(known) = known.get_mut(&cookie) {
                known.process = None;
                known.settled = Some(scan);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A `/proc` with processes that start, end and change.
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
    fn a_connection_belongs_to_the_process_with_its_descriptor() {
        let (machine, mut owners) = Machine::new();
        machine.starts(10, "nginx", 1, &[100, 101]);
        machine.starts(11, "sshd", 1, &[102]);
        owners.update([(1, 100), (2, 101), (3, 102), (4, 999), (5, 0)].into_iter());
        assert_eq!(owner(&owners, 1), Some((10, "nginx")));
        assert_eq!(owner(&owners, 2), Some((10, "nginx")));
        assert_eq!(owner(&owners, 3), Some((11, "sshd")));
        assert_eq!((owner(&owners, 4), owner(&owners, 5)), (None, None));
    }

    #[test]
    fn a_recorded_process_has_its_container_while_it_runs_and_its_name_for_ever() {
        let (machine, mut owners) = Machine::new();
        let unit = owners.start_unit;
        machine.starts(10, "curl", 5, &[]);
        let id = "0123456789abcdef".repeat(4);
        fs::write(machine.0.path().join("10/cgroup"), format!("0::/{id}\n")).unwrap();
        let mut record = OwnerRecord {
            pid: 10,
            began: 5 * unit + 7,
            name: b"cu\x1brl".to_vec(),
        };
        let process = owners.recorded(&record);
        assert_eq!(process.container.as_deref(), Some("0123456789ab"));
        assert!(process.name.chars().all(|c| !c.is_control()));
        machine.ends(10);
        assert_eq!(owners.recorded(&record), process);
        // Another process has the pid now.
        machine.starts(10, "other", 9, &[]);
        record.began += unit;
        assert_eq!(owners.recorded(&record).container, None);
    }

    #[test]
    fn a_reused_inode_does_not_keep_its_owner() {
        let (machine, mut owners) = Machine::new();
        machine.starts(10, "old", 1, &[100]);
        owners.update([(1, 100)].into_iter());
        machine.ends(10);
        machine.starts(11, "new", 2, &[100]);
        owners.update([(2, 100)].into_iter());
        assert_eq!(owner(&owners, 2), None);
        owners.update([(2, 100)].into_iter());
        assert_eq!(
            (owner(&owners, 1), owner(&owners, 2)),
            (None, Some((11, "new")))
        );
    }

    #[test]
    fn a_reused_pid_is_noticed() {
        let (machine, mut owners) = Machine::new();
        machine.starts(10, "parent", 1, &[100]);
        machine.starts(12, "child", 1, &[]);
        owners.update([(1, 100)].into_iter());
        assert_eq!(owner(&owners, 1), Some((10, "parent")));
        // The child keeps the connection, and another process takes the parent's pid.
        machine.ends(10);
        machine.starts(10, "stranger", 9, &[]);
        machine.ends(12);
        machine.starts(12, "child", 1, &[100]);
        owners.update([(1, 100)].into_iter());
        assert_eq!(owner(&owners, 1), Some((12, "child")));
    }

    #[test]
    fn a_process_that_executes_another_program_takes_its_name() {
        let (machine, mut owners) = Machine::new();
        machine.starts(10, "sh", 1, &[100]);
        owners.update([(1, 100)].into_iter());
        machine.ends(10);
        machine.starts(10, "curl", 1, &[100]);
        owners.update([(1, 100)].into_iter());
        assert_eq!(owner(&owners, 1), Some((10, "curl")));
    }

    #[test]
    fn a_connection_that_another_process_keeps_changes_its_owner() {
        let (machine, mut owners) = Machine::new();
        machine.starts(10, "parent", 1, &[100]);
        owners.update([(1, 100)].into_iter());
        machine.ends(10);
        machine.starts(10, "parent", 1, &[]);
        machine.starts(12, "child", 2, &[100]);
        for _ in 0..=RENEW {
            owners.update([(1, 100)].into_iter());
        }
        assert_eq!(owner(&owners, 1), Some((12, "child")));
    }

    #[test]
    fn many_descriptors_are_read_in_several_scans_and_none_is_missed() {
        let (machine, mut owners) = Machine::new();
        let inodes: Vec<u32> = (1..=READS as u32 + 500).collect();
        machine.starts(10, "busy", 1, &inodes);
        let sockets = || inodes.iter().map(|&inode| (u64::from(inode), inode));
        owners.update(sockets());
        let owned = |owners: &Owners| sockets().filter(|s| owners.of(s.0).is_some()).count();
        // Fewer owners are found than reads are allowed, which include the process itself, `.` and
        // `..`.
        assert!((READS - 3..READS).contains(&owned(&owners)));
        // A connection may have an owner whose descriptors were not read yet.
        let sought = |owners: &Owners| sockets().filter(|s| owners.has_sought(s.0)).count();
        assert_eq!(sought(&owners), owned(&owners));
        owners.update(sockets());
        assert_eq!(owned(&owners), inodes.len());
    }

    #[test]
    fn the_end_of_one_process_among_many_leaves_other_owners_alone() {
        let (machine, mut owners) = Machine::new();
        let count = CHECKS as u32 * 2;
        let sockets = |count: u32| (1..=count).map(|n| (u64::from(n), n));
        for n in 1..=count {
            machine.starts(n, "worker", 1, &[n]);
        }
        owners.update(sockets(count));
        owners.update(sockets(count));
        // A process starts that is not in the list of unchecked processes, and another one ends.
        machine.starts(count + 1, "new", 1, &[count + 1]);
        owners.update(sockets(count + 1));
        owners.update(sockets(count + 1));
        machine.ends(count);
        for _ in 0..3 {
            owners.update(sockets(count + 1));
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
    fn a_connection_without_an_owner_is_not_searched_for_in_every_scan() {
        let (_machine, mut owners) = Machine::new();
        assert!(!owners.has_sought(1));
        owners.update([(1, 100)].into_iter());
        assert!(owners.of(1).is_none() && owners.has_sought(1));
        assert_eq!(owners.known[&1].settled, Some(1));
        owners.update([(1, 100)].into_iter());
        assert!(owners.walk.is_none() && owners.known[&1].settled == Some(1));
    }
}
