//! The newest row of each member.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::history::History;
use super::key::MemberId;
use super::message::RowMessage;
use super::row::{Row, SignedRow};
use crate::members::{Member, Members};
use crate::name::MemberName;

/// The largest age of a row. A relay signs its row again every five minutes.
pub const MAX_AGE: Duration = Duration::from_secs(900);

/// How long ago a row may have been made by the clocks of its relay and of the one that receives
/// it. A relay that has just started remembers no versions, so another member could bring back a
/// row that was signed before. It is also how far a relay's clock may be behind.
pub const MAX_CLOCK_LAG: Duration = Duration::from_secs(3600);

/// The memory that the rows of all members may occupy, in bytes.
pub const MAX_BYTES: usize = 16 << 20;

/// In a small mesh, a row may have no more than it had in one with this number of members.
const SHARES: usize = 64;

/// The rows of all members, this relay's own included.
#[derive(Debug)]
pub struct Table {
    own: MemberId,
    /// The least version of a row that is accepted.
    oldest: u64,
    members: HashMap<MemberId, Entry>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    /// `None` if two members have this ID.
    member: Option<Arc<Member>>,
    /// The newest version that was seen. It stays when the row has become too old, so that the row
    /// cannot come back.
    newest: u64,
    held: Option<Newest>,
}

#[derive(Debug)]
struct Newest {
    signed: SignedRow,
    history: History,
    /// When the row came, and how old it was then.
    heard: Instant,
    age: Duration,
}

/// The result of applying a message to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The row is newer than the one that was known.
    News,
    /// It is not.
    Old,
    /// It is this relay's own, newer than the one that it has made: it has been restarted, or its
    /// clock was set back. Its next row must have a version above this one.
    Own(u64),
}

/// Why a row was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowFault {
    /// No member has this ID.
    #[error("the row is not of a member")]
    Stranger,
    /// The relay whose row it is has not signed it.
    #[error("the row is not signed by the relay whose row it is")]
    Signature,
    /// The message has changes of a row that is not known here.
    #[error("the changes are of a version that is not known")]
    NoBase,
    /// The changes do not give a row that the relay has signed.
    #[error("the changes do not give a row that is signed by the relay whose row it is")]
    Changes,
    /// The row is too old.
    #[error("the row is too old")]
    TooOld,
    /// By its version, the row was made long before this relay's present time.
    #[error("the row was made long ago by the clock of its relay, or a clock is wrong")]
    Stale,
    /// The row takes more than its share of the memory.
    #[error("the row is larger than its share of {MAX_BYTES} bytes")]
    TooLarge,
}

// === impl RowFault ===

impl RowFault {
    /// Returns whether the row cost the check of a signature or the memory of a large row for
    /// nothing. Others cost next to nothing, and honest relays send them while the list of members
    /// is being distributed.
    pub(super) fn is_false(self) -> bool {
        matches!(self, Self::Signature | Self::Changes | Self::TooLarge)
    }
}

// === impl Table ===

impl Table {
    /// Returns a table without rows.
    pub fn new(own: &MemberName, members: &Members) -> Self {
        let mut table = Self {
            own: MemberId::of(own),
            oldest: 0,
            members: HashMap::new(),
            bytes: 0,
        };
        table.adopt(members);
        table
    }

    /// Adopts another list of members. Rows of members that are not in it, or that have other keys,
    /// are dropped.
    pub fn adopt(&mut self, members: &Members) {
        let mut former = std::mem::take(&mut self.members);
        for member in members.iter() {
            let id = MemberId::of(&member.name);
            let known = former.remove(&id).filter(|entry| {
                let keys = entry.member.as_ref().map(|before| &before.keys);
                keys.is_some_and(|keys| keys.iter().all(|key| member.keys.contains(key)))
            });
            let (newest, held) = known.map_or((0, None), |known| (known.newest, known.held));
            // Two members of the same ID have no rows.
            let unique = !self.members.contains_key(&id);
            self.members.insert(
                id,
                Entry {
                    member: unique.then(|| member.clone()),
                    newest,
                    held: held.filter(|_| unique),
                },
            );
        }
        self.bytes = self.members.values().map(Entry::memory).sum();
    }

    /// Accepts no row from now on that was made more than [`MAX_CLOCK_LAG`] before `wall`, in
    /// milliseconds since 1970. Members that pass a row on can make it look younger than it is, but
    /// cannot change its version.
    pub fn set_time(&mut self, wall: u64) {
        let lag = u64::try_from(MAX_CLOCK_LAG.as_millis()).unwrap_or(u64::MAX);
        self.oldest = wall.saturating_sub(lag);
    }

    /// Returns the number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Returns the name of the member with this ID.
    pub fn name(&self, id: MemberId) -> Option<&MemberName> {
        self.member(id).map(|member| &member.name)
    }

    fn member(&self, id: MemberId) -> Option<&Arc<Member>> {
        self.members.get(&id)?.member.as_ref()
    }

