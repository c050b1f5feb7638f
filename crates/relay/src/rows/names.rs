//! The addresses of members and destinations that are given by name, as [`names`] finds them.
//!
//! Members and destinations have slots and memory of their own: other relays choose the
//! destinations, and a name server that does not answer for those must not keep this relay from
//! finding its members.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use taut_mesh::hello::Target;

use crate::net::addr::Destination;
use crate::net::names::{self, Addrs};
use crate::rows_mailbox::{NameKind, RowsMailbox, ToRows};

/// The number of look-ups of members in progress, and of destinations.
pub(crate) const MAX_LOOK_UPS: usize = 4;

/// The number of names of members whose addresses are remembered, and of destinations.
const MAX_NAMES: usize = 4096;

/// The time after which a name is looked up again.
const AGAIN: Duration = Duration::from_secs(300);

/// The addresses of names of one kind.
pub(super) struct Names {
    kind: NameKind,
    found: HashMap<Target, Found>,
    under_way: usize,
}

struct Found {
    addrs: Option<Addrs>,
    /// When the last look-up began.
    at: Instant,
}

// === impl Names ===

impl Names {
    pub(super) fn new(kind: NameKind) -> Self {
        Self {
            kind,
            found: HashMap::new(),
            under_way: 0,
        }
    }

    /// Returns the addresses of a target as far as they are known, and begins a look-up if it is
    /// due.
    pub(super) fn of(
        &mut self,
        target: &Target,
        mailbox: &Arc<RowsMailbox>,
        now: Instant,
    ) -> Vec<SocketAddr> {
        if let Target::Addr(addr) = target {
            return vec![*addr];
        }
        let known = self.found.get(target);
        let is_due = known.is_none_or(|found| now.saturating_duration_since(found.at) >= AGAIN);
        let addrs = known.and_then(|found| found.addrs.clone());
        if is_due && self.under_way < MAX_LOOK_UPS {
            self.begin(target, addrs.clone(), mailbox, now);
        }
        addrs
            .iter()
            .flat_map(|addrs| addrs.iter())
            .map(|addr| addr.0)
            .collect()
    }

    fn begin(
        &mut self,
        target: &Target,
        addrs: Option<Addrs>,
        mailbox: &Arc<RowsMailbox>,
        now: Instant,
    ) {
        if self.found.len() >= MAX_NAMES {
            self.found
                .retain(|_, found| now.saturating_duration_since(found.at) < AGAIN);
            if self.found.len() >= MAX_NAMES {
                return;
            }
        }
        self.under_way += 1;
        self.found.insert(target.clone(), Found { addrs, at: now });
        let (mailbox, what, kind) = (mailbox.clone(), target.clone(), self.kind);
        names::ask(&Destination::from(target), &None, move |found| {
            let addrs = found.unwrap_or_else(|_| Arc::from([]));
            mailbox.post(ToRows::Found(kind, what, addrs));
        });
    }

    /// Records the result of a look-up. A name that cannot be looked up keeps its addresses.
    pub(super) fn found(&mut self, target: &Target, addrs: Addrs) {
        self.under_way = self.under_way.saturating_sub(1);
        if let Some(found) = self.found.get_mut(target).filter(|_| !addrs.is_empty()) {
            found.addrs = Some(addrs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_ups_of_destinations_leave_those_of_members_their_slots() {
        let mailbox = Arc::new(RowsMailbox::new().unwrap());
        let now = Instant::now();
        let [mut members, mut destinations] =
            [NameKind::Member, NameKind::Destination].map(Names::new);
        for n in 0..2 * MAX_LOOK_UPS {
            // Such names have no address (RFC 6761 section 6.4).
            let target = format!("name-{n}.invalid:80").parse().unwrap();
            destinations.of(&target, &mailbox, now);
        }
        assert_eq!(destinations.under_way, MAX_LOOK_UPS);
        let member = "relay.invalid:7440".parse().unwrap();
        members.of(&member, &mailbox, now);
        assert_eq!(members.under_way, 1);
    }
}
