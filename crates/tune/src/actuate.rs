//! Makes changes and undoes them: buffers by borrowing their sockets, and the kernel's maxima. No policy is here.

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::path::Path;

use taut_observe::namespaces::{self, Namespace};
use taut_sys::Errno;
use taut_sys::borrow::{Borrowed, Buffers, Lender};
use taut_sys::netns::{self, NetnsError};

use crate::demand::Direction;
use crate::journal::{Entry, Journal, Thing, Value};

/// Descriptors of a process that are looked at for one socket; one that has more is not looked through.
const DESCRIPTORS: usize = 1 << 20;

/// How often namespaces are looked through, while some vanish meanwhile.
const TRIES: usize = 3;

/// A socket, and who has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The kernel's name of it.
    pub cookie: u64,
    /// Its inode.
    pub inode: u32,
    /// A process that has it.
    pub pid: u32,
}

/// What came of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// The buffer was so large, and is.
    Set {
        /// Before, in bytes with overhead.
        from: u32,
        /// After.
        to: u32,
    },
    /// It is not there any more: its process has ended, or has closed it.
    Gone,
}

/// What came of undoing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// As it was.
    pub restored: usize,
    /// Ended meanwhile, or its namespace has.
    pub gone: usize,
    /// Somebody else has changed it since, and it is left as it is.
    pub others: usize,
    /// It could not be undone, and stays in the journal.
    pub failed: usize,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum ActuateError {
    /// The socket's.
    #[error("process {pid}: its socket cannot be set: {error}{}", hint(*error))]
    Socket {
        /// Whose.
        pid: u32,
        /// What.
        error: Errno,
    },
    /// The setting's.
    #[error("{}, namespace {netns}: {error}", setting(*direction))]
    Setting {
        /// Which.
        direction: Direction,
        /// Where.
        netns: String,
        /// What.
        error: io::Error,
    },
    /// The namespace's.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// It cannot be written down, and so is not made.
    #[error("the journal cannot be written, so that nothing is changed: {0}")]
    Journal(io::Error),
}

/// Makes changes, each after it is written down.
#[derive(Debug)]
pub struct Actuators {
    journal: Journal,
}

fn hint(error: Errno) -> &'static str {
    match error {
        Errno::PERM | Errno::ACCESS => " (run this as root: CAP_SYS_PTRACE and CAP_NET_ADMIN)",
        Errno::NOPROTOOPT => " (Linux 5.14 can)",
        Errno::NOSYS => " (Linux 5.6 can)",
        Errno::MFILE => " (it has more descriptors than are looked through)",
        _ => "",
    }
}

/// The name of the kernel's bounds of buffers in this direction.
pub fn setting(direction: Direction) -> &'static str {
    match direction {
        Direction::Send => "net.ipv4.tcp_wmem",
        Direction::Receive => "net.ipv4.tcp_rmem",
    }
}

// === impl Actuators ===

impl Actuators {
    /// Writes into this journal.
    pub fn new(journal: Journal) -> Self {
        Self { journal }
    }

    /// What was changed and not undone.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The kernel is to size this buffer again, from so many bytes on, with overhead; not from less than it is.
    ///
    /// # Errors
    /// [`ActuateError`].
    pub fn free(
        &mut self,
        socket: &Socket,
        direction: Direction,
        to: u32,
    ) -> Result<Made, ActuateError> {
        let failed = |error| ActuateError::Socket {
            pid: socket.pid,
            error,
        };
        let Some(borrowed) = borrow(socket).map_err(failed)? else {
            return Ok(Made::Gone);
        };
        let buffers = borrowed.buffers().map_err(failed)?;
        let from = bytes(&buffers, direction);
        let owner = (socket.pid, socket.inode);
        let of = |bytes, is_fixed| Value::Buffer {
            bytes,
            is_fixed,
            owner,
        };
        let to = to.max(from);
        let before = of(from, is_fixed(&buffers, direction));
        self.note(buffer(socket.cookie, direction), before, of(to, false))?;
        set(&borrowed, &buffers, direction, to, false).map_err(failed)?;
        // The window was bounded by the buffer that it began with, and is until the kernel makes that larger.
        if direction == Direction::Receive && to > from {
            borrowed.set_window_clamp(to).map_err(failed)?;
        }
        let now = borrowed.buffers().map_err(failed)?;
        Ok(Made::Set {
            from,
            to: bytes(&now, direction),
        })
    }

