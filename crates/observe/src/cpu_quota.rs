//! Measures for how much of the time the CPU quotas of cgroups stopped the processes that own
//! connections (`cpu.max` of cgroup v2, `cpu.cfs_quota_us` of v1; sched-bwc in the kernel's
//! documentation).

use std::collections::VecDeque;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::owner::{Process, ProcessId};

/// This process, which need not own a connection.
const OWN: ProcessId = ProcessId { pid: 0, began: 0 };
/// The maximum number of processes whose cgroups are looked up. Others count as having no quota.
const PROCESSES: usize = 4096;
/// The maximum number of cgroups with a quota that are read at each scan. Others count as having no
/// quota.
const GROUPS: usize = 256;
/// For how many scans a process without a connection is remembered, because the verdict on its last
/// one comes after the end.
const REMEMBERED: u32 = 5;
/// After how many scans the cgroups of a process are looked up again: it may have moved, and a cgroup
/// may have got its first quota.
const LOOKED_UP_EVERY: u32 = 30;

/// A quota that stopped the processes of a cgroup.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuQuota {
    /// The file that sets the quota.
    pub file: Arc<Path>,
    /// The quota in CPUs.
    pub cpus: f64,
    /// The share of the time for which the processes were stopped, from 0 to 1.
    pub stopped: f64,
}

/// The quotas of the processes that own connections, over the time of the last scans.
#[derive(Debug)]
pub(crate) struct CpuQuotas {
    proc: PathBuf,
    hierarchies: Vec<Hierarchy>,
    processes: FxHashMap<ProcessId, Known>,
    groups: FxHashMap<Arc<Path>, Group>,
    /// The number of scans that the measured time covers.
    scans: usize,
}

/// What is known of a process.
#[derive(Debug, Default)]
struct Known {
    /// The cgroups with a quota that it is in.
    groups: Vec<Arc<Path>>,
    /// The number of scans since they were looked up.
    looked_up: u32,
    /// The number of scans since it owned a connection.
    owned: u32,
}

/// A mounted hierarchy of cgroups that may have CPU quotas.
#[derive(Debug)]
struct Hierarchy {
    root: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A cgroup with a quota.
#[derive(Debug)]
struct Group {
    version: Version,
    /// As last read; `None` once it is removed.
    limit: Option<Limit>,
    /// The readings of the last scans. There is at least one.
    readings: VecDeque<(Instant, Throttling)>,
}

/// A quota: this much CPU time in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    quota: Duration,
    period: Duration,
}

/// Sums since the cgroup was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Throttling {
    /// The periods in which the quota was used up.
    periods: u64,
    /// The time for which processes were stopped, summed over CPUs.
    stopped: Duration,
}

// === impl CpuQuotas ===

impl CpuQuotas {
    /// Returns a meter for the time of the last `scans` scans.
    pub(crate) fn new(scans: usize) -> Self {
        Self::of(Path::new("/proc"), Path::new("/sys/fs/cgroup"), scans)
    }

    fn of(proc: &Path, mounts: &Path, scans: usize) -> Self {
        let two = [mounts.to_owned(), mounts.join("unified")];
        let two = two.into_iter().map(|root| (root, Version::Two));
        let one = ["cpu,cpuacct", "cpu"].map(|name| (mounts.join(name), Version::One));
        let all = two
            .chain(one)
            .map(|(root, version)| Hierarchy { root, version });
        Self {
            proc: proc.to_owned(),
            hierarchies: all.filter(Hierarchy::is_mounted).collect(),
            processes: FxHashMap::default(),
            groups: FxHashMap::default(),
            scans: scans.max(2),
        }
    }

