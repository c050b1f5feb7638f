//! The windows of legs between relays that have none in the configuration: what each peer needs, and what
//! the memory allows. Pure.
//!
//! The kernel fixes a connection's receive window with the SYN, so a window is that of the *next*
//! connections to a peer (`docs/design/turbo.md`).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use taut_mesh::members::MemberName;

use crate::config::{INITIAL_WINDOW, WINDOW};

/// A need that no connection has shown for this long is halved.
const HALF_LIFE: Duration = Duration::from_secs(600);

/// The maximum number of peers whose need is remembered; further ones have the initial window.
const MAX_PEERS: usize = 4096;

/// A grant beyond the initial window is at most this part of what is left of the budget, so that the
/// first connections do not take all of it.
const SHARE: u64 = 8;

/// The windows of connections between relays.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Bytes of kernel memory that these connections should not exceed.
    budget: u64,
    /// Bytes of kernel memory that they had at the last scan.
    used: u64,
    /// Sum of what their windows exceed the initial one by.
    promised: u64,
    /// Connections that other relays have opened, at the last scan.
    accepted: u64,
    needs: HashMap<MemberName, Need>,
    /// Grants that were smaller than what the peer needs.
    refused: u64,
}

/// What a peer needs.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// Bytes in a round trip.
    bytes: u64,
    /// When a connection last showed it, or it was last halved.
    shown: Instant,
}

/// What a scan of the connections between relays found.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Bytes of kernel memory.
    pub(crate) used: u64,
    /// Sum of what the windows exceed the initial one by.
    pub(crate) promised: u64,
    /// Connections that other relays have opened.
    pub(crate) accepted: u64,
    /// The largest need of each peer, in bytes per round trip.
    pub(crate) needs: HashMap<MemberName, u64>,
}

/// The state of the windows, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WindowStatus {
    pub(crate) budget: u64,
    pub(crate) used: u64,
    pub(crate) promised: u64,
    pub(crate) refused: u64,
    /// The window that the next connection to each relay would have, by name.
    pub(crate) peers: Vec<(MemberName, u32)>,
}

// === impl Scan ===

impl Scan {
    /// Adds a connection that has this window and this much memory.
    pub(crate) fn add(&mut self, window: u64, memory: u64, is_accepted: bool) {
        self.used = self.used.saturating_add(memory);
        let beyond = window.saturating_sub(INITIAL_WINDOW.into());
        self.promised = self.promised.saturating_add(beyond);
        self.accepted += u64::from(is_accepted);
    }

    /// Adds what a connection to `member` with this window has carried in a round trip. A connection that
    /// has filled its window shows that twice as much may be needed.
    pub(crate) fn carried(&mut self, member: &MemberName, window: u64, bytes: u64) {
        let is_filled = bytes >= window / 4 * 3;
        let need = if is_filled {
            bytes.max(window).saturating_mul(2)
        } else {
            bytes
        };
        match self.needs.get_mut(member) {
            Some(known) => *known = need.max(*known),
            None => drop(self.needs.insert(member.clone(), need)),
        }
    }
}

// === impl Windows ===

impl Windows {
    pub(crate) fn new(budget: u64) -> Self {
        Self {
            budget,
            used: 0,
            promised: 0,
            accepted: 0,
            needs: HashMap::new(),
            refused: 0,
        }
    }

    pub(crate) fn set_budget(&mut self, bytes: u64) {
        self.budget = bytes;
    }

    /// Adopts what a scan found. A need that no connection shows any more decays.
    pub(crate) fn on_scan(&mut self, scan: Scan, now: Instant) {
        (self.used, self.promised) = (scan.used, scan.promised);
        self.accepted = scan.accepted;
        self.needs.retain(|_, need| {
            need.decay(now);
            need.is_worth_keeping()
        });
        for (member, bytes) in scan.needs {
            let need = Need { bytes, shown: now };
            let known = self.needs.get(&member);
            let has_room = known.is_some() || self.needs.len() < MAX_PEERS;
            let is_larger = known.is_none_or(|known| bytes >= known.bytes);
            if has_room && is_larger && need.is_worth_keeping() {
                self.needs.insert(member, need);
            }
        }
    }