    /// Sets a namespace's maximum. `false`: the namespace is gone.
    ///
    /// # Errors
    /// [`ActuateError`].
    pub fn maximum(
        &mut self,
        namespace: &Namespace,
        direction: Direction,
        to: u64,
    ) -> Result<bool, ActuateError> {
        let Some((cookie, before)) = read(namespace, direction)? else {
            return Ok(false);
        };
        let mut figures: Vec<String> = before.split_whitespace().map(str::to_owned).collect();
        if let Some(most) = figures.get_mut(2) {
            *most = to.min(i32::MAX as u64).to_string();
        }
        let after = figures.join("\t");
        let thing = maximum(cookie, direction);
        self.note(thing, Value::Text(before), Value::Text(after.clone()))?;
        write(namespace, direction, &after)
    }

    fn note(&mut self, thing: Thing, before: Value, after: Value) -> Result<(), ActuateError> {
        let entry = Entry {
            thing,
            before,
            after,
            earlier: None,
        };
        self.journal.note(entry).map_err(ActuateError::Journal)
    }

    /// Undoes all that is in the journal. What fails stays there.
    pub fn undo(&mut self) -> Undone {
        let mut undone = Undone::default();
        let entries: Vec<Entry> = self.journal.entries().cloned().collect();
        let is_maximum = |entry: &Entry| {
            matches!(
                entry.thing,
                Thing::SendMaximum(_) | Thing::ReceiveMaximum(_)
            )
        };
        // A machine may have thousands of namespaces: they are looked through once, and only if it is for something.
        let spaces = entries.iter().any(is_maximum).then(Spaces::now);
        for entry in entries {
            let undo = match (&entry.thing, &spaces) {
                (Thing::SendMaximum(cookie), Some(spaces)) => {
                    undo_maximum(spaces, *cookie, Direction::Send, &entry)
                }
                (Thing::ReceiveMaximum(cookie), Some(spaces)) => {
                    undo_maximum(spaces, *cookie, Direction::Receive, &entry)
                }
                (Thing::SendBuffer(cookie), _) => undo_buffer(*cookie, Direction::Send, &entry),
                (Thing::ReceiveBuffer(cookie), _) => {
                    undo_buffer(*cookie, Direction::Receive, &entry)
                }
                (Thing::SendMaximum(_) | Thing::ReceiveMaximum(_), None) => continue,
            };
            let count = match undo {
                Ok(Undo::Restored) => &mut undone.restored,
                Ok(Undo::Gone) => &mut undone.gone,
                Ok(Undo::Others) => &mut undone.others,
                Err(error) => {
                    tracing::warn!(%error, thing = ?entry.thing, "not undone");
                    undone.failed += 1;
                    continue;
                }
            };
            *count += 1;
            if let Err(error) = self.journal.undone(&entry.thing) {
                tracing::warn!(%error, "undone, and the journal does not say so");
            }
        }
        undone
    }

    /// The connection has ended: nothing is to be undone.
    pub fn forget(&mut self, cookie: u64) {
        for direction in [Direction::Send, Direction::Receive] {
            if let Err(error) = self.journal.undone(&buffer(cookie, direction)) {
                tracing::warn!(%error, "the journal goes on about a connection that has ended");
            }
        }
    }

    /// Lets go of the journal, whose file is taken away when nothing is left in it.
    pub fn close(self) {
        if let Err(error) = self.journal.close() {
            tracing::warn!(%error, "the journal's file stays");
        }
    }
}

/// What came of undoing one thing.
#[derive(Debug, PartialEq, Eq)]
enum Undo {
    Restored,
    Gone,
    Others,
}

/// The namespaces that there are, by cookie.
struct Spaces {
    by_cookie: HashMap<u64, Namespace>,
    /// Not all of them could be looked into.
    is_partial: bool,
}

// === impl Spaces ===

impl Spaces {
    fn now() -> Self {
        let mut spaces = Self {
            by_cookie: HashMap::new(),
            is_partial: true,
        };
        // One is known by a process that may have ended, while another is still in it: then it is found by that.
        for _ in 0..TRIES {
            let Ok(found) = namespaces::all() else {
                return spaces;
            };
            // Where a process may not be looked into, nothing was changed either, or it has a name.
            spaces.is_partial = found.left_out > 0;
            let mut vanished = false;
            for namespace in found.namespaces {
                match namespace.run(netns::cookie) {
                    Ok(Some(Ok(cookie))) => {
                        spaces.by_cookie.insert(cookie, namespace);
                    }
                    Ok(None) => vanished = true,
                    Ok(Some(Err(error))) => {
                        tracing::warn!(%error, "a namespace's cookie is not known");
                        spaces.is_partial = true;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a namespace cannot be entered");
                        spaces.is_partial = true;
                    }
                }
            }
            if !vanished {
                break;
            }
        }
        spaces
    }
}

