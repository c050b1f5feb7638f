//! Limits the CPU time of some of a world's processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The length of a period in microseconds, which is the kernel's default.
const PERIOD: u64 = 100_000;

/// A cgroup with a CPU quota, which is removed with the world.
#[derive(Debug)]
pub struct CpuQuota {
    path: PathBuf,
}

// === impl CpuQuota ===

impl CpuQuota {
    /// Returns the path for a group called `name`. Returns `None` if the machine has no CPU controller of
    /// either version.
    pub(super) fn path_for(name: &str) -> Option<PathBuf> {
        let one = ["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu"].map(Path::new);
        let one = one
            .into_iter()
            .find(|root| root.join("cpu.cfs_quota_us").exists());
        let two = || {
            let root = Path::new("/sys/fs/cgroup");
            let enabled = fs::read_to_string(root.join("cgroup.subtree_control")).ok()?;
            enabled
                .split_whitespace()
                .any(|name| name == "cpu")
                .then_some(root)
        };
        Some(one.or_else(two)?.join(name))
    }

    /// Creates the group at `path`, with a quota of this share of a CPU.
    pub(super) fn create(path: &Path, cpus: f64) -> io::Result<Self> {
        fs::create_dir(path)?;
        let quota = (cpus * PERIOD as f64) as u64;
        match path.join("cpu.max").exists() {
            true => fs::write(path.join("cpu.max"), format!("{quota} {PERIOD}"))?,
            false => {
                fs::write(path.join("cpu.cfs_period_us"), PERIOD.to_string())?;
                fs::write(path.join("cpu.cfs_quota_us"), quota.to_string())?;
            }
        }
        Ok(Self {
            path: path.to_owned(),
        })
    }

    /// Returns the file to which a process writes its ID to join the group, with the processes that it
    /// starts from then on.
    pub fn processes(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }
}