    /// Returns the memory that the rows occupy, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the row of a member.
    pub fn row(&self, id: MemberId) -> Option<&Row> {
        Some(&self.members.get(&id)?.held.as_ref()?.signed.row)
    }

    /// Returns the age of the row of a member.
    pub fn age(&self, id: MemberId, now: Instant) -> Option<Duration> {
        Some(self.members.get(&id)?.held.as_ref()?.age(now))
    }

    /// Returns all rows with their members.
    pub fn rows(&self) -> impl Iterator<Item = (&MemberName, &Row)> {
        self.members.values().filter_map(|entry| {
            let row = &entry.held.as_ref()?.signed.row;
            Some((&entry.member.as_ref()?.name, row))
        })
    }

    /// Returns the version of each row.
    pub fn versions(&self) -> impl Iterator<Item = (MemberId, u64)> {
        let version =
            |(id, entry): (&MemberId, &Entry)| Some((*id, entry.held.as_ref()?.signed.row.version));
        self.members.iter().filter_map(version)
    }

    /// Replaces this relay's own row.
    pub fn publish(&mut self, signed: SignedRow, now: Instant) {
        if let Some(entry) = self.members.get_mut(&self.own) {
            self.bytes -= entry.memory();
            entry.replace(signed, now, Duration::ZERO);
            self.bytes += entry.memory();
        }
    }

    /// Learns the row of a message, if it is newer than the one that is known and its relay has
    /// signed it.
    ///
    /// # Errors
    /// [`RowFault`]; nothing has changed then.
    pub fn learn(&mut self, message: RowMessage, now: Instant) -> Result<Learned, RowFault> {
        let share = MAX_BYTES / self.members.len().max(SHARES);
        let entry = self
            .members
            .get_mut(&message.origin)
            .ok_or(RowFault::Stranger)?;
        let member = entry.member.as_ref().ok_or(RowFault::Stranger)?;
        let (origin, version, age) = (message.origin, message.version(), message.age);
        if version <= entry.newest {
            return Ok(Learned::Old);
        }
        if age >= MAX_AGE {
            return Err(RowFault::TooOld);
        }
        if version < self.oldest {
            return Err(RowFault::Stale);
        }
        let held = entry.held.as_ref().map(|held| &held.signed.row);
        let knows = |base| held.is_some_and(|held| held.version >= base);
        if message.base > 0 && !knows(message.base) {
            return Err(RowFault::NoBase);
        }
        let is_part = message.base > 0;
        let signed = message.apply(held);
        if signed.row.memory() > share {
            return Err(RowFault::TooLarge);
        }
        if !signed.is_of(&member.name, &member.keys) {
            // Changes may have been applied to something else than their sender believed.
            return Err(if is_part {
                RowFault::Changes
            } else {
                RowFault::Signature
            });
        }
        if origin == self.own {
            entry.newest = version;
            return Ok(Learned::Own(version));
        }
        self.bytes -= entry.memory();
        entry.replace(signed, now, age);
        self.bytes += entry.memory();
        Ok(Learned::News)
    }

    /// Drops rows that are too old and returns their members. This relay's own row stays.
    pub fn forget_old(&mut self, now: Instant) -> Vec<MemberName> {
        let mut forgotten = Vec::new();
        for (id, entry) in &mut self.members {
            let old = entry
                .held
                .as_ref()
                .is_some_and(|held| held.age(now) >= MAX_AGE);
            if old && *id != self.own {
                self.bytes -= entry.memory();
                entry.held = None;
                self.bytes += entry.memory();
                forgotten.extend(entry.member.iter().map(|member| member.name.clone()));
            }
        }
        forgotten
    }

    /// Returns the message that brings a relay that has the version `known` of a row to the present
    /// one.
    pub fn message(&self, id: MemberId, known: u64, now: Instant) -> Option<RowMessage> {
        let held = self.members.get(&id)?.held.as_ref()?;
        let changed = held.history.since(known).filter(|_| known > 0);
        Some(match changed {
            Some(changed) => RowMessage::changes(id, &held.signed, held.age(now), known, &changed),
            None => RowMessage::whole(id, &held.signed, held.age(now)),
        })
    }
}

// === impl Entry ===

impl Entry {
    fn replace(&mut self, signed: SignedRow, now: Instant, age: Duration) {
        self.newest = signed.row.version;
        let history = match self.held.take() {
            Some(mut before) => {
                before.history.add(&before.signed.row, &signed.row);
                before.history
            }
            None => History::default(),
        };
        self.held = Some(Newest {
            signed,
            history,
            heard: now,
            age,
        });
    }

    fn memory(&self) -> usize {
        let held = self.held.as_ref();
        let held = held.map_or(0, |held| held.signed.row.memory() + held.history.memory());
        size_of::<(MemberId, Self)>() + held
    }
}

// === impl Newest ===

impl Newest {
    fn age(&self, now: Instant) -> Duration {
        self.age + now.saturating_duration_since(self.heard)
    }
}

#[cfg(test)]
mod tests;