fn undo_maximum(
    spaces: &Spaces,
    cookie: u64,
    direction: Direction,
    entry: &Entry,
) -> Result<Undo, ActuateError> {
    let failed = |error: &str| ActuateError::Setting {
        direction,
        netns: format!("with cookie {cookie}"),
        error: io::Error::other(error),
    };
    let Some(namespace) = spaces.by_cookie.get(&cookie) else {
        return match spaces.is_partial {
            true => Err(failed("not all namespaces could be looked into")),
            false => Ok(Undo::Gone),
        };
    };
    let Value::Text(before) = &entry.before else {
        return Err(failed("the journal does not say what it was"));
    };
    let Some((_, now)) = read(namespace, direction)? else {
        return Err(failed("it cannot be entered any more"));
    };
    let is = |value: &Value| matches!(value, Value::Text(text) if same(text, &now));
    if same(before, &now) {
        // It was written down, and its writer ended before it was made.
        return Ok(Undo::Restored);
    }
    if !is(&entry.after) && !entry.earlier.as_ref().is_some_and(is) {
        return Ok(Undo::Others);
    }
    match write(namespace, direction, before)? {
        true => Ok(Undo::Restored),
        false => Err(failed("it cannot be entered any more")),
    }
}

fn undo_buffer(cookie: u64, direction: Direction, entry: &Entry) -> Result<Undo, ActuateError> {
    let (
        &Value::Buffer {
            bytes: size,
            is_fixed: was_fixed,
            owner: (pid, inode),
        },
        &Value::Buffer {
            is_fixed: made_fixed,
            ..
        },
    ) = (&entry.before, &entry.after)
    else {
        return Err(ActuateError::Socket {
            pid: 0,
            error: Errno::INVAL,
        });
    };
    let failed = |error| ActuateError::Socket { pid, error };
    let socket = Socket { cookie, inode, pid };
    let borrowed = match borrow(&socket).map_err(failed)? {
        Some(borrowed) => borrowed,
        // It may have been passed on.
        None => match holder(&socket).map_err(failed)? {
            Some(borrowed) => borrowed,
            None => return Ok(Undo::Gone),
        },
    };
    let buffers = borrowed.buffers().map_err(failed)?;
    // Its application has fixed it anew.
    if is_fixed(&buffers, direction) != made_fixed {
        return Ok(Undo::Others);
    }
    // What is in it stays; what comes beyond it the peer sends again.
    set(&borrowed, &buffers, direction, size, was_fixed).map_err(failed)?;
    Ok(Undo::Restored)
}

fn set(
    borrowed: &Borrowed,
    now: &Buffers,
    direction: Direction,
    to: u32,
    fixed: bool,
) -> Result<(), Errno> {
    if to != bytes(now, direction) {
        match direction {
            Direction::Send => borrowed.set_send(to)?,
            Direction::Receive => borrowed.set_receive(to)?,
        }
    }
    // Of the other direction it stays.
    let mut locks = now.locks;
    match direction {
        Direction::Send => locks.send = fixed,
        Direction::Receive => locks.receive = fixed,
    }
    borrowed.set_locks(locks)
}

fn buffer(cookie: u64, direction: Direction) -> Thing {
    match direction {
        Direction::Send => Thing::SendBuffer(cookie),
        Direction::Receive => Thing::ReceiveBuffer(cookie),
    }
}

fn maximum(cookie: u64, direction: Direction) -> Thing {
    match direction {
        Direction::Send => Thing::SendMaximum(cookie),
        Direction::Receive => Thing::ReceiveMaximum(cookie),
    }
}

fn bytes(buffers: &Buffers, direction: Direction) -> u32 {
    match direction {
        Direction::Send => buffers.send,
        Direction::Receive => buffers.receive,
    }
}

fn is_fixed(buffers: &Buffers, direction: Direction) -> bool {
    match direction {
        Direction::Send => buffers.locks.send,
        Direction::Receive => buffers.locks.receive,
    }
}

