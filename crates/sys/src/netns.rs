//! Named network namespaces, in the same place and form as those of `ip netns` (ip-netns(8)).
//!
//! A named namespace is a bind mount of a thread's `ns/net` on `/run/netns/NAME`. It exists until
//! the mount is removed and its last user is gone. [`Netns::run`] enters a namespace on a new
//! thread that ends afterwards, so the caller's threads never change namespace, even if the code
//! panics.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::privileges::{self, Capability};
use crate::raw_sockopt;

/// The directory of named namespaces, shared with `ip netns`.
pub const NETNS_DIR: &str = "/run/netns";

/// A failed operation on a network namespace.
#[derive(Debug, thiserror::Error)]
#[error("network namespace {name}: {action}: {source}{}", hint(.source))]
pub struct NetnsError {
    name: String,
    action: &'static str,
    source: io::Error,
}

impl NetnsError {
    fn new(name: &str, action: &'static str, source: impl Into<io::Error>) -> Self {
        Self {
            name: name.to_owned(),
            action,
            source: source.into(),
        }
    }

    /// Returns the underlying system error.
    pub fn io_error(&self) -> &io::Error {
        &self.source
    }

    /// Returns whether the namespace or process does not exist, or no longer exists.
    pub fn is_gone(&self) -> bool {
        // EINVAL: the file exists, but no namespace is mounted on it.
        matches!(
            Errno::from_io_error(&self.source),
            Some(Errno::NOENT | Errno::SRCH | Errno::INVAL)
        )
    }
}

fn hint(source: &io::Error) -> String {
    privileges::hint(source, &[Capability::SysAdmin, Capability::NetAdmin])
}

/// The identity of a network namespace: device and inode of its `ns/net` file.
///
/// Equal identities mean the same namespace while it exists; afterwards, the kernel may reuse the
/// inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NetnsId {
    device: u64,
    inode: u64,
}

impl NetnsId {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }

    /// Returns the inode number, which is also the number that BPF programs see (`net->ns.inum`).
    pub fn inode(self) -> u64 {
        self.inode
    }

    /// Returns the namespace of process `pid`, or `None` if it cannot be read.
    pub fn of_process(pid: u32) -> Option<Self> {
        Self::try_of_process(pid).ok()
    }

    /// Returns the namespace of process `pid`.
    ///
    /// # Errors
    /// `NotFound` if there is no such process; `PermissionDenied` for another user's process
    /// without CAP_SYS_PTRACE.
    pub fn try_of_process(pid: u32) -> io::Result<Self> {
        fs::metadata(format!("/proc/{pid}/ns/net"))
            .as_ref()
            .map(Self::of)
            .map_err(|e| io::Error::from(e.kind()))
    }
}

/// Returns the cookie of the calling thread's network namespace (`SO_NETNS_COOKIE`). Cookies are
/// unique until the machine reboots.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.14.
pub fn cookie() -> io::Result<u64> {
    /// asm-generic/socket.h, which x86-64 and arm64 use.
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    Ok(raw_sockopt::get(
        &socket,
        libc::SOL_SOCKET,
        SO_NETNS_COOKIE,
    )?)
}

/// An open network namespace. It exists at least as long as this value.
#[derive(Debug)]
pub struct Netns {
    name: String,
    file: File,
    id: NetnsId,
}

// === impl Netns ===

