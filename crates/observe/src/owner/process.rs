//! A process as `/proc` describes it, and a walk over all processes.

use std::collections::HashSet;
use std::ffi::CStr;
use std::fs;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use rustix::fs::{CWD, Dir, Mode, OFlags, openat, readlinkat_raw};

use taut_sys::Errno;

use crate::sanitize;

/// The maximum number of bytes to read from a file in `/proc`.
const TEXT_MAX: u64 = 16 << 10;

/// A process that owns or owned a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process ID.
    pub pid: u32,
    /// Its name (`comm`), safe for a terminal.
    pub name: Arc<str>,
    /// The first 12 digits of its container ID.
    pub container: Option<String>,
    /// Its start time, in clock ticks after boot.
    pub(super) began: u64,
}

/// The identity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// Its start time, in clock ticks after boot.
    pub(crate) began: u64,
}

/// A walk over the descriptors of all processes, in steps.
#[derive(Debug)]
pub(super) struct Walk {
    root: PathBuf,
    pids: Vec<u32>,
    current: Option<Current>,
    /// Processes whose descriptors the caller may not read.
    pub(super) denied: usize,
}

/// A process whose descriptors are being read.
#[derive(Debug)]
struct Current {
    pid: u32,
    process: Option<Arc<Process>>,
    directory: OwnedFd,
    descriptors: OwnedFd,
    entries: Dir,
}

// === impl Process ===

impl Process {
    /// Returns its identity: a pid alone is reused.
    pub(crate) fn id(&self) -> ProcessId {
        ProcessId {
            pid: self.pid,
            began: self.began,
        }
    }

    /// Whether the process with this pid is still the same process and runs the same program.
    pub(super) fn is_still(&self, root: &Path) -> bool {
        let now = || {
            let directory = open(CWD, &root.join(self.pid.to_string())).ok()?;
            parse_stat(&read(&directory, "stat")?)
        };
        now().is_some_and(|(name, began)| began == self.began && *name == *self.name)
    }

    /// Returns a process that a BPF program has recorded. Its container is known only while it
    /// runs.
    pub(super) fn recorded(root: &Path, pid: u32, began: u64, name: &[u8]) -> Self {
        let now = || {
            let directory = open(CWD, &root.join(pid.to_string())).ok()?;
            Self::read(&directory, pid).filter(|now| now.began == began)
        };
        Self {
            pid,
            name: sanitize::text(name).into(),
            container: now().and_then(|now| now.container),
            began,
        }
    }

    /// Returns the process that has this pid now.
    pub(crate) fn of_pid(pid: u32) -> Option<Self> {
        Self::read(
            &open(CWD, &Path::new("/proc").join(pid.to_string())).ok()?,
            pid,
        )
    }

    /// Returns a process that does not exist.
    #[cfg(test)]
    pub(crate) fn for_tests(pid: u32, name: &str, container: Option<&str>) -> Self {
        Self {
            pid,
            name: name.into(),
            container: container.map(Into::into),
            began: 1,
        }
    }

    /// Reads a process through `directory`, which keeps referring to this process even if its pid
    /// is reused.
    fn read(directory: &OwnedFd, pid: u32) -> Option<Self> {
        let (name, began) = parse_stat(&read(directory, "stat")?)?;
        let cgroup = read(directory, "cgroup").unwrap_or_default();
        Some(Self {
            pid,
            name: name.into(),
            container: container(&String::from_utf8_lossy(&cgroup)),
            began,
        })
    }
}

/// Parses the name and start time in `/proc/PID/stat`: `1 (name) S 2 3 ...`. The name may contain
/// any character.
fn parse_stat(stat: &[u8]) -> Option<(String, u64)> {
    let open = stat.iter().position(|&byte| byte == b'(')?;
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    let name = sanitize::text(stat.get(open + 1..close)?);
    // The start time is the 22nd field, the name the second.
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let began = rest.split_ascii_whitespace().nth(19)?.parse().ok()?;
    Some((name, began))
}

/// Parses the first digits of the container ID in `/proc/PID/cgroup`. Runtimes name the cgroup
/// after it: 64 hexadecimal digits, alone or between a prefix and a suffix.
fn container(cgroup: &str) -> Option<String> {
    const DIGITS: usize = 64;
    const SHOWN: usize = 12;
    let of = |part: &str| {
        let mut words = part.split(|c: char| !c.is_ascii_hexdigit());
        let id = words.find(|word| word.len() == DIGITS)?;
        Some(id[..SHOWN].to_owned())
    };
    // The innermost cgroup.
    cgroup
        .lines()
        .find_map(|line| line.rsplit('/').find_map(of))
}

fn open(at: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty())
}