    /// Returns the window that a connection to `member` would be granted now.
    pub(crate) fn of(&self, member: &MemberName) -> u32 {
        self.granted(self.wanted(member), SHARE)
    }

    /// Grants a window to a connection that is dialled now.
    pub(crate) fn dial(&mut self, member: &MemberName) -> u32 {
        let window = self.of(member);
        self.refused += u64::from(u64::from(window) < self.wanted(member));
        let beyond = window.saturating_sub(INITIAL_WINDOW);
        self.promised = self.promised.saturating_add(beyond.into());
        window
    }

    /// Returns the window of the connections that the mesh port accepts until the next scan: the largest
    /// that any peer needs. As many as there are now may take it.
    pub(crate) fn listener(&mut self) -> u32 {
        let wanted = self.needs.values().map(Need::window).max().unwrap_or(0);
        let wanted = wanted.max(INITIAL_WINDOW.into());
        let window = self.granted(wanted, self.accepted.max(SHARE));
        self.refused += u64::from(u64::from(window) < wanted);
        window
    }

    /// Returns the state; `members` are the relays to list.
    pub(crate) fn status(&self, members: impl Iterator<Item = MemberName>) -> WindowStatus {
        WindowStatus {
            budget: self.budget,
            used: self.used,
            promised: self.promised,
            refused: self.refused,
            peers: members.map(|m| (m.clone(), self.of(&m))).collect(),
        }
    }

    fn wanted(&self, member: &MemberName) -> u64 {
        let need = self.needs.get(member).map_or(0, Need::window);
        need.max(INITIAL_WINDOW.into())
    }

    /// Returns what the memory allows of a window; `share` is the part of what is left that one
    /// connection may take.
    fn granted(&self, wanted: u64, share: u64) -> u32 {
        let base = self.base();
        let left = self
            .budget
            .saturating_sub(self.used)
            .saturating_sub(self.promised);
        // The part shrinks with what is left, so the last connections still find something.
        let part = u128::from(left) * u128::from(left)
            / u128::from(self.budget.max(1))
            / u128::from(share);
        let beyond = match base {
            INITIAL_WINDOW => u64::try_from(part).unwrap_or(u64::MAX),
            _ => 0,
        };
        let window = wanted.min(u64::from(base).saturating_add(beyond));
        u32::try_from(window.min(*WINDOW.end())).unwrap_or(u32::MAX)
    }

    /// Returns the window that any connection may have: the initial one, and less once half of the budget
    /// is in use.
    fn base(&self) -> u32 {
        let half = (self.budget / 2).max(1);
        let free = self.budget.saturating_sub(self.used).min(half);
        let least = *WINDOW.start();
        let room = u128::from(u64::from(INITIAL_WINDOW) - least);
        let base = u128::from(least) + room * u128::from(free) / u128::from(half);
        u32::try_from(base).unwrap_or(INITIAL_WINDOW)
    }
}

// === impl Need ===

impl Need {
    /// Returns the window for it: twice as much, so that a lost segment does not stop the sender for the
    /// round trip in which it is sent again.
    fn window(&self) -> u64 {
        self.bytes.saturating_mul(2).min(*WINDOW.end())
    }

    /// Returns whether the peer's window is not that of any other.
    fn is_worth_keeping(&self) -> bool {
        self.window() > u64::from(INITIAL_WINDOW)
    }

    fn decay(&mut self, now: Instant) {
        while now.saturating_duration_since(self.shown) >= HALF_LIFE && self.bytes > 0 {
            self.bytes /= 2;
            self.shown += HALF_LIFE;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests;