    /// Begins to measure the cgroups of processes that are not known yet, reads those of known
    /// processes again, and forgets processes that have not owned a connection for a while.
    pub(crate) fn update<'a>(&mut self, owners: impl Iterator<Item = &'a Process>) {
        let owners: FxHashSet<ProcessId> = owners.map(Process::id).chain([OWN]).collect();
        self.processes.retain(|id, known| {
            known.looked_up += 1;
            known.owned = match owners.contains(id) {
                true => 0,
                false => known.owned + 1,
            };
            known.owned <= REMEMBERED
        });
        let known = self.processes.values();
        let used: FxHashSet<&Arc<Path>> = known.flat_map(|known| &known.groups).collect();
        self.groups.retain(|directory, _| used.contains(directory));
        for (directory, group) in &mut self.groups {
            group.read(directory, self.scans);
        }
        for id in owners {
            let is_due = match self.processes.get(&id) {
                Some(known) => known.looked_up >= LOOKED_UP_EVERY,
                None => self.processes.len() < PROCESSES,
            };
            if is_due {
                let groups = self.groups_of(id);
                let known = Known {
                    groups,
                    ..Known::default()
                };
                self.processes.insert(id, known);
            }
        }
    }

    /// Returns the quota that stopped the process for the largest share of the time; `None` if none
    /// did.
    pub(crate) fn of_process(&self, process: &Process) -> Option<CpuQuota> {
        self.of_id(process.id())
    }

    fn of_id(&self, id: ProcessId) -> Option<CpuQuota> {
        let groups = self.processes.get(&id)?.groups.iter();
        let measured = groups.filter_map(|directory| {
            let group = self.groups.get(directory)?;
            let limit = group.limit?;
            Some(CpuQuota {
                file: directory.join(group.version.file()).into(),
                cpus: limit.quota.as_secs_f64() / limit.period.as_secs_f64(),
                stopped: group.stopped(limit),
            })
        });
        let stopped = measured.filter(|quota| quota.stopped > 0.0);
        stopped.max_by(|a, b| a.stopped.total_cmp(&b.stopped))
    }

    /// Returns the quota that stopped this process itself.
    pub(crate) fn own(&self) -> Option<CpuQuota> {
        self.of_id(OWN)
    }

    /// Returns the cgroup of a process and those around it that have a quota, and begins to measure
    /// them.
    fn groups_of(&mut self, id: ProcessId) -> Vec<Arc<Path>> {
        let pid = match id {
            OWN => std::process::id(),
            id => id.pid,
        };
        let file = self.proc.join(pid.to_string()).join("cgroup");
        // A process that has just ended has no quota.
        let text = fs::read_to_string(file).unwrap_or_default();
        let mut found = Vec::new();
        for hierarchy in &self.hierarchies {
            let Some(inside) = hierarchy.version.path_in(&text) else {
                continue;
            };
            for directory in inside.ancestors().map(|path| hierarchy.root.join(path)) {
                let version = hierarchy.version;
                let limit = Limit::read(&directory, version);
                let now = Throttling::read(&directory, version);
                let (Some(limit), Some(now)) = (limit, now) else {
                    continue;
                };
                let directory: Arc<Path> = directory.into();
                if self.groups.len() < GROUPS || self.groups.contains_key(&directory) {
                    self.groups
                        .entry(Arc::clone(&directory))
                        .or_insert_with(|| Group::begin(version, limit, now));
                    found.push(directory);
                }
            }
        }
        found
    }
}

// === impl Hierarchy ===

impl Hierarchy {
    fn is_mounted(&self) -> bool {
        let file = match self.version {
            Version::One => "cpu.stat",
            Version::Two => "cgroup.controllers",
        };
        self.root.join(file).exists()
    }
}

// === impl Version ===

impl Version {
    /// Returns the name of the file that sets the quota.
    fn file(self) -> &'static str {
        match self {
            Self::One => "cpu.cfs_quota_us",
            Self::Two => "cpu.max",
        }
    }

    /// Returns the path of a process's cgroup in this hierarchy, relative to its root. `text` is that of
    /// `/proc/PID/cgroup`; a path outside of the reader's cgroup namespace begins with `/..`.
    fn path_in(self, text: &str) -> Option<PathBuf> {
        let path = text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let controllers = fields.next()?;
            let is_here = match self {
                Self::One => controllers.split(',').any(|name| name == "cpu"),
                Self::Two => controllers.is_empty(),
            };
            fields.next().filter(|_| is_here)
        })?;
        let parts = Path::new(path).components().skip(1);
        let parts = parts.map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        parts.collect()
    }
}

// === impl Group ===

impl Group {
    fn begin(version: Version, limit: Limit, now: Throttling) -> Self {
        Self {
            version,
            limit: Some(limit),
            readings: VecDeque::from([(Instant::now(), now)]),
        }
    }

    fn read(&mut self, directory: &Path, scans: usize) {
        self.limit = Limit::read(directory, self.version);
        if let Some(now) = Throttling::read(directory, self.version) {
            if self.readings.len() >= scans {
                self.readings.pop_front();
            }
            self.readings.push_back((Instant::now(), now));
        }
    }

