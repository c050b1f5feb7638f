//! Named network namespaces, in the same place and form as `ip netns` keeps them.
//!
//! A namespace is a bind mount of a thread's `ns/net` on `/run/netns/NAME`; it lives until the mount
//! is taken away and nobody holds it open. Code runs inside one on a thread of its own that ends
//! there, so no thread that the caller goes on using is ever in the wrong namespace, not even
//! when that code panics.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// Where `ip netns` keeps its namespaces.
pub const NETNS_DIR: &str = "/run/netns";

/// What went wrong with a network namespace, and with which.
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

    /// The system's own error.
    pub fn io_error(&self) -> &io::Error {
        &self.source
    }

    /// There is no such namespace, or no such process, (any more).
    pub fn is_gone(&self) -> bool {
        // INVAL: a name on which nothing is mounted any more is no namespace.
        matches!(
            Errno::from_io_error(&self.source),
            Some(Errno::NOENT | Errno::SRCH | Errno::INVAL)
        )
    }
}

fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "; run this as root (CAP_SYS_ADMIN and CAP_NET_ADMIN)",
        _ => "",
    }
}

/// Which namespace a thing is in: the device and inode of its `ns/net` file.
///
/// Two equal identities are the same namespace as long as somebody keeps it alive; an inode number
/// may be used again after that.
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

    /// Its inode, by which the kernel's own programs know it.
    pub fn inode(self) -> u64 {
        self.inode
    }

    /// The namespace of process `pid`; `None` when there is no such process any more.
    pub fn of_process(pid: u32) -> Option<Self> {
        Self::try_of_process(pid).ok()
    }

    /// The same as [`NetnsId::of_process`], and why it is not known.
    ///
    /// # Errors
    /// `NotFound` when there is no such process; `PermissionDenied` when it is another user's and the caller has
    /// no CAP_SYS_PTRACE.
    pub fn try_of_process(pid: u32) -> io::Result<Self> {
        fs::metadata(format!("/proc/{pid}/ns/net"))
            .as_ref()
            .map(Self::of)
            .map_err(|e| io::Error::from(e.kind()))
    }
}

/// The kernel's name of the namespace that the calling thread is in, which does not come again before the machine is
/// started anew (`SO_NETNS_COOKIE`).
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.14.
pub fn cookie() -> io::Result<u64> {
    /// asm-generic/socket.h, which x86-64 and arm64 have.
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    let mut cookie = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `cookie` and the length to `len`; both live until the call
    // returns.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    match done {
        0 => Ok(cookie),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A network namespace held open.
#[derive(Debug)]
pub struct Netns {
    name: String,
    file: File,
    id: NetnsId,
}

// === impl Netns ===

impl Netns {
    /// Makes a namespace with only a `lo`, down, in it.
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken; `PermissionDenied` without CAP_SYS_ADMIN.
    pub fn create(name: &str) -> Result<Self, NetnsError> {
        let path = path_of(name)?;
        prepare_dir().map_err(|e| NetnsError::new(name, "could not prepare /run/netns", e))?;
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o444)
            .open(&path)
            .map_err(|e| NetnsError::new(name, "could not make its file in /run/netns", e))?;
        let made = on_new_thread(|| {
            // SAFETY: only the network namespace is unshared, on a thread that ends here; no
            // file descriptor table is split, which is what makes `unshare` dangerous.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
            // `self` would name the main thread's namespace.
            rustix::mount::mount_bind("/proc/thread-self/ns/net", &path)
        });
        if let Err(e) = made {
            // The file is ours (`create_new`), and a name without a namespace would only mislead.
            let _ = fs::remove_file(&path);
            return Err(NetnsError::new(name, "could not make it", e));
        }
        Self::open(name)
    }

    /// Opens a namespace that exists, whoever made it.
    ///
    /// # Errors
    /// `NotFound` when there is none of that name.
    pub fn open(name: &str) -> Result<Self, NetnsError> {
        Self::open_path(name, &path_of(name)?)
    }

    /// The namespace that the calling thread is in.
    pub fn current() -> Result<Self, NetnsError> {
        Self::open_path("(current)", Path::new("/proc/thread-self/ns/net"))
    }

    /// Opens the namespace that process `pid` is in.
    ///
    /// # Errors
    /// [`NetnsError::is_gone`] when there is no such process; `PermissionDenied` when it is another
    /// user's and the caller has no CAP_SYS_PTRACE.
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
            .map_err(|e| NetnsError::new(name, "could not stat", e))?;
        Ok(Self {
            name: name.to_owned(),
            file,
            id: NetnsId::of(&metadata),
        })
    }

    /// Takes the name away. The namespace itself goes when no process, file or device holds it.
    /// A name that is already gone is no error.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_SYS_ADMIN.
    pub fn delete(name: &str) -> Result<(), NetnsError> {
        let path = path_of(name)?;
        match rustix::mount::unmount(&path, UnmountFlags::DETACH) {
            // INVAL: a file on which nothing is mounted, left by a creator killed half-way.
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

    /// Runs `job` inside the namespace, on a thread that ends with it, and returns what it returned.
    /// A panic in `job` goes on in the caller, who stays where they were.
    ///
    /// Sockets and devices that `job` opens belong to the namespace for as long as they are open.
    /// Processes must not be started here: one that asked to die with its parent would die with
    /// the thread (see [`crate::child`]).
    ///
    /// # Errors
    /// When the namespace cannot be entered; `job` has not run then.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        on_new_thread(|| {
            rustix::thread::move_into_link_name_space(
                self.file.as_fd(),
                Some(LinkNameSpaceType::Network),
            )
            .map_err(|e| NetnsError::new(&self.name, "could not enter it", e))?;
            Ok(job())
        })
    }

    /// Its name under `/run/netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its identity, valid for as long as this value lives.
    pub fn id(&self) -> NetnsId {
        self.id
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn on_new_thread<T: Send>(job: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(job).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// A name becomes a path component, so it may not walk anywhere.
fn path_of(name: &str) -> Result<PathBuf, NetnsError> {
    if name.is_empty() || name.contains(['/', '\0']) || name == "." || name == ".." {
        let e = io::Error::from(io::ErrorKind::InvalidInput);
        return Err(NetnsError::new(name, "a name is one path component", e));
    }
    Ok(Path::new(NETNS_DIR).join(name))
}

/// Makes `/run/netns` a shared mount, as `ip netns add` does and under the same lock, so that a name
/// made or taken away in one mount namespace is made or taken away in all.
fn prepare_dir() -> io::Result<()> {
    fs::create_dir_all(NETNS_DIR)?;
    let dir = File::open(NETNS_DIR)?;
    rustix::fs::flock(&dir, FlockOperation::LockExclusive)?;
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    match rustix::mount::mount_change(NETNS_DIR, shared) {
        // Not a mount point yet.
        Err(Errno::INVAL) => {
            rustix::mount::mount_bind_recursive(NETNS_DIR, NETNS_DIR)?;
            rustix::mount::mount_change(NETNS_DIR, shared)?;
        }
        other => other?,
    }
    Ok(())
}
