//! Makes changes and undoes them: buffers by borrowing their sockets, and the kernel's maxima. No policy is here.

mod bpf_iter;
mod socket;
pub(crate) mod undo;
mod unowned;

use std::io;

use taut_observe::namespaces::Namespace;
use taut_sys::Errno;
use taut_sys::netns::NetnsError;
use taut_sys::pidfd_socket::PidfdSocket;

use self::bpf_iter::Inside;
use self::socket::{Holders, bytes, is_fixed, set};
pub use self::undo::Undo;
use self::undo::{Spaces, undo_buffer, undo_setting};
pub use self::unowned::Unowned;
pub(crate) use self::unowned::most;
use crate::demand::Direction;
use crate::journal::{Entry, Journal, Thing, Value};
use crate::profile::undo as profile;
use crate::routes::message::{Name, Obstacle};
use crate::routes::table::{ROUTES, undo_routes};
pub use crate::sysctl::maxima;
use crate::sysctl::{self, read, write};

/// Settings of a namespace of which it is said that they were not undone; of more it is only said how many.
const TOLD: usize = 8;

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
    #[error("{name}, namespace {netns}: {error}")]
    Setting {
        /// Which, below /proc/sys.
        name: String,
        /// Where.
        netns: String,
        /// What.
        error: io::Error,
    },
    /// Of all routes.
    #[error("routes of namespace {netns}: {error}{}", hint_of_routes(*error))]
    Routes {
        /// Where.
        netns: String,
        /// What.
        error: Errno,
    },
    /// The route's.
    #[error("route {route}: {error}{}", hint_of_route(*error))]
    Route {
        /// Which.
        route: Name,
        /// What.
        error: Errno,
    },
    /// It is not replaced.
    #[error("route {route}: {obstacle}")]
    Left {
        /// Which.
        route: Name,
        /// Why.
        obstacle: Obstacle,
    },
    /// The kernel took it, and changed nothing, or something else.
    #[error("route {route}: the kernel has not made it what it was told to")]
    NotTaken {
        /// Which.
        route: Name,
    },
    /// Others came and went while they were listed.
    #[error("routes of namespace {netns}: they change faster than they can be listed")]
    Unsteady {
        /// Where.
        netns: String,
    },
    /// They are not looked at.
    #[error(
        "routes of namespace {netns}: more than {ROUTES} of them are of the destinations that were asked for: all are left as they are"
    )]
    TooMany {
        /// Where.
        netns: String,
    },
    /// Somebody else's was replaced, and is not what it was.
    #[error(
        "route {route}: somebody changed it at the same moment, and what he made may not be back as it was ({why}): look at it"
    )]
    NotBack {
        /// Which.
        route: Name,
        /// Why.
        why: String,
    },
    /// What was done to all of its namespace stays for now.
    #[error("route {route}: {why}")]
    NotUndone {
        /// Which.
        route: Name,
        /// Why.
        why: String,
    },
    /// Its namespace is not found, and may be there.
    #[error(
        "not all namespaces could be looked into, and the one with cookie {cookie} may be among them"
    )]
    Elsewhere {
        /// Which.
        cookie: u64,
    },
    /// The namespace's.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// A program in the kernel, for sockets that nobody is known to have.
    #[error("its socket, which nobody is known to have, cannot be set from inside the kernel: {0}")]
    Inside(String),
    /// It cannot be written down, and so is not made.
    #[error("the journal cannot be written, so that nothing is changed: {0}")]
    Journal(io::Error),
}

/// Makes changes, each after it is written down.
#[derive(Debug)]
pub struct Actuators {
    pub(crate) journal: Journal,
    holders: Holders,
    /// Loaded when it is first needed.
    inside: Option<Inside>,
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

fn hint_of_route(error: Errno) -> &'static str {
    match error {
        Errno::PERM => " (run this as root: CAP_NET_ADMIN)",
        Errno::NETDOWN | Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::INVAL | Errno::NODEV => {
            " (what it leads to is down, or not to be reached: the kernel takes no such route, and it stays as it is)"
        }
        Errno::BUSY => " (somebody else changes it all the time)",
        _ => "",
    }
}

fn hint_of_routes(error: Errno) -> &'static str {
    match error {
        Errno::TIMEDOUT => " (to list them takes too long)",
        _ => "",
    }
}