    /// Returns the share of the time for which the quota stopped processes.
    fn stopped(&self, limit: Limit) -> f64 {
        let (Some((began, first)), Some((ended, last))) =
            (self.readings.front(), self.readings.back())
        else {
            return 0.0;
        };
        let elapsed = ended.saturating_duration_since(*began);
        if elapsed.is_zero() {
            return 0.0;
        }
        let periods = last.periods.saturating_sub(first.periods);
        // Summed over CPUs, the time can be longer than the periods in which it was spent.
        let most = limit.period.as_secs_f64() * periods as f64;
        let stopped = last.stopped.saturating_sub(first.stopped);
        let share = stopped.as_secs_f64().min(most) / elapsed.as_secs_f64();
        share.min(1.0)
    }
}

// === impl Limit ===

impl Limit {
    /// Reads the quota of a cgroup; `None` if it has none.
    fn read(directory: &Path, version: Version) -> Option<Self> {
        let text = |name| fs::read_to_string(directory.join(name)).ok();
        match version {
            // The root of a hierarchy has none.
            Version::Two => Self::parse(&text("cpu.max")?),
            Version::One => {
                let (quota, period) = (text("cpu.cfs_quota_us")?, text("cpu.cfs_period_us")?);
                Self::parse(&format!("{quota} {period}"))
            }
        }
    }

    /// Parses a quota and a period in microseconds. The quota is `max` (v2) or negative (v1) if there is
    /// none.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split_ascii_whitespace();
        let mut micros = || fields.next()?.parse().ok().map(Duration::from_micros);
        let (quota, period) = (micros()?, micros()?);
        (!period.is_zero()).then_some(Self { quota, period })
    }
}

// === impl Throttling ===

impl Throttling {
    fn read(directory: &Path, version: Version) -> Option<Self> {
        Self::parse(
            &fs::read_to_string(directory.join("cpu.stat")).ok()?,
            version,
        )
    }