fn read(directory: &OwnedFd, name: &str) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::empty()).ok()?;
    let mut text = Vec::new();
    fs::File::from(file)
        .take(TEXT_MAX)
        .read_to_end(&mut text)
        .ok()?;
    Some(text)
}

// === impl Walk ===

impl Walk {
    /// Starts a walk over the processes that exist now: those in `first`, then the others.
    pub(super) fn new(root: &Path, first: &HashSet<u32>) -> Self {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut pids: Vec<u32> = pids.filter(|pid| !first.contains(pid)).collect();
        // The walk takes pids from the end.
        pids.extend(first);
        Self {
            root: root.to_owned(),
            pids,
            current: None,
            denied: 0,
        }
    }

    /// Reads up to `reads` more descriptors and processes. Removes each wanted socket that it finds
    /// from `wanted` and passes it to `found` with its owner. Returns whether the walk is complete
    /// or has found all sockets.
    pub(super) fn resume(
        &mut self,
        reads: usize,
        wanted: &mut FxHashMap<u32, Vec<u64>>,
        mut found: impl FnMut(u64, &Arc<Process>),
    ) -> bool {
        for _ in 0..reads {
            if wanted.is_empty() {
                return true;
            }
            let Some(current) = &mut self.current else {
                let Some(pid) = self.pids.pop() else {
                    return true;
                };
                match Current::of(&self.root, pid) {
                    Ok(current) => self.current = Some(current),
                    Err(Errno::ACCESS | Errno::PERM) => self.denied += 1,
                    // The process has ended.
                    Err(_) => {}
                }
                continue;
            };
            let Some(entry) = current.entries.next() else {
                self.current = None;
                continue;
            };
            if let Ok(entry) = entry
                && let Some(inode) = socket(&current.descriptors, entry.file_name())
                && let Some(cookies) = wanted.remove(&inode)
                && let Some(process) = current.process()
            {
                cookies
                    .into_iter()
                    .for_each(|cookie| found(cookie, &process));
            }
        }
        false
    }
}

// === impl Current ===

impl Current {
    fn of(root: &Path, pid: u32) -> Result<Self, Errno> {
        let directory = open(CWD, &root.join(pid.to_string()))?;
        let descriptors = open(&directory, Path::new("fd"))?;
        Ok(Self {
            entries: Dir::read_from(&descriptors)?,
            pid,
            process: None,
            directory,
            descriptors,
        })
    }

    fn process(&mut self) -> Option<Arc<Process>> {
        if self.process.is_none() {
            self.process = Process::read(&self.directory, self.pid).map(Arc::new);
        }
        self.process.clone()
    }
}

/// Returns the inode of the socket behind a descriptor; `None` if the descriptor is not a socket.
fn socket(descriptors: &OwnedFd, name: &CStr) -> Option<u32> {
    let mut link = [0u8; 64];
    let length = readlinkat_raw(descriptors, name, &mut link).ok()?;
    let inode = link
        .get(..length)?
        .strip_prefix(b"socket:[")?
        .strip_suffix(b"]")?;
    std::str::from_utf8(inode).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_parsed_whole() {
        let rest = (4..=22).map(|n| format!(" {n}")).collect::<String>();
        let stat = format!("7 (a) R (b\x1b) S{rest} 23");
        assert_eq!(
            parse_stat(stat.as_bytes()),
            Some(("a) R (b\u{fffd}".to_owned(), 22))
        );
        assert_eq!(parse_stat(b"7 (a) S 1"), None);
        assert_eq!(parse_stat(b")("), None);
    }

    proptest! {
        #[test]
        fn any_content_is_parsed_without_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_stat(&text);
            let _ = container(&String::from_utf8_lossy(&text));
        }

        /// A name that looks like the following fields does not change their values.
        #[test]
        fn a_name_cannot_forge_what_follows_it(name in "[() 0-9SR]{0,15}") {
            let zeros = " 0".repeat(18);
            let stat = format!("7 ({name}) S{zeros} 4711 0");
            prop_assert_eq!(parse_stat(stat.as_bytes()), Some((name, 4711)));
        }
    }

    #[test]
    fn the_container_id_is_found_in_each_runtimes_cgroup() {
        let id = "0123456789abcdef".repeat(4);
        for cgroup in [
            format!("0::/system.slice/docker-{id}.scope\n"),
            format!("0::/kubepods.slice/pod1.slice/cri-containerd-{id}.scope/init\n"),
            format!("12:cpu:/docker/{id}\n0::/\n"),
            format!("0::/machine.slice/libpod-{id}.scope/container\n"),
        ] {
            assert_eq!(
                container(&cgroup).as_deref(),
                Some("0123456789ab"),
                "{cgroup}"
            );
        }
        assert_eq!(container("0::/user.slice/user-1000.slice\n"), None);
    }
}