/// The name of the kernel's bounds of buffers in this direction, as sysctl(8) has it.
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
        Self {
            journal,
            holders: Holders::default(),
            inside: None,
        }
    }

    /// For what is changed in another file.
    pub(crate) fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// What was changed and not undone.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Others may have opened, closed and passed on sockets since.
    pub fn begin(&mut self) {
        self.holders.begin();
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
        self.change(socket, direction, |from| to.max(from), false)
    }

    /// This buffer is to be so large, with overhead, and the kernel sizes it no more.
    ///
    /// # Errors
    /// [`ActuateError`].
    pub fn size(
        &mut self,
        socket: &Socket,
        direction: Direction,
        to: u32,
    ) -> Result<Made, ActuateError> {
        self.change(socket, direction, |_| to, true)
    }

    /// What it is to be may depend on what it is.
    fn change(
        &mut self,
        socket: &Socket,
        direction: Direction,
        to: impl FnOnce(u32) -> u32,
        fixed: bool,
    ) -> Result<Made, ActuateError> {
        let failed = |error| ActuateError::Socket {
            pid: socket.pid,
            error,
        };
        let Some(borrowed) = self.holders.borrow(socket).map_err(failed)? else {
            return Ok(Made::Gone);
        };
        let buffers = borrowed.buffers().map_err(failed)?;
        let (from, was_fixed) = (bytes(&buffers, direction), is_fixed(&buffers, direction));
        let to = to(from);
        self.note_buffer(socket, direction, (from, was_fixed), (to, fixed))?;
        set(&borrowed, &buffers, direction, to, fixed).map_err(failed)?;
        // The window was bounded by the buffer that it began with, and is until the kernel makes that larger.
        if direction == Direction::Receive && to > from {
            widen(&borrowed, to).map_err(failed)?;
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
        let name = sysctl::of(direction);
        let Some((cookie, before)) = read(namespace, name)? else {
            return Ok(false);
        };
        let after = with_third(&before, to);
        let thing = maximum(cookie, direction);
        self.note(thing, Value::Text(before), Value::Text(after.clone()))?;
        write(namespace, cookie, name, &after)
    }

    /// A namespace began with a maximum that another had been given: at the end it has `original`. `false`: it is gone.
    ///
    /// # Errors
    /// [`ActuateError`].
    pub fn adopt(
        &mut self,
        namespace: &Namespace,
        direction: Direction,
        original: u64,
    ) -> Result<bool, ActuateError> {
        let name = sysctl::of(direction);
        let Some((cookie, now)) = read(namespace, name)? else {
            return Ok(false);
        };
        let before = with_third(&now, original);
        self.note(
            maximum(cookie, direction),
            Value::Text(before),
            Value::Text(now),
        )?;
        Ok(true)
    }

    /// A buffer, and whether it is fixed: as it is, and as it is to be.
    fn note_buffer(
        &mut self,
        socket: &Socket,
        direction: Direction,
        (from, was_fixed): (u32, bool),
        (to, fixed): (u32, bool),
    ) -> Result<(), ActuateError> {
        let thing = buffer(socket.cookie, direction);
        let is_anew = self
            .journal
            .entry(&thing)
            .is_some_and(|entry| !undo::is_as_made(entry, from, was_fixed));
        if is_anew {
            // Its application has set it since: that is what it goes back to.
            self.journal.undone(&thing).map_err(ActuateError::Journal)?;
        }
        let of = |bytes, is_fixed| Value::Buffer {
            bytes,
            is_fixed,
            owner: (socket.pid, socket.inode),
        };
        self.note(thing, of(from, was_fixed), of(to, fixed))
    }

    pub(crate) fn note(
        &mut self,
        thing: Thing,
        before: Value,
        after: Value,
    ) -> Result<(), ActuateError> {
        let entry = Entry {
            thing,
            before,
            after,
            earlier: None,
            largest: 0,
        };
        self.journal.note(entry).map_err(ActuateError::Journal)
    }

    /// Undoes what was done to one buffer; one to which nothing was done is as it was.
    ///
    /// # Errors
    /// [`ActuateError`]: it stays in the journal.
    pub fn restore(&mut self, cookie: u64, direction: Direction) -> Result<Undo, ActuateError> {
        let thing = buffer(cookie, direction);
        let Some(entry) = self.journal.entry(&thing).cloned() else {
            return Ok(Undo::Restored);
        };
        let undo = undo_buffer(&mut self.holders, cookie, direction, &entry)?;
        // One that nobody has may be there: at the end it is looked for in the kernel.
        if undo != Undo::Gone {
            self.journal.undone(&thing).map_err(ActuateError::Journal)?;
        }
        Ok(undo)
    }

    /// Undoes all that is in the journal. What fails stays there.
    pub fn undo(&mut self) -> Undone {
        let mut undone = Undone::default();
        self.begin();
        let entries: Vec<Entry> = self.journal.entries().cloned().collect();
        let is_setting = |entry: &Entry| {
            entry.thing.setting().is_some()
                || matches!(entry.thing, Thing::Setting(..) | Thing::Route { .. })
        };
        // A machine may have thousands of namespaces: they are looked through once, and only if it is for something.
        let spaces = entries.iter().any(is_setting).then(Spaces::now);
        // Of a namespace those are undone together, because each list of routes has all of them; after what takes no time.
        let (routes, mut entries): (Vec<_>, Vec<_>) = entries
            .into_iter()
            .partition(|entry| matches!(entry.thing, Thing::Route { .. }));
        if let Some(spaces) = &spaces {
            order(&mut entries, spaces);
        }
        let mut deadline = profile::Deadline::new();
        let mut left = Vec::new();
        let mut rest = entries.into_iter().peekable();
        while let Some(entry) = rest.next() {
            if let (Thing::Setting(netns, _), Some(spaces)) = (&entry.thing, &spaces) {
                let netns = *netns;
                let mut visit = vec![entry];
                let is_one_visit =
                    |next: &Entry| matches!(next.thing, Thing::Setting(of, _) if of == netns);
                while let Some(next) = rest.next_if(is_one_visit) {
                    visit.push(next);
                }
                self.undo_profile(spaces, netns, &visit, &mut deadline, &mut undone);
                continue;
            }
            let undo = match (&entry.thing, entry.thing.setting(), &spaces) {
                (Thing::SendBuffer(cookie), ..) => {
                    undo_buffer(&mut self.holders, *cookie, Direction::Send, &entry)
                }
                (Thing::ReceiveBuffer(cookie), ..) => {
                    undo_buffer(&mut self.holders, *cookie, Direction::Receive, &entry)
                }
                (_, Some((netns, name)), Some(spaces)) => undo_setting(spaces, netns, name, &entry),
                _ => {
                    tracing::warn!(thing = ?entry.thing, "not undone: this program sets no such thing");
                    undone.failed += 1;
                    continue;
                }
            };
            if entry.thing.is_buffer() && matches!(undo, Ok(Undo::Gone)) {
                // Nobody has it, which is not to say that it is not there.
                left.push(entry);
                continue;
            }
            self.count(undo, &entry, &mut undone);
        }
        if let Some(spaces) = &spaces {
            for (entry, undo) in undo_routes(spaces, routes) {
                self.count(undo, &entry, &mut undone);
            }
        }
        if !left.is_empty() {
            for (entry, undo) in left.iter().zip(self.undo_unowned(&left)) {
                self.count(undo, entry, &mut undone);
            }
        }
        undone
    }

    /// What is of one namespace.
    pub(crate) fn undo_profile(
        &mut self,
        spaces: &Spaces,
        netns: u64,
        entries: &[Entry],
        deadline: &mut profile::Deadline,
        undone: &mut Undone,
    ) {
        let mut untold = 0_usize;
        let mut failed = 0_usize;
        for (entry, undo) in entries
            .iter()
            .zip(profile::undo(spaces, netns, entries, deadline))
        {
            failed += usize::from(undo.is_err());
            match undo.is_err() && failed > TOLD {
                true => untold += 1,
                false => self.count(undo, entry, undone),
            }
        }
        undone.failed += untold;
        if untold > 0 {
            tracing::warn!(
                netns,
                untold,
                "not undone: more settings of this namespace, which stay in the journal"
            );
        }
    }

    fn count(&mut self, undo: Result<Undo, ActuateError>, entry: &Entry, undone: &mut Undone) {
        let count = match undo {
            Ok(Undo::Restored) => &mut undone.restored,
            Ok(Undo::Gone) => &mut undone.gone,
            Ok(Undo::Others) => &mut undone.others,
            Err(error) => {
                tracing::warn!(%error, thing = ?entry.thing, "not undone");
                undone.failed += 1;
                return;
            }
        };
        *count += 1;
        if let Err(error) = self.journal.undone(&entry.thing) {
            tracing::warn!(%error, "undone, and the journal does not say so");
        }
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

/// The widest window is so many bytes at least. It is never made narrower: the kernel widens it only with a buffer that becomes larger than it ever was.
fn widen(borrowed: &PidfdSocket, to: u32) -> Result<(), Errno> {
    match borrowed.window_clamp()? < to {
        true => borrowed.set_window_clamp(to),
        false => Ok(()),
    }
}

/// What is undone first: what belongs to namespaces in their turn, what belongs to one together, and buffers after those of the own namespace.
pub(crate) fn order(entries: &mut [Entry], spaces: &Spaces) {
    entries.sort_by_cached_key(|entry| {
        let is_setting = matches!(entry.thing, Thing::Setting(..));
        match entry.thing.netns() {
            Some(cookie) => (spaces.turn(cookie), cookie, is_setting),
            None => (0, u64::MAX, false),
        }
    });
}

fn buffer(cookie: u64, direction: Direction) -> Thing {
    match direction {
        Direction::Send => Thing::SendBuffer(cookie),
        Direction::Receive => Thing::ReceiveBuffer(cookie),
    }
}

/// The figures, with another third.
fn with_third(figures: &str, third: u64) -> String {
    let mut figures: Vec<String> = figures.split_whitespace().map(str::to_owned).collect();
    if let Some(most) = figures.get_mut(2) {
        *most = third.min(i32::MAX as u64).to_string();
    }
    figures.join("\t")
}

fn maximum(cookie: u64, direction: Direction) -> Thing {
    match direction {
        Direction::Send => Thing::SendMaximum(cookie),
        Direction::Receive => Thing::ReceiveMaximum(cookie),
    }
}

#[cfg(test)]
mod tests;
