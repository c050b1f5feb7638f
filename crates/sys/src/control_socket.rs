//! A UNIX socket at which a process takes commands from its own user and from root.
//!
//! Mode 0600 keeps other users out, and both sides check the other's user (SO_PEERCRED, unix(7)),
//! because a path can be replaced by whoever may write to its directory.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::job_dir::denied;
use crate::scm_rights::effective_uid;

/// The length of the accept queue.
const BACKLOG: i32 = 8;
/// The time to wait for a process that does not accept connections, because it is stopped, for example.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after an accept that failed for lack of resources.
const PAUSE: Duration = Duration::from_millis(100);
/// The bits that let others than the owner write to a directory.
const OTHERS_WRITE: u32 = 0o022;
/// The sticky bit: in the directory, only the owner of a file may remove it.
const STICKY: u32 = 0o1000;

/// The reason why a control socket cannot be created or used.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A call failed.
    #[error("control socket {path}: cannot {what}: {source}{}", denied(source), path = path.display())]
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
    /// Another user placed a socket in a directory that any user can write to.
    #[error(
        "control socket {path} belongs to user {owner}, and any user may place files in its directory: it is not \
         trusted. Remove it (`rm {path}`), or choose a path in a directory that only root can write to",
        path = path.display()
    )]
    Strangers {
        /// The path.
        path: PathBuf,
        /// The owner of the socket.
        owner: u32,
    },
    /// The path is a file of another kind.
    #[error("control socket {path}: the path is not a socket; choose another path", path = .0.display())]
    NotASocket(PathBuf),
    /// Other users may replace the socket.
    #[error(
        "control socket {path}: directory {directory} belongs to user {owner} with mode {mode:o}, so others \
         could replace the socket; choose a directory of this user or of root that nobody else can \
         write to", path = path.display(), directory = directory.display()
    )]
    Directory {
        /// The path.
        path: PathBuf,
        /// Its directory, or one above it.
        directory: PathBuf,
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

// === impl ControlError ===

impl ControlError {
    /// Returns whether no process listens at the path, as far as this user can see.
    pub fn is_absent(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        matches!(self, Self::Call { source, .. } if matches!(source.kind(), NotFound | ConnectionRefused))
    }

    /// Returns whether a process listens at the path, but has not accepted connections for a second.
    pub fn has_timed_out(&self) -> bool {
        matches!(self, Self::Call { source, .. } if source.kind() == io::ErrorKind::TimedOut)
    }
}

/// Listens at `path` with mode 0600. Creates the directory if it is missing. Replaces a socket that
/// no process answers at, whose process was killed; with `replace`, also one of a running process. In a
/// directory that everybody may write to (/tmp), a socket of another user's is neither replaced nor asked.
/// The path stays when the listener is closed.
///
/// # Errors
/// [`ControlError`].
pub fn listen(path: &Path, replace: bool) -> Result<UnixListener, ControlError> {
    let folder = folder_of(path);
    let mut builder = std::fs::DirBuilder::new();
    let created = builder.recursive(true).mode(0o755).create(folder);
    created.map_err(call(path, "create its directory"))?;
    let path = &resolve(path, "look at its directory")?;
    check_directories(path, &[0, effective_uid()])?;
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ControlError::NotASocket(path.to_owned()));
        }
        Ok(found) if is_strangers(path, found.uid()) => {
            return Err(ControlError::Strangers {
                path: path.to_owned(),
                owner: found.uid(),
            });
        }
        Ok(_) if !replace && is_taken(path) => {
            return Err(ControlError::Taken(path.to_owned()));
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(call(path, "look at it")(error));
        }
        Ok(_) | Err(_) => {}
    }
    bind(path).map_err(|errno| call(path, "listen")(errno.into()))
}

/// Returns whether a process listens at the path.
fn is_taken(path: &Path) -> bool {
    match connect_within(path, CONNECT_TIMEOUT) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::TimedOut,
    }
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

