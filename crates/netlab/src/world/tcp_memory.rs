//! Bounds the TCP memory of some of this process's sockets.
//!
//! `net.ipv4.tcp_mem` applies to the whole machine. A memory cgroup of version 1 has its own bound for the
//! sockets that its threads create (`memory.kmem.tcp.limit_in_bytes`). When the bound is reached, the
//! kernel drops what it would have queued, as it does at `tcp_mem`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const HIERARCHY: &str = "/sys/fs/cgroup/memory";
const LIMIT: &str = "memory.kmem.tcp.limit_in_bytes";
const USAGE: &str = "memory.kmem.tcp.usage_in_bytes";
const TASKS: &str = "tasks";
/// A limit that is never reached. Without any limit the kernel would not count.
const AMPLE: u64 = 1 << 40;

/// A memory cgroup of a world, which is removed with the world.
#[derive(Debug)]
pub struct TcpMemory {
    path: PathBuf,
}

// === impl TcpMemory ===

impl TcpMemory {
    /// Returns the path for a group called `name`: within the group of this process, whose own limits stay
    /// in force. Returns `None` if the machine has no memory cgroups of version 1 that count TCP.
    pub(super) fn path_for(name: &str) -> io::Result<Option<PathBuf>> {
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let Some(own) = memory_group(&groups) else {
            return Ok(None);
        };
        let own = Path::new(HIERARCHY).join(own.trim_start_matches('/'));
        Ok(own.join(LIMIT).exists().then(|| own.join(name)))
    }

    /// Creates the group at `path`, without an effective limit.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        fs::create_dir(path)?;
        let memory = Self {
            path: path.to_owned(),
        };
        memory.release()?;
        Ok(memory)
    }

    /// Returns the group's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the calling thread into the group, which counts the sockets that the thread opens or accepts
    /// from now on, and those of the threads that it starts.
    ///
    /// # Errors
    /// If the kernel rejects it.
    pub fn join(&self) -> io::Result<()> {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        fs::write(self.path.join(TASKS), thread.to_string())
    }

    /// Sets the limit to what the sockets hold now.
    ///
    /// # Errors
    /// If the kernel rejects it: with `ResourceBusy` if the sockets hold more by then.
    pub fn exhaust(&self) -> io::Result<()> {
        let usage = fs::read_to_string(self.path.join(USAGE))?;
        fs::write(self.path.join(LIMIT), usage.trim())
    }

    /// Removes the limit.
    ///
    /// # Errors
    /// If the kernel rejects it.
    pub fn release(&self) -> io::Result<()> {
        fs::write(self.path.join(LIMIT), AMPLE.to_string())
    }
}

/// Returns the path of the memory controller's group, from the text of `/proc/self/cgroup`.
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
