//! The row links of a node, and when the next attempt to make one is due.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use slab::Slab;
use taut_mesh::members::MemberName;

use super::link::Link;

/// The pauses before another attempt.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// The pause before a relay is asked again that closed a link without a frame: it is of an earlier
/// release.
const OLD_RELEASE: Duration = LAST_PAUSE;

/// The row links of a node.
#[derive(Default)]
pub(super) struct Links {
    pub(super) all: Slab<Link>,
    pauses: HashMap<MemberName, Pause>,
}

#[derive(Clone, Copy)]
struct Pause {
    until: Instant,
    length: Duration,
}

// === impl Links ===

impl Links {
    /// Returns the place of the link to a relay, open or not.
    pub(super) fn to(&self, peer: &MemberName) -> Option<usize> {
        let mut all = self.all.iter();
        all.find(|(_, link)| link.peer == *peer)
            .map(|(place, _)| place)
    }

    /// Returns whether an attempt to make a link to a relay is due.
    pub(super) fn is_due(&self, peer: &MemberName, now: Instant) -> bool {
        let waits = self.pauses.get(peer).is_some_and(|pause| now < pause.until);
        !waits && self.to(peer).is_none()
    }

    /// Records that a link works.
    pub(super) fn works(&mut self, peer: &MemberName) {
        self.pauses.remove(peer);
    }

    /// Records that a link has ended or could not be made.
    pub(super) fn failed(&mut self, place: usize, now: Instant) {
        let Some(link) = self.all.get(place) else {
            return;
        };
        let before = self.pauses.get(&link.peer);
        let length = match before {
            _ if link.link().is_some() && !link.heard => OLD_RELEASE,
            None => FIRST_PAUSE,
            Some(pause) => (pause.length * 2).min(LAST_PAUSE),
        };
        let until = now + length;
        self.pauses
            .insert(link.peer.clone(), Pause { until, length });
    }

    /// Forgets the pauses of relays that are no longer members.
    pub(super) fn adopt(&mut self, is_member: impl Fn(&MemberName) -> bool) {
        self.pauses.retain(|name, _| is_member(name));
    }
}