    fn parse(text: &str, version: Version) -> Option<Self> {
        let field = |name: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            value.parse().ok()
        };
        Some(Self {
            periods: field("nr_throttled")?,
            stopped: match version {
                Version::One => Duration::from_nanos(field("throttled_time")?),
                Version::Two => Duration::from_micros(field("throttled_usec")?),
            },
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    impl CpuQuotas {
        /// Changes the times of readings so that they are a second apart.
        fn take_seconds(&mut self) {
            for group in self.groups.values_mut() {
                let first = group.readings[0].0;
                for (reading, second) in group.readings.iter_mut().zip(0..) {
                    reading.0 = first + Duration::from_secs(second);
                }
            }
        }
    }

    /// A machine of files, with a process 7 in a cgroup.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn with(cgroup: &str) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            machine.write("proc/7/cgroup", cgroup);
            machine
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn quotas(&self) -> CpuQuotas {
            CpuQuotas::of(
                &self.0.path().join("proc"),
                &self.0.path().join("cgroup"),
                3,
            )
        }

        /// Returns what is measured of process 7 while `change` is made, had it taken a second.
        fn measure(&self, change: impl FnOnce()) -> Option<CpuQuota> {
            let mut quotas = self.quotas();
            let process = Process::for_tests(7, "app", None);
            quotas.update([&process].into_iter());
            change();
            quotas.update([&process].into_iter());
            quotas.take_seconds();
            quotas.of_process(&process)
        }
    }

    #[test]
    fn the_time_for_which_a_quota_of_version_2_stops_a_process_is_measured() {
        let machine = Machine::with("0::/system.slice/app.service\n");
        machine.write("cgroup/cgroup.controllers", "cpu\n");
        let group = "cgroup/system.slice/app.service";
        let stat = |periods, micros| {
            let text = format!(
                "usage_usec 5\nnr_periods 9\nnr_throttled {periods}\nthrottled_usec {micros}\n"
            );
            machine.write(&format!("{group}/cpu.stat"), &text);
        };
        machine.write(&format!("{group}/cpu.max"), "20000 100000\n");
        stat(10, 1_000_000);
        let quota = machine.measure(|| stat(19, 1_700_000)).unwrap();
        assert!(quota.file.ends_with("system.slice/app.service/cpu.max"));
        assert!((quota.cpus - 0.2).abs() < 1e-9);
        assert!((quota.stopped - 0.7).abs() < 1e-9, "{quota:?}");
        // Threads on several CPUs were stopped at the same time.
        let quota = machine.measure(|| stat(23, 9_000_000)).unwrap();
        assert!((quota.stopped - 0.4).abs() < 1e-9, "{quota:?}");
        assert_eq!(machine.measure(|| ()), None, "it stopped nothing");
    }

    #[test]
    fn a_quota_of_version_1_around_the_process_counts_too() {
        let machine = Machine::with("4:memory:/x\n3:cpu,cpuacct:/pod/app\n0::/\n");
        let stat = |periods, nanos| {
            let text = format!("nr_periods 9\nnr_throttled {periods}\nthrottled_time {nanos}\n");
            machine.write("cgroup/cpu,cpuacct/pod/cpu.stat", &text);
        };
        machine.write("cgroup/cpu,cpuacct/cpu.stat", "");
        machine.write("cgroup/cpu,cpuacct/pod/app/cpu.cfs_quota_us", "-1\n");
        machine.write("cgroup/cpu,cpuacct/pod/app/cpu.cfs_period_us", "100000\n");
        machine.write("cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us", "150000\n");
        machine.write("cgroup/cpu,cpuacct/pod/cpu.cfs_period_us", "100000\n");
        stat(0, 0);
        let quota = machine.measure(|| stat(8, 500_000_000)).unwrap();
        assert!(quota.file.ends_with("pod/cpu.cfs_quota_us"), "{quota:?}");
        assert!((quota.cpus - 1.5).abs() < 1e-9);
        assert!((quota.stopped - 0.5).abs() < 1e-9, "{quota:?}");
    }

    #[test]
    fn a_cgroup_without_a_quota_or_outside_of_the_namespace_is_left_out() {
        let machine = Machine::with("0::/app\n");
        machine.write("cgroup/cgroup.controllers", "cpu\n");
        machine.write("cgroup/app/cpu.max", "max 100000\n");
        machine.write("cgroup/app/cpu.stat", "nr_throttled 3\nthrottled_usec 9\n");
        assert_eq!(machine.measure(|| ()), None);
        assert_eq!(Version::Two.path_in("0::/../other\n"), None);
        assert_eq!(Version::Two.path_in("0::/\n"), Some(PathBuf::new()));
        assert_eq!(Version::One.path_in("0::/\n"), None);
    }

    #[test]
    fn only_the_last_scans_count_and_only_for_processes_that_own_connections() {
        let machine = Machine::with("0::/app\n");
        machine.write("cgroup/cgroup.controllers", "cpu\n");
        machine.write("cgroup/app/cpu.max", "20000 100000\n");
        let stat = |periods, micros| {
            let text = format!("nr_throttled {periods}\nthrottled_usec {micros}\n");
            machine.write("cgroup/app/cpu.stat", &text);
        };
        let mut quotas = machine.quotas();
        let process = Process::for_tests(7, "app", None);
        for (periods, micros) in [(0, 0), (9, 900_000), (14, 1_400_000), (14, 1_400_000)] {
            stat(periods, micros);
            quotas.update([&process].into_iter());
        }
        quotas.take_seconds();
        let quota = quotas.of_process(&process).unwrap();
        assert!((quota.stopped - 0.25).abs() < 1e-9, "{quota:?}");
        // The verdict on its last connection comes after the end.
        quotas.update([].into_iter());
        assert!(quotas.processes.contains_key(&process.id()));
        for _ in 0..REMEMBERED {
            quotas.update([].into_iter());
        }
        assert_eq!(quotas.of_process(&process), None);
        assert!(quotas.groups.is_empty());
    }

    #[test]
    fn a_quota_that_is_set_later_is_found() {
        let machine = Machine::with("0::/app\n");
        machine.write("cgroup/cgroup.controllers", "cpu\n");
        machine.write("cgroup/app/cpu.max", "max 100000\n");
        machine.write("cgroup/app/cpu.stat", "nr_throttled 0\nthrottled_usec 0\n");
        let mut quotas = machine.quotas();
        let process = Process::for_tests(7, "app", None);
        quotas.update([&process].into_iter());
        machine.write("cgroup/app/cpu.max", "20000 100000\n");
        for _ in 0..LOOKED_UP_EVERY {
            quotas.update([&process].into_iter());
        }
        machine.write(
            "cgroup/app/cpu.stat",
            "nr_throttled 9\nthrottled_usec 900000\n",
        );
        quotas.update([&process].into_iter());
        quotas.take_seconds();
        assert!(quotas.of_process(&process).unwrap().stopped > 0.5);
    }

    #[test]
    fn damaged_files_are_no_quota() {
        for text in [
            "",
            "max",
            "20000",
            "20000 0",
            "-1 100000",
            "x y",
            "1e3 100000",
        ] {
            assert_eq!(Limit::parse(text), None, "{text}");
        }
        for text in [
            "",
            "nr_throttled",
            "nr_throttled x\nthrottled_usec 1",
            "nr_throttled 1",
        ] {
            assert_eq!(Throttling::parse(text, Version::Two), None, "{text}");
        }
    }
}