/// Answers operators, each in a thread of its own with the name `thread`, until the process ends.
/// Closes connections beyond `most` at a time, and those of users that are neither root nor this
/// process's user.
pub fn answer_all(
    listener: &UnixListener,
    thread: &str,
    most: usize,
    answer: impl Fn(UnixStream) + Clone + Send + 'static,
) -> ! {
    let operators = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Without free file descriptors, the next accept would fail at once.
            std::thread::sleep(PAUSE);
            continue;
        };
        if operators.load(Ordering::Relaxed) >= most || !may_command(&stream) {
            continue;
        }
        operators.fetch_add(1, Ordering::Relaxed);
        let (answer, counted) = (answer.clone(), operators.clone());
        let asker = std::thread::Builder::new().name(thread.to_owned());
        let started = asker.spawn(move || {
            answer(stream);
            counted.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            operators.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Returns whether the process at the other end of an accepted connection is of root or of this
/// process's user.
fn may_command(stream: &UnixStream) -> bool {
    peer(stream).is_ok_and(|user| user == 0 || user == effective_uid())
}

/// Connects to the process at `path`, after checking that it is root's or this user's.
///
/// # Errors
/// [`ControlError`].
pub fn connect(path: &Path) -> Result<UnixStream, ControlError> {
    connect_to(&resolve(path, "connect")?, &[])
}

/// Connects to the process at `path`, after checking that it is root's, this user's, or that of the
/// socket's owner, where neither the socket nor a directory above it can be a stranger's work.
///
/// # Errors
/// [`ControlError`].
pub fn connect_to_owner(path: &Path) -> Result<UnixStream, ControlError> {
    let path = resolve(path, "connect")?;
    let owner = owner_of(&path)?;
    match is_strangers(&path, owner) {
        true => Err(ControlError::Strangers { path, owner }),
        false => connect_to(&path, &[owner]),
    }
}

/// The maximum size of an answer, in bytes: the answer about a mesh of 1,000 relays has 5 MB.
const ANSWER_MAX: u64 = 32 << 20;

/// Reads the answer of a job, a line, which may be of any process: within this time, and not more than
/// [`ANSWER_MAX`].
///
/// # Errors
/// `WouldBlock` if it does not come in time, `InvalidData` if it is longer or no text.
pub fn read_answer(stream: UnixStream, within: Duration) -> io::Result<String> {
    let until = Instant::now() + within;
    let mut line = Vec::new();
    let mut stream = BufReader::new(stream.take(ANSWER_MAX));
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        stream.get_ref().get_ref().set_read_timeout(Some(left))?;
        let some = stream.fill_buf()?;
        let end = some.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(some.len(), |end| end + 1);
        line.extend_from_slice(some.get(..taken).unwrap_or_default());
        let is_last = end.is_some() || taken == 0;
        stream.consume(taken);
        if is_last {
            break;
        }
    }
    if line.len() as u64 >= ANSWER_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the answer is too long",
        ));
    }
    String::from_utf8(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Returns whether a file or directory of this owner may have been placed by a stranger: the owner is neither
/// root nor this user, and everybody may place files in the directory above it.
fn is_strangers(path: &Path, owner: u32) -> bool {
    let is_open = std::fs::metadata(folder_of(path)).map(|found| found.mode() & OTHERS_WRITE != 0);
    ![0, effective_uid()].contains(&owner) && is_open.unwrap_or(true)
}

fn owner_of(path: &Path) -> Result<u32, ControlError> {
    let found = std::fs::symlink_metadata(path).map_err(call(path, "connect"))?;
    Ok(found.uid())
}

/// Connects to a process of root's, of this user's or of one of `others`.
fn connect_to(path: &Path, others: &[u32]) -> Result<UnixStream, ControlError> {
    let owner = owner_of(path)?;
    let trusted = [&[0, effective_uid()], others].concat();
    check_directories(path, &trusted)?;
    let stream = connect_within(path, CONNECT_TIMEOUT).map_err(|source| match source.kind() {
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

/// Connects, and waits for this long for room in the queue of the process, which `UnixStream::connect` does for ever.
fn connect_within(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(timeout))?;
    match rustix::net::connect(&fd, &SocketAddrUnix::new(path)?) {
        // unix(7): the time-out of sending is also that of connecting.
        Err(crate::Errno::AGAIN) => Err(crate::Errno::TIMEDOUT.into()),
        connected => {
            connected?;
            Ok(fd.into())
        }
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

/// Returns the path without links in its directory: what is checked must be what is used, and a stranger
/// could change a link in between.
fn resolve(path: &Path, what: &'static str) -> Result<PathBuf, ControlError> {
    let folder = std::fs::canonicalize(folder_of(path)).map_err(call(path, what))?;
    let name = path.file_name();
    let name = name.ok_or_else(|| ControlError::NotASocket(path.to_owned()))?;
    Ok(folder.join(name))
}

/// Checks that nobody but `owners` can replace the file at a resolved path, or a directory above it, and that
/// no directory above it is a stranger's work: who may write to /tmp makes directories that are his alone.
fn check_directories(path: &Path, owners: &[u32]) -> Result<(), ControlError> {
    for directory in folder_of(path).ancestors() {
        let found = std::fs::metadata(directory);
        let found = found.map_err(call(path, "look at its directories"))?;
        let (owner, mode) = (found.uid(), found.mode() & 0o7777);
        let is_safe = mode & OTHERS_WRITE == 0 || mode & STICKY != 0;
        if !is_safe || !owners.contains(&owner) || is_strangers(directory, owner) {
            return Err(ControlError::Directory {
                path: path.to_owned(),
                directory: directory.to_owned(),
                owner,
                mode,
            });
        }
    }
    Ok(())
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
    fn an_answer_has_a_limit_of_time_and_of_size() {
        let within = Duration::from_millis(20);
        let read = |send: fn(UnixStream)| {
            let (job, asker) = UnixStream::pair().unwrap();
            let job = std::thread::spawn(move || send(job));
            let answer = read_answer(asker, Duration::from_secs(20));
            job.join().unwrap();
            answer.map_err(|error| error.kind())
        };
        use std::io::Write as _;
        assert_eq!(
            read(|mut job| job.write_all(b"fine\nmore").unwrap()),
            Ok("fine\n".into())
        );
        assert_eq!(read(drop), Ok(String::new()));
        let endless = read(|mut job| while job.write_all(&[b'x'; 1 << 16]).is_ok() {});
        assert_eq!(endless, Err(io::ErrorKind::InvalidData));
        let (mut job, asker) = UnixStream::pair().unwrap();
        job.write_all(b"no end").unwrap();
        let late = read_answer(asker, within).map_err(|error| error.kind());
        assert_eq!(late, Err(io::ErrorKind::WouldBlock));
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
        // Also ends copies of the sockets, which another test's child has until it executes its program.
        for listener in [first, second] {
            rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        }
        let gone = connect(&path).unwrap_err();
        assert!(matches!(gone, ControlError::Call { .. }), "{gone}");
        listen(&path, false).unwrap();
    }

    #[test]
    fn a_process_that_accepts_nothing_is_not_waited_for_for_ever() {
        let dir = folder();
        let path = dir.path().join("control");
        let listener = listen(&path, false).unwrap();
        // One more than the length of the queue fits.
        let waiting: Vec<_> = std::iter::from_fn(|| connect(&path).ok()).collect();
        assert_eq!(waiting.len(), BACKLOG as usize + 1);
        let error = connect(&path).unwrap_err();
        assert!(error.has_timed_out() && !error.is_absent(), "{error}");
        let taken = listen(&path, false).unwrap_err();
        assert!(matches!(taken, ControlError::Taken(_)), "{taken}");
        listener.accept().unwrap();
        connect(&path).unwrap();
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

    #[test]
    fn a_user_who_may_not_connect_is_not_told_that_no_process_listens() {
        let dir = folder();
        let path = dir.path().join("control");
        let absent = connect(&path).unwrap_err();
        assert!(absent.is_absent(), "{absent}");
        let listener = listen(&path, false).unwrap();
        for others in [0o700, 0o755] {
            let mode = std::fs::Permissions::from_mode(others);
            std::fs::set_permissions(dir.path(), mode).unwrap();
            let denied = as_stranger(|| connect(&path).unwrap_err());
            assert!(!denied.is_absent(), "{denied}");
            assert!(denied.to_string().contains("only root"), "{denied}");
        }
        drop(listener);
        let absent = connect(&path).unwrap_err();
        assert!(absent.is_absent(), "{absent}");
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
    fn a_socket_that_a_stranger_has_placed_is_neither_replaced_nor_asked() {
        let dir = folder();
        let path = dir.path().join("control");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        let squatter = as_stranger(|| UnixListener::bind(&path).unwrap());
        let is_strangers = |said: ControlError| {
            let stranger = 54_321;
            let is_it = matches!(said, ControlError::Strangers { owner, .. } if owner == stranger);
            assert!(is_it, "{said}");
        };
        is_strangers(connect_to_owner(&path).unwrap_err());
        is_strangers(listen(&path, true).unwrap_err());
        // Nobody answers any more: the file is the stranger's still.
        drop(squatter);
        is_strangers(listen(&path, false).unwrap_err());
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().uid(), 54_321);
        // Nobody else can place sockets now: it is one that was left behind.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let _listener = listen(&path, false).unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().uid(), 0);
    }

    #[test]
    fn a_strangers_own_directory_in_an_open_one_is_refused_by_both_sides() {
        let dir = folder();
        let open = std::fs::Permissions::from_mode(0o1777);
        std::fs::set_permissions(dir.path(), open).unwrap();
        let strange = dir.path().join("strange");
        let path = strange.join("control");
        let _squatter = as_stranger(|| {
            std::fs::create_dir(&strange).unwrap();
            UnixListener::bind(&path).unwrap()
        });
        // A directory of root's, too, can be moved with the one above it; and a link changes nothing.
        let below = strange.join("below");
        std::fs::create_dir(&below).unwrap();
        let _own = UnixListener::bind(below.join("control")).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&strange, &link).unwrap();
        for path in [path, below.join("control"), link.join("control")] {
            for said in [
                connect(&path).unwrap_err(),
                connect_to_owner(&path).unwrap_err(),
                listen(&path, true).unwrap_err(),
            ] {
                let is_it = matches!(&said, ControlError::Directory { directory, owner: 54_321, .. } if *directory == strange);
                assert!(is_it, "{said}");
            }
        }
        // One that root has given away is no stranger's work.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        connect_to_owner(&strange.join("control")).unwrap();
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