/// The socket; `None`: its process has none like it, or is not there.
fn borrow(socket: &Socket) -> Result<Option<Borrowed>, Errno> {
    let lender = match Lender::of(socket.pid) {
        Err(Errno::SRCH) => return Ok(None),
        other => other?,
    };
    for descriptor in descriptors(socket)? {
        match lender.lend(descriptor, socket.cookie) {
            Ok(Some(borrowed)) => return Ok(Some(borrowed)),
            // It is another by now; the socket may be found under another number.
            Ok(None) => {}
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Numbers under which the process has a socket of this inode.
fn descriptors(socket: &Socket) -> Result<Vec<RawFd>, Errno> {
    let entries = match fs::read_dir(format!("/proc/{}/fd", socket.pid)) {
        // It has ended.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
        Ok(entries) => entries,
    };
    let target = format!("socket:[{}]", socket.inode);
    let mut found = Vec::new();
    for (count, entry) in entries.flatten().enumerate() {
        if count == DESCRIPTORS {
            return Err(Errno::MFILE);
        }
        let is_it = fs::read_link(entry.path()).is_ok_and(|link| link == Path::new(&target));
        let number = || entry.file_name().to_str()?.parse::<RawFd>().ok();
        found.extend(is_it.then(number).flatten());
    }
    Ok(found)
}

/// The socket, of whoever has it now.
fn holder(socket: &Socket) -> Result<Option<Borrowed>, Errno> {
    let entries =
        fs::read_dir("/proc").map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    let pids = entries.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut last = Ok(None);
    for pid in pids.filter(|pid| *pid != socket.pid) {
        match borrow(&Socket { pid, ..*socket }) {
            Ok(None) => {}
            Ok(found) => return Ok(found),
            // Somebody else may have it, too.
            Err(error) => last = Err(error),
        }
    }
    last
}

/// Whether two texts of a setting say the same.
fn same(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}

fn path(direction: Direction) -> &'static str {
    match direction {
        Direction::Send => "/proc/sys/net/ipv4/tcp_wmem",
        Direction::Receive => "/proc/sys/net/ipv4/tcp_rmem",
    }
}

/// The cookie of a namespace, and its setting; `None`: it is gone.
fn read(
    namespace: &Namespace,
    direction: Direction,
) -> Result<Option<(u64, String)>, ActuateError> {
    let read = || -> io::Result<_> { Ok((netns::cookie()?, fs::read_to_string(path(direction))?)) };
    let found = namespace.run(read)?;
    let found = found
        .transpose()
        .map_err(|e| failed(namespace, direction, e))?;
    Ok(found.map(|(cookie, text)| (cookie, text.trim_end().to_owned())))
}

fn write(namespace: &Namespace, direction: Direction, text: &str) -> Result<bool, ActuateError> {
    let written = namespace.run(|| fs::write(path(direction), text))?;
    let written = written
        .transpose()
        .map_err(|e| failed(namespace, direction, e))?;
    Ok(written.is_some())
}

fn failed(namespace: &Namespace, direction: Direction, error: io::Error) -> ActuateError {
    ActuateError::Setting {
        direction,
        netns: namespace.name.to_string(),
        error,
    }
}

/// The most that the kernel gives a buffer of this namespace, in either direction; `None`: it is gone.
///
/// # Errors
/// [`ActuateError`].
pub fn maxima(namespace: &Namespace) -> Result<Option<[(Direction, u64); 2]>, ActuateError> {
    let mut found = [(Direction::Send, 0), (Direction::Receive, 0)];
    for (direction, most) in &mut found {
        let Some((_, text)) = read(namespace, *direction)? else {
            return Ok(None);
        };
        let third = text
            .split_whitespace()
            .nth(2)
            .and_then(|word| word.parse().ok());
        *most = third.ok_or_else(|| {
            let error = io::Error::other(format!("{text:?} has no third figure"));
            failed(namespace, *direction, error)
        })?;
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd as _, AsRawFd as _};

    use rustix::net::sockopt;
    use taut_sys::borrow::Locks;

    use super::*;

    fn actuators() -> (Actuators, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(&dir.path().join("journal")).unwrap();
        (Actuators::new(journal), dir)
    }

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        (near, far)
    }

    fn socket(stream: &TcpStream) -> Socket {
        let inode = rustix::fs::fstat(stream).unwrap().st_ino;
        Socket {
            cookie: sockopt::socket_cookie(stream).unwrap(),
            inode: u32::try_from(inode).unwrap(),
            pid: std::process::id(),
        }
    }

    fn buffers(stream: &TcpStream) -> Buffers {
        let own = Lender::of(std::process::id()).unwrap();
        let cookie = sockopt::socket_cookie(stream.as_fd()).unwrap();
        let lent = own.lend(stream.as_raw_fd(), cookie).unwrap().unwrap();
        lent.buffers().unwrap()
    }

    #[test]
    fn a_fixed_buffer_is_freed_and_fixed_again() {
        let (near, _far) = connection();
        sockopt::set_socket_recv_buffer_size(&near, 50_000).unwrap();
        sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
        let fixed = buffers(&near);
        let (mut actuators, _dir) = actuators();
        let made = actuators
            .free(&socket(&near), Direction::Receive, 400_000)
            .unwrap();
        assert_eq!(
            made,
            Made::Set {
                from: 100_000,
                to: 400_000
            }
        );
        let free = buffers(&near);
        assert!(!free.locks.receive && free.locks.send, "{free:?}");
        assert_eq!((free.receive, free.send), (400_000, fixed.send));
        let restored = Undone {
            restored: 1,
            ..Undone::default()
        };
        assert_eq!(actuators.undo(), restored);
        assert_eq!(buffers(&near), fixed);
        assert_eq!(actuators.journal().entries().count(), 0);
    }

    #[test]
    fn a_buffer_is_never_freed_to_less_than_it_has() {
        let (near, _far) = connection();
        sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
        let (mut actuators, _dir) = actuators();
        actuators
            .free(&socket(&near), Direction::Send, 10_000)
            .unwrap();
        let free = buffers(&near);
        assert_eq!((free.send, free.locks), (120_000, Locks::default()));
    }

    #[test]
    fn what_a_killed_process_changed_is_undone_by_the_next() {
        let (near, _far) = connection();
        sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
        let fixed = buffers(&near);
        let (mut first, dir) = actuators();
        first
            .free(&socket(&near), Direction::Send, 200_000)
            .unwrap();
        first
            .free(&socket(&near), Direction::Send, 300_000)
            .unwrap();
        drop(first);
        let journal = Journal::open(&dir.path().join("journal")).unwrap();
        let mut next = Actuators::new(journal);
        assert_eq!(next.undo().restored, 1);
        assert_eq!(buffers(&near), fixed);
        next.close();
        assert!(!dir.path().join("journal").exists());
    }

    #[test]
    fn what_its_application_has_fixed_since_is_left_as_it_is() {
        let (near, _far) = connection();
        sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
        let (mut actuators, _dir) = actuators();
        actuators
            .free(&socket(&near), Direction::Send, 200_000)
            .unwrap();
        sockopt::set_socket_send_buffer_size(&near, 70_000).unwrap();
        let anew = buffers(&near);
        assert_eq!(actuators.undo().others, 1);
        assert_eq!(buffers(&near), anew);
    }

    #[test]
    fn what_is_gone_is_neither_changed_nor_undone() {
        let (near, _far) = connection();
        let of = socket(&near);
        let (mut actuators, _dir) = actuators();
        actuators.free(&of, Direction::Send, 20_000).unwrap();
        drop(near);
        // What was borrowed is this process's, too, until it is given back.
        while !descriptors(&of).unwrap().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(
            actuators.free(&of, Direction::Send, 30_000).unwrap(),
            Made::Gone
        );
        assert_eq!(actuators.undo().gone, 1);
        // A process that is not there.
        let nobody = Socket {
            pid: 4_194_305,
            ..of
        };
        assert_eq!(
            actuators.free(&nobody, Direction::Send, 1).unwrap(),
            Made::Gone
        );
    }

    #[test]
    fn a_socket_that_was_passed_on_is_found_at_who_has_it() {
        let (near, _far) = connection();
        sockopt::set_socket_send_buffer_size(&near, 60_000).unwrap();
        let fixed = buffers(&near);
        let (mut actuators, _dir) = actuators();
        actuators
            .free(&socket(&near), Direction::Send, 200_000)
            .unwrap();
        let mut entry = actuators.journal().entries().next().unwrap().clone();
        if let Value::Buffer { owner, .. } = &mut entry.before {
            owner.0 = 4_194_305;
        }
        let undone = undo_buffer(socket(&near).cookie, Direction::Send, &entry).unwrap();
        assert_eq!((undone, buffers(&near)), (Undo::Restored, fixed));
    }

    #[test]
    fn settings_are_compared_by_what_they_say() {
        assert!(same("4096\t16384\t4194304\n", "4096 16384 4194304"));
        assert!(!same("4096 16384", "4096 16384 1"));
    }
}
