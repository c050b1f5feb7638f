//! Makes and undoes changes: sizes of buffers, by borrowing their sockets, and the kernel's maxima.
//! Contains no policy.

mod bpf_iter;
mod error;
mod ownerless;
mod socket;
pub(crate) mod undo;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use taut_observe::namespaces::Namespace;
use taut_sys::Errno;
use taut_sys::pidfd_socket::PidfdSocket;

use self::bpf_iter::BufferIter;
pub use self::error::ActuateError;
pub use self::ownerless::OwnerlessBuffer;
pub(crate) use self::ownerless::max_size;
use self::socket::{SocketOwners, is_fixed, resize, size};
use self::undo::{undo_buffer, undo_maximum};
use crate::demand::Direction;
use crate::journal::{Entry, Journal, Target, Value};
use crate::namespaces::index::NamespaceIndex;
use crate::namespaces::lock::{LockChanges, TuningLock};
use crate::profile;
use crate::routes;
use crate::sysctl::{self, SysctlError};
use crate::undo::{UndoOutcome, UndoSummary};

/// The maximum number of settings of a namespace whose failed undo is logged one by one. Further
/// failures are only counted.
const MAX_LOGGED: usize = 8;

/// A socket, and a process that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The socket's cookie.
    pub cookie: u64,
    /// The socket's inode.
    pub inode: u32,
    /// The id of the process.
    pub pid: u32,
}

/// The outcome of changing a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferOutcome {
    /// The buffer has a new size, in bytes with overhead.
    Set {
        /// The old size.
        from: u32,
        /// The new size.
        to: u32,
    },
    /// The process has ended, or has closed the socket.
    Gone,
}

/// Writes each change to the journal, makes it, and can undo it.
#[derive(Debug)]
pub struct Actuators {
    journal: Journal,
    lock: TuningLock,
    owners: SocketOwners,
    /// The BPF iterator, loaded on first use.
    iter: Option<BufferIter>,
}

// === impl Actuators ===

impl Actuators {
    /// Returns actuators that write into this journal. `is_of_all`: they may change all namespaces,
    /// not only the one that this process was started for.
    pub fn new(journal: Journal, is_of_all: bool) -> Self {
        Self {
            journal,
            lock: TuningLock::new(is_of_all),
            owners: SocketOwners::default(),
            iter: None,
        }
    }

    pub(crate) fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// Returns the journal, which contains the changes to undo.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Takes the locks of the namespaces that no other process tunes.
    pub(crate) fn lock(&mut self, namespaces: &[Namespace]) -> LockChanges {
        self.lock.scan(namespaces)
    }

    /// Returns whether another process tunes the namespace with this name. Nothing may be changed
    /// there.
    pub(crate) fn is_foreign(&self, namespace: &str) -> bool {
        self.lock.is_foreign(namespace)
    }

    /// Begins a round. Processes may have opened, closed and passed on sockets since the last
    /// round.
    pub fn begin_round(&mut self) {
        self.owners.begin_round();
    }

    /// Unlocks a buffer, so that the kernel tunes it again, starting from this size in bytes with
    /// overhead, or from its present size if that is larger.
    ///
    /// # Errors
    /// [`ActuateError`].
    pub fn unlock(
        &mut self,
        socket: &Socket,
        direction: Direction,
        to: u32,
    ) -> Result<BufferOutcome, ActuateError> {
        self.change(socket, direction, |from| to.max(from), false)
    }

    /// Locks a buffer at this size, in bytes with overhead.
    ///
    /// # Errors
    /// [`ActuateError`].
    pub fn resize(
        &mut self,
        socket: &Socket,
        direction: Direction,
        to: u32,
    ) -> Result<BufferOutcome, ActuateError> {
        self.change(socket, direction, |_| to, true)
    }

