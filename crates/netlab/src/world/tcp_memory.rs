//! A bound on the TCP memory of some of this process's sockets.
//!
//! `net.ipv4.tcp_mem` is the whole machine's. A memory cgroup of version 1 has a bound of its own for
//! the sockets that its threads make (`memory.kmem.tcp.limit_in_bytes`), and a kernel that may not
//! charge it any more drops what it would have queued, as one that has reached `tcp_mem` does.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const HIERARCHY: &str = "/sys/fs/cgroup/memory";
const LIMIT: &str = "memory.kmem.tcp.limit_in_bytes";
const USAGE: &str = "memory.kmem.tcp.usage_in_bytes";
const TASKS: &str = "tasks";
/// Low enough to be a limit, without which the kernel counts nothing, and never reached.
const AMPLE: u64 = 1 << 40;

/// A memory cgroup of a world. It goes with the world.
#[derive(Debug)]
pub struct TcpMemory {
    path: PathBuf,
}

// === impl TcpMemory ===

impl TcpMemory {
    /// Where a group called `name` would be: within the group of this process, whose own limits stay
    /// in force. `None` if the machine has no memory cgroups of version 1 that count TCP.
    pub(super) fn place(name: &str) -> io::Result<Option<PathBuf>> {
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let Some(own) = memory_group(&groups) else {
            return Ok(None);
        };
        let own = Path::new(HIERARCHY).join(own.trim_start_matches('/'));
        Ok(own.join(LIMIT).exists().then(|| own.join(name)))
    }

    /// Makes the group at `path` with an ample limit.
    pub(super) fn make(path: &Path) -> io::Result<Self> {
        fs::create_dir(path)?;
        let memory = Self {
            path: path.to_owned(),
        };
        memory.release()?;
        Ok(memory)
    }

    /// The group's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the calling thread into the group. Sockets that it opens or accepts from now on are
    /// counted there, and so are those of threads that it starts.
    ///
    /// # Errors
    /// The kernel's.
    pub fn join(&self) -> io::Result<()> {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        fs::write(self.path.join(TASKS), thread.to_string())
    }

    /// Allows the sockets no more than they hold now.
    ///
    /// # Errors
    /// The kernel's; `ResourceBusy` if they have come to hold more meanwhile.
    pub fn exhaust(&self) -> io::Result<()> {
        let usage = fs::read_to_string(self.path.join(USAGE))?;
        fs::write(self.path.join(LIMIT), usage.trim())
    }

    /// Allows the sockets as much as they like.
    ///
    /// # Errors
    /// The kernel's.
    pub fn release(&self) -> io::Result<()> {
        fs::write(self.path.join(LIMIT), AMPLE.to_string())
    }
}

/// The path of the memory controller's group in `/proc/self/cgroup`.
fn memory_group(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let has_memory = controllers.split(',').any(|name| name == "memory");
        has_memory.then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_controllers_group_is_found_in_any_hierarchy() {
        let groups = "9:name=systemd:/\n4:cpu,memory:/a:b/c\n0::/\n";
        assert_eq!(memory_group(groups), Some("/a:b/c"));
        assert_eq!(memory_group("0::/user.slice\n"), None);
    }
}
