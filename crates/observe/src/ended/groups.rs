//! Sums of ended connections by process and peer.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::histogram::Histogram;
use super::{Ended, Opener, Phases};

/// The default maximum number of groups. Connections beyond it are summed up in one.
const GROUPS: usize = 10_000;

/// What the connections of a group have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The name of the network namespace.
    pub netns: Arc<str>,
    /// The name of the process; `None` if it is not known.
    pub process: Option<Arc<str>>,
    /// The peer's address.
    pub peer: IpAddr,
    /// The end that opened them.
    pub opener: Opener,
}

/// Sums over connections that have ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Number of connections.
    pub count: u64,
    /// Connections whose handshake was never completed.
    pub failed: u64,
    /// Connections that were open before Taut started, so that only a part of their time is known.
    pub open_before: u64,
    /// Payload that was acknowledged, in bytes.
    pub sent: u64,
    /// Payload that arrived, in bytes.
    pub received: u64,
    /// Data segments sent.
    pub data_segments: u64,
    /// Segments retransmitted.
    pub retransmitted: u64,
    /// Where their time went.
    pub phases: Phases,
    lasted: Histogram,
}

/// The groups, and one for those beyond the limit.
#[derive(Clone, Debug)]
pub struct Groups {
    limit: usize,
    by_key: FxHashMap<Key, Group>,
    others: Group,
}

// === impl Key ===

impl Key {
    fn of(ended: &Ended) -> Self {
        Self {
            netns: ended.netns.clone(),
            process: ended.process.as_ref().map(|process| process.name.clone()),
            peer: ended.remote.ip().to_canonical(),
            opener: ended.opener,
        }
    }
}

// === impl Group ===

impl Group {
    /// Adds a connection.
    pub fn add(&mut self, ended: &Ended) {
        self.count += 1;
        self.failed += u64::from(!ended.is_established);
        self.sent += ended.sent;
        self.received += ended.received;
        self.data_segments += u64::from(ended.data_segments);
        self.retransmitted += u64::from(ended.retransmitted);
        self.phases.add_all(&ended.phases);
        match ended.lasted {
            Some(time) => self.lasted.add(time),
            None => self.open_before += 1,
        }
    }

    /// Returns the time that this share of the connections lasted at most, within 5 %. `None` if
    /// all were open before Taut started.
    pub fn lasted(&self, share: f64) -> Option<Duration> {
        self.lasted.quantile(share)
    }
}

// === impl Groups ===

impl Default for Groups {
    fn default() -> Self {
        Self::new(GROUPS)
    }
}

impl Groups {
    /// Returns an empty collection of at most `limit` groups.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            by_key: FxHashMap::default(),
            others: Group::default(),
        }
    }

    /// Adds a connection to its group.
    pub fn add(&mut self, ended: &Ended) {
        let has_room = self.by_key.len() < self.limit;
        let group = match self.by_key.entry(Key::of(ended)) {
            std::collections::hash_map::Entry::Vacant(_) if !has_room => &mut self.others,
            entry => entry.or_default(),
        };
        group.add(ended);
    }

    /// Returns the number of connections in all groups.
    pub fn count(&self) -> u64 {
        let groups = self.by_key.values().chain([&self.others]);
        groups.map(|group| group.count).sum()
    }

    /// Whether no connection has ended.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Returns the groups, those with the most connections first.
    pub fn sorted(&self) -> Vec<(&Key, &Group)> {
        let mut groups: Vec<_> = self.by_key.iter().collect();
        groups.sort_by(|a, b| b.1.count.cmp(&a.1.count).then_with(|| a.0.cmp(b.0)));
        groups
    }

    /// Returns the sums of the connections beyond the limit of groups; `None` if there are none.
    pub fn others(&self) -> Option<&Group> {
        (self.others.count > 0).then_some(&self.others)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::ended;
    use super::*;

    #[test]
    fn a_peer_of_a_socket_of_both_families_is_the_same_peer() {
        let mut groups = Groups::default();
        for remote in ["192.0.2.9:443", "[::ffff:192.0.2.9]:443"] {
            groups.add(&ended(|end| end.remote = remote.parse().unwrap()));
        }
        let sorted = groups.sorted();
        assert_eq!(sorted.len(), 1);
        assert_eq!(sorted[0].0.peer.to_string(), "192.0.2.9");
    }

    proptest! {
        #[test]
        fn the_groups_have_the_sums_of_their_connections_whatever_the_limit(
            ends in prop::collection::vec((0u8..20, 2u64..1_000_000, 1u64..1_000_000, 0u32..5, any::<bool>()), 0..80),
            limit in 0usize..25
        ) {
            let mut groups = Groups::new(limit);
            let mut whole = Group::default();
            for (peer, sent, received, retransmitted, opened_here) in ends {
                let end = ended(|end| {
                    end.remote.set_ip([10, 0, 0, peer].into());
                    (end.bytes_acked, end.bytes_received) = (sent, received);
                    end.retransmitted = retransmitted;
                    end.flags.opened_here = opened_here;
                });
                groups.add(&end);
                whole.add(&end);
            }
            let sorted = groups.sorted();
            prop_assert!(sorted.len() <= limit);
            let all: Vec<_> = sorted.iter().map(|(_, group)| *group).chain(groups.others()).collect();
            let sum = |of: fn(&Group) -> u64| all.iter().map(|group| of(group)).sum::<u64>();
            prop_assert_eq!(sum(|group| group.count), whole.count);
            prop_assert_eq!(groups.count(), whole.count);
            prop_assert_eq!(sum(|group| group.sent), whole.sent);
            prop_assert_eq!(sum(|group| group.received), whole.received);
            prop_assert_eq!(sum(|group| group.retransmitted), whole.retransmitted);
            let time: Duration = all.iter().map(|group| group.phases.total()).sum();
            prop_assert_eq!(time, whole.phases.total());
        }
    }
}