    /// Changes a buffer. `to` computes the new size from the present size.
    fn change(
        &mut self,
        socket: &Socket,
        direction: Direction,
        to: impl FnOnce(u32) -> u32,
        fixed: bool,
    ) -> Result<BufferOutcome, ActuateError> {
        let failed = |error| ActuateError::Socket {
            pid: socket.pid,
            error,
        };
        let Some(borrowed) = self.owners.borrow(socket).map_err(failed)? else {
            return Ok(BufferOutcome::Gone);
        };
        let buffers = borrowed.buffers().map_err(failed)?;
        let (from, was_fixed) = (size(&buffers, direction), is_fixed(&buffers, direction));
        let to = to(from);
        self.note_buffer(socket, direction, (from, was_fixed), (to, fixed))?;
        resize(&borrowed, &buffers, direction, to, fixed).map_err(failed)?;
        // The initial buffer bounds the window, until the kernel itself enlarges the buffer.
        if direction == Direction::Receive && to > from {
            widen(&borrowed, to).map_err(failed)?;
        }
        let now = borrowed.buffers().map_err(failed)?;
        Ok(BufferOutcome::Set {
            from,
            to: size(&now, direction),
        })
    }

    /// Sets a namespace's maximum. Returns `false` if the namespace has ended.
    ///
    /// # Errors
    /// [`SysctlError`].
    pub fn set_maximum(
        &mut self,
        namespace: &Namespace,
        direction: Direction,
        to: u64,
    ) -> Result<bool, SysctlError> {
        let name = sysctl::buffer_limits(direction);
        let Some((cookie, before)) = sysctl::read(namespace, name)? else {
            return Ok(false);
        };
        let after = sysctl::with_maximum(&before, to);
        let target = Target::maximum(cookie, direction);
        let is_first = self.journal.entry(&target).is_none();
        let entry = Entry::new(
            target.clone(),
            Value::Text(before),
            Value::Text(after.clone()),
        );
        self.journal.note(entry)?;
        let written = sysctl::write(namespace, cookie, name, &after);
        // What could not be written has not changed, and nothing is to be undone.
        if written.is_err() && is_first {
            self.journal.undone(&target)?;
        }
        written
    }

    /// Records that a new namespace has inherited a maximum that was set in another namespace, and
    /// must get `original` at the end. Returns `false` if the namespace has ended.
    ///
    /// # Errors
    /// [`SysctlError`].
    pub fn adopt_maximum(
        &mut self,
        namespace: &Namespace,
        direction: Direction,
        original: u64,
    ) -> Result<bool, SysctlError> {
        let name = sysctl::buffer_limits(direction);
        let Some((cookie, now)) = sysctl::read(namespace, name)? else {
            return Ok(false);
        };
        let before = sysctl::with_maximum(&now, original);
        let target = Target::maximum(cookie, direction);
        let entry = Entry::new(target, Value::Text(before), Value::Text(now));
        self.journal.note(entry)?;
        Ok(true)
    }

    /// Records a change of a buffer's size and lock in the journal.
    fn note_buffer(
        &mut self,
        socket: &Socket,
        direction: Direction,
        (from, was_fixed): (u32, bool),
        (to, fixed): (u32, bool),
    ) -> Result<(), ActuateError> {
        let target = Target::buffer(socket.cookie, direction);
        let was_changed_by_application = self
            .journal
            .entry(&target)
            .is_some_and(|entry| !undo::is_as_made(entry, from, was_fixed));
        if was_changed_by_application {
            // Forgets the earlier change: undoing must restore the value that the application has
            // set since.
            self.journal.undone(&target)?;
        }
        let value = |bytes, is_fixed| Value::Buffer {
            bytes,
            is_fixed,
            owner: (socket.pid, socket.inode),
        };
        let entry = Entry::new(target, value(from, was_fixed), value(to, fixed));
        Ok(self.journal.note(entry)?)
    }

