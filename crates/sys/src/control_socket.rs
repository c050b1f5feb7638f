//! A UNIX socket at which a process takes commands from its own user and from root.
//!
//! Mode 0600 keeps other users out, and both sides check the other's user (SO_PEERCRED, unix(7)),
//! because a path can be replaced by whoever may write to its directory.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::scm_rights::effective_uid;

/// The length of the accept queue.
const BACKLOG: i32 = 8;
/// The bits that let others than the owner write to a directory.
const OTHERS_WRITE: u32 = 0o022;
/// The sticky bit: in the directory, only the owner of a file may remove it.
const STICKY: u32 = 0o1000;

/// The reason why a control socket cannot be created or used.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A call failed.
    #[error("control socket {path}: cannot {what}: {source}", path = path.display())]
    Call {
        /// The path.
        path: PathBuf,
        /// The call.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The socket belongs to another user.
    #[error(
        "control socket {path}: permission denied: it answers only root and user {owner}; run this as \
         that user", path = path.display()
    )]
    Denied {
        /// The path.
        path: PathBuf,
        /// The owner of the socket.
        owner: u32,
    },
    /// Another process answers there.
    #[error("control socket {path}: another process answers there; stop it, or choose another path", path = .0.display())]
    Taken(PathBuf),
    /// The path is a file of another kind.
    #[error("control socket {path}: the path is not a socket; choose another path", path = .0.display())]
    NotASocket(PathBuf),
    /// Other users may replace the socket.
    #[error(
        "control socket {path}: its directory belongs to user {owner} with mode {mode:o}, so others \
         could replace the socket; choose a directory of this user or of root that nobody else can \
         write to", path = path.display()
    )]
    Directory {
        /// The path.
        path: PathBuf,
        /// The owner of the directory.
        owner: u32,
        /// The mode of the directory.
        mode: u32,
    },
    /// The process at the socket belongs to another user.
    #[error(
        "control socket {path}: the process there is of user {user}, and the socket of user {owner}; \
         it is not trusted", path = path.display()
    )]
    Foreign {
        /// The path.
        path: PathBuf,
        /// The user of the process.
        user: u32,
        /// The owner of the socket.
        owner: u32,
    },
}

/// Listens at `path` with mode 0600. Creates the directory if it is missing. Replaces a socket that
/// no process answers at; with `replace`, also one of a running process. The path stays when the
/// listener is closed.
///
/// # Errors
/// [`ControlError`].
pub fn listen(path: &Path, replace: bool) -> Result<UnixListener, ControlError> {
    let folder = folder_of(path);
    let mut builder = std::fs::DirBuilder::new();
    let created = builder.recursive(true).mode(0o755).create(folder);
    created.map_err(call(path, "create its directory"))?;
    check_directory(path, &[0, effective_uid()])?;
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ControlError::NotASocket(path.to_owned()));
        }
        Ok(_) if !replace && UnixStream::connect(path).is_ok() => {
            return Err(ControlError::Taken(path.to_owned()));
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(call(path, "look at it")(error));
        }
        Ok(_) | Err(_) => {}
    }
    bind(path).map_err(|errno| call(path, "listen")(errno.into()))
}

/// Binds beside the path and renames the socket, so that there is always one at the path and never
/// one with another mode.
fn bind(path: &Path) -> Result<UnixListener, crate::Errno> {
    let flags = SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // bind(2) creates the path with the socket's mode minus the umask.
    rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let _ = rustix::fs::unlink(&beside);
    rustix::net::bind(&fd, &SocketAddrUnix::new(&beside)?)?;
    let placed = rustix::net::listen(&fd, BACKLOG).and_then(|()| rustix::fs::rename(&beside, path));
    if let Err(error) = placed {
        let _ = rustix::fs::unlink(&beside);
        return Err(error);
    }
    Ok(fd.into())
}

/// Returns whether the process at the other end of an accepted connection is of root or of this
/// process's user.
pub fn may_command(stream: &UnixStream) -> bool {
    peer(stream).is_ok_and(|user| user == 0 || user == effective_uid())
}

/// Connects to the process at `path`, after checking that it is root's or this user's.
///
/// # Errors
/// [`ControlError`].
pub fn connect(path: &Path) -> Result<UnixStream, ControlError> {
    connect_to(path, &[])
}

/// Connects to the process at `path`, after checking that it is root's, this user's, or that of the
/// socket's owner in a directory that only the owner and root can write to.
///
/// # Errors
/// [`ControlError`].
pub fn connect_to_owner(path: &Path) -> Result<UnixStream, ControlError> {
    connect_to(path, &[owner_of(path)?])
}