impl Netns {
    /// Creates a namespace. Its only device is `lo`, which is down.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken; `PermissionDenied` without CAP_SYS_ADMIN.
    pub fn create(name: &str) -> Result<Self, NetnsError> {
        let path = path_of(name)?;
        prepare_dir().map_err(|e| NetnsError::new(name, "could not prepare /run/netns", e))?;
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o444)
            .open(&path)
            .map_err(|e| NetnsError::new(name, "could not create its file in /run/netns", e))?;
        let made = on_new_thread(|| {
            // SAFETY: unsharing is unsound only for the descriptor table (CLONE_FILES). This call
            // unshares the network namespace alone, on a thread that ends with this closure.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
            // `/proc/self` would be the main thread's namespace.
            rustix::mount::mount_bind("/proc/thread-self/ns/net", &path)
        });
        if let Err(e) = made.and_then(|made| Ok(made?)) {
            // The file is ours, because of `create_new`; do not leave a name without a namespace.
            let _ = fs::remove_file(&path);
            return Err(NetnsError::new(name, "could not create it", e));
        }
        Self::open(name)
    }

    /// Opens an existing namespace, created by any program.
    ///
    /// # Errors
    /// `NotFound` if there is no namespace of that name.
    pub fn open(name: &str) -> Result<Self, NetnsError> {
        Self::open_path(name, &path_of(name)?)
    }

    /// Opens the calling thread's namespace.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE`.
    pub fn current() -> Result<Self, NetnsError> {
        Self::open_path("(current)", Path::new("/proc/thread-self/ns/net"))
    }

    /// Opens the namespace that process `pid` is in.
    ///
    /// # Errors
    /// [`NetnsError::is_gone`] if there is no such process; `PermissionDenied` for another user's
    /// process without CAP_SYS_PTRACE.
    pub fn of_process(pid: u32) -> Result<Self, NetnsError> {
        Self::open_path(
            &format!("of process {pid}"),
            Path::new(&format!("/proc/{pid}/ns/net")),
        )
    }

    fn open_path(name: &str, path: &Path) -> Result<Self, NetnsError> {
        let file = File::open(path).map_err(|e| NetnsError::new(name, "could not open it", e))?;
        let metadata = file
            .metadata()
            .map_err(|e| NetnsError::new(name, "could not stat it", e))?;
        Ok(Self {
            name: name.to_owned(),
            file,
            id: NetnsId::of(&metadata),
        })
    }

    /// Removes the name. The kernel frees the namespace when no process, file or device uses it.
    /// Succeeds if the name does not exist.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_SYS_ADMIN.
    pub fn delete(name: &str) -> Result<(), NetnsError> {
        let path = path_of(name)?;
        match rustix::mount::unmount(&path, UnmountFlags::DETACH) {
            // EINVAL: nothing is mounted on the file; its creator was killed half-way.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(e) => return Err(NetnsError::new(name, "could not unmount it", e)),
        }
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(NetnsError::new(name, "could not remove its file", e))
            }
            _ => Ok(()),
        }
    }

    /// Runs `job` inside the namespace, on a new thread, and returns its result. A panic in `job`
    /// is resumed in the caller, whose namespace does not change.
    ///
    /// Sockets and devices that `job` opens belong to the namespace as long as they are open.
    /// `job` must not start processes: PR_SET_PDEATHSIG would kill them when the thread ends (use
    /// [`crate::child`]).
    ///
    /// # Errors
    /// [`NetnsError`] if the namespace cannot be entered; `job` has not run then.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        on_new_thread(|| {
            rustix::thread::move_into_link_name_space(
                self.file.as_fd(),
                Some(LinkNameSpaceType::Network),
            )
            .map_err(|e| NetnsError::new(&self.name, "could not enter it", e))?;
            Ok(job())
        })
        .map_err(|e| NetnsError::new(&self.name, "could not start a thread to enter it", e))?
    }

    /// Returns the name under `/run/netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the identity, valid as long as this value exists.
    pub fn id(&self) -> NetnsId {
        self.id
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Fails if the thread cannot be started.
fn on_new_thread<T: Send>(job: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(
        |scope| match std::thread::Builder::new().spawn_scoped(scope, job)?.join() {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        },
    )
}

/// Returns the path of a name, which must be a single path component.
fn path_of(name: &str) -> Result<PathBuf, NetnsError> {
    if name.is_empty() || name.contains(['/', '\0']) || name == "." || name == ".." {
        let e = io::Error::from(io::ErrorKind::InvalidInput);
        return Err(NetnsError::new(
            name,
            "a name must be a single path component",
            e,
        ));
    }
    Ok(Path::new(NETNS_DIR).join(name))
}

/// Makes `/run/netns` a shared mount, as `ip netns add` does and under the same lock, so that names
/// added or removed in one mount namespace appear or disappear in all.
fn prepare_dir() -> io::Result<()> {
    fs::create_dir_all(NETNS_DIR)?;
    let dir = File::open(NETNS_DIR)?;
    rustix::fs::flock(&dir, FlockOperation::LockExclusive)?;
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    match rustix::mount::mount_change(NETNS_DIR, shared) {
        // The directory is not a mount point yet.
        Err(Errno::INVAL) => {
            rustix::mount::mount_bind_recursive(NETNS_DIR, NETNS_DIR)?;
            rustix::mount::mount_change(NETNS_DIR, shared)?;
        }
        other => other?,
    }
    Ok(())
}