    /// Restores one buffer. A buffer without an entry in the journal already has its original
    /// state.
    ///
    /// # Errors
    /// [`ActuateError`]; the entry stays in the journal.
    pub fn restore(
        &mut self,
        cookie: u64,
        direction: Direction,
    ) -> Result<UndoOutcome, ActuateError> {
        let target = Target::buffer(cookie, direction);
        let Some(entry) = self.journal.entry(&target).cloned() else {
            return Ok(UndoOutcome::Restored);
        };
        let outcome = undo_buffer(&mut self.owners, cookie, direction, &entry)?;
        // A socket without an owner may still exist, so the entry stays: the final undo searches
        // the kernel for it.
        if outcome != UndoOutcome::Gone {
            self.journal.undone(&target)?;
        }
        Ok(outcome)
    }

    /// Undoes all changes in the journal. Changes that cannot be undone stay in it.
    pub fn undo(&mut self) -> UndoSummary {
        let mut summary = UndoSummary::default();
        self.begin_round();
        let entries: Vec<Entry> = self.journal.entries().cloned().collect();
        // A machine may have thousands of namespaces, so they are entered only once, and only if an
        // entry needs one.
        let needs_index = entries.iter().any(|entry| entry.target.netns().is_some());
        let index = needs_index.then(NamespaceIndex::read);
        let entries = match &index {
            Some(index) => self.without_foreign(index, entries, &mut summary),
            None => entries,
        };
        // Routes are undone last, because they take time, and together, because a list contains all
        // routes of a namespace.
        let (routes, mut entries): (Vec<_>, Vec<_>) = entries
            .into_iter()
            .partition(|entry| matches!(entry.target, Target::Route { .. }));
        if let Some(index) = &index {
            sort_for_undo(&mut entries, index);
        }
        let mut left = profile::undo::MAX_VISITS;
        let mut ownerless = Vec::new();
        let mut rest = entries.into_iter().peekable();
        while let Some(entry) = rest.next() {
            if let (Target::Setting(netns, _), Some(index)) = (&entry.target, &index) {
                let netns = *netns;
                let mut settings = vec![entry];
                let is_same_netns =
                    |next: &Entry| matches!(next.target, Target::Setting(of, _) if of == netns);
                while let Some(next) = rest.next_if(is_same_netns) {
                    settings.push(next);
                }
                self.undo_settings(index, netns, &settings, &mut left, &mut summary);
                continue;
            }
            let buffer = entry.target.as_buffer();
            let outcome = match (buffer, entry.target.as_maximum(), &index) {
                (Some((cookie, direction)), ..) => {
                    undo_buffer(&mut self.owners, cookie, direction, &entry)
                }
                (_, Some((netns, direction)), Some(index)) => {
                    undo_maximum(index, netns, direction, &entry).map_err(ActuateError::from)
                }
                _ => {
                    tracing::warn!(target = %entry.target, "not undone: this program changes no such thing");
                    summary.failed += 1;
                    continue;
                }
            };
            if buffer.is_some() && matches!(outcome, Ok(UndoOutcome::Gone)) {
                // No process has the socket, but it may still exist.
                ownerless.push(entry);
                continue;
            }
            self.count(outcome, &entry, &mut summary);
        }
        if let Some(index) = &index {
            for (entry, outcome) in routes::undo::undo(index, routes) {
                self.count(outcome, &entry, &mut summary);
            }
        }
        if !ownerless.is_empty() {
            for (entry, outcome) in ownerless.iter().zip(self.undo_ownerless(&ownerless)) {
                self.count(outcome, entry, &mut summary);
            }
        }
        summary
    }