fn owner_of(path: &Path) -> Result<u32, ControlError> {
    let found = std::fs::symlink_metadata(path).map_err(call(path, "connect"))?;
    Ok(found.uid())
}

/// Connects to a process of root's, of this user's or of one of `others`.
fn connect_to(path: &Path, others: &[u32]) -> Result<UnixStream, ControlError> {
    let owner = owner_of(path)?;
    let trusted = [&[0, effective_uid()], others].concat();
    check_directory(path, &trusted)?;
    let stream = UnixStream::connect(path).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => ControlError::Denied {
            path: path.to_owned(),
            owner,
        },
        _ => call(path, "connect")(source),
    })?;
    let user = peer(&stream).map_err(call(path, "ask whose process answers"))?;
    match trusted.contains(&user) {
        true => Ok(stream),
        false => Err(ControlError::Foreign {
            path: path.to_owned(),
            user,
            owner,
        }),
    }
}

fn call(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> ControlError + use<> {
    let path = path.to_owned();
    move |source| ControlError::Call { path, what, source }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Checks that nobody but `owners` can replace a file in the directory of `path`.
fn check_directory(path: &Path, owners: &[u32]) -> Result<(), ControlError> {
    let found = std::fs::metadata(folder_of(path));
    let found = found.map_err(call(path, "look at its directory"))?;
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    let is_safe = owners.contains(&owner) && (mode & OTHERS_WRITE == 0 || mode & STICKY != 0);
    is_safe
        .then_some(())
        .ok_or_else(|| ControlError::Directory {
            path: path.to_owned(),
            owner,
            mode,
        })
}

fn peer(stream: &UnixStream) -> io::Result<u32> {
    Ok(sockopt::socket_peercred(stream)?.uid.as_raw())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn the_socket_is_its_owners_alone_and_replaces_one_that_nobody_answers_at() {
        let dir = folder();
        let path = dir.path().join("sub/control");
        let first = listen(&path, false).unwrap();
        let mode = std::fs::symlink_metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        let asker = connect(&path).unwrap();
        assert!(may_command(&first.accept().unwrap().0));
        drop(asker);
        let taken = listen(&path, false).unwrap_err();
        assert!(matches!(taken, ControlError::Taken(_)), "{taken}");
        // The next process after a handover.
        let second = listen(&path, true).unwrap();
        connect(&path).unwrap();
        second.accept().unwrap();
        drop((first, second));
        let gone = connect(&path).unwrap_err();
        assert!(matches!(gone, ControlError::Call { .. }), "{gone}");
        listen(&path, false).unwrap();
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused_by_both_sides() {
        let dir = folder();
        let path = dir.path().join("control");
        let _listener = listen(&path, false).unwrap();
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(dir.path(), all).unwrap();
        let said = connect(&path).unwrap_err();
        assert!(matches!(said, ControlError::Directory { .. }), "{said}");
        let said = listen(&path, true).unwrap_err();
        assert!(matches!(said, ControlError::Directory { .. }), "{said}");
    }

    /// Runs `call` on a thread of another user's.
    fn as_stranger<T: Send>(call: impl FnOnce() -> T + Send) -> T {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test has a thread of another user and must run as root; `make test` does"
        );
        let stranger = rustix::process::Uid::from_raw(54_321);
        let switch = || rustix::thread::set_thread_res_uid(stranger, stranger, stranger);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                switch().unwrap();
                call()
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn a_process_of_another_user_is_neither_asked_nor_obeyed() {
        let dir = folder();
        let path = dir.path().join("control");
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        // It had time to place the socket before the directory was root's alone.
        mode(dir.path(), 0o777);
        let squatter = as_stranger(|| UnixListener::bind(&path).unwrap());
        mode(dir.path(), 0o755);
        let said = connect(&path).unwrap_err();
        assert!(matches!(said, ControlError::Foreign { .. }), "{said}");
        // The owner of a socket may be trusted: a relay that is not root's.
        connect_to_owner(&path).unwrap();
        drop(squatter);

        let listener = listen(&path, false).unwrap();
        // Whatever the mode becomes, the user is looked at.
        mode(&path, 0o666);
        let _asker = as_stranger(|| UnixStream::connect(&path).unwrap());
        assert!(!may_command(&listener.accept().unwrap().0));
    }

    #[test]
    fn a_file_at_the_path_is_left_alone() {
        let dir = folder();
        let path = dir.path().join("control");
        std::fs::write(&path, "precious").unwrap();
        let said = listen(&path, true).unwrap_err();
        assert!(matches!(said, ControlError::NotASocket(_)), "{said}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}