    /// Returns the entries without those of namespaces that another process tunes. They stay in the
    /// journal: that process has taken these changes for the original values, and will restore them.
    fn without_foreign(
        &self,
        index: &NamespaceIndex,
        entries: Vec<Entry>,
        summary: &mut UndoSummary,
    ) -> Vec<Entry> {
        let cookies: HashSet<u64> = { entries.iter() }
            .filter_map(|entry| entry.target.netns())
            .collect();
        let namespaces = cookies
            .into_iter()
            .filter_map(|cookie| Some((cookie, index.get(cookie).ok()??)));
        let foreign: HashMap<u64, &Namespace> = namespaces
            .filter(|(_, namespace)| self.lock.is_foreign_now(namespace))
            .collect();
        for namespace in foreign.values() {
            tracing::warn!(
                netns = %namespace.name,
                "not undone while another taut tune changes this network namespace; it stays in the journal"
            );
        }
        let is_foreign = |entry: &Entry| {
            let netns = entry.target.netns();
            netns.is_some_and(|cookie| foreign.contains_key(&cookie))
        };
        let (left, entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_foreign);
        summary.failed += left.len();
        entries
    }

    /// Undoes the settings of one namespace.
    pub(crate) fn undo_settings(
        &mut self,
        index: &NamespaceIndex,
        netns: u64,
        entries: &[Entry],
        left: &mut Duration,
        summary: &mut UndoSummary,
    ) {
        let mut unlogged = 0_usize;
        let mut failed = 0_usize;
        for (entry, outcome) in entries
            .iter()
            .zip(profile::undo::undo(index, netns, entries, left))
        {
            failed += usize::from(outcome.is_err());
            match outcome.is_err() && failed > MAX_LOGGED {
                true => unlogged += 1,
                false => self.count(outcome, entry, summary),
            }
        }
        summary.failed += unlogged;
        if unlogged > 0 {
            tracing::warn!(
                netns,
                unlogged,
                "more settings of this namespace are not undone and stay in the journal"
            );
        }
    }

    /// Counts an outcome, and removes the entry from the journal unless it failed.
    fn count<E: fmt::Display>(
        &mut self,
        outcome: Result<UndoOutcome, E>,
        entry: &Entry,
        summary: &mut UndoSummary,
    ) {
        let count = match outcome {
            Ok(UndoOutcome::Restored) => &mut summary.restored,
            Ok(UndoOutcome::Gone) => &mut summary.gone,
            Ok(UndoOutcome::Foreign) => &mut summary.foreign,
            Err(error) => {
                tracing::warn!(%error, target = %entry.target, "not undone");
                summary.failed += 1;
                return;
            }
        };
        *count += 1;
        if let Err(error) = self.journal.undone(&entry.target) {
            tracing::warn!(%error, "a change is undone, but stays in the journal");
        }
    }

    /// Removes the entries of a connection that has ended.
    pub fn forget(&mut self, cookie: u64) {
        for direction in [Direction::Send, Direction::Receive] {
            if let Err(error) = self.journal.undone(&Target::buffer(cookie, direction)) {
                tracing::warn!(%error, "the journal keeps an entry of a connection that has ended");
            }
        }
    }

    /// Closes the journal, and removes its file if no entry is left.
    pub fn close(self) {
        if let Err(error) = self.journal.close() {
            tracing::warn!(%error, "the journal's file could not be removed");
        }
    }
}

/// Raises the window clamp to this many bytes. Never lowers it: the kernel raises the clamp only
/// when the buffer grows larger than ever before.
fn widen(borrowed: &PidfdSocket, to: u32) -> Result<(), Errno> {
    match borrowed.window_clamp()? < to {
        true => borrowed.set_window_clamp(to),
        false => Ok(()),
    }
}

/// Sorts entries for undoing: by the rank of their namespace, with the entries of a namespace
/// together, and buffers after this program's own namespace.
pub(crate) fn sort_for_undo(entries: &mut [Entry], index: &NamespaceIndex) {
    entries.sort_by_cached_key(|entry| {
        let is_setting = matches!(entry.target, Target::Setting(..));
        match entry.target.netns() {
            Some(cookie) => (index.rank(cookie), cookie, is_setting),
            None => (0, u64::MAX, false),
        }
    });
}

#[cfg(test)]
mod tests;
