//! Decides which peers get no early ACKs for a while because the guest contradicted early ACKs in their
//! flows. Pure.
//!
//! A guest that lacks early-acknowledged data may be short of memory, but a client may also pretend
//! that it is. So flows are counted per peer network: a network can only harm itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::wire::Prefix;

/// The number of flows with a contradiction within [`REST`] after which a network is distrusted.
pub const TIMES: usize = 3;

/// The time for which a network is distrusted, and for which a flow counts.
pub const REST: Duration = Duration::from_secs(600);

/// The maximum number of counted networks; above it, the one with the oldest last repair is
/// removed.
const NETWORKS: usize = 1024;

/// The flows of one tap in which the guest contradicted early ACKs, per peer network.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    networks: BTreeMap<Prefix, Vec<Duration>>,
}

// === impl Trust ===

impl Trust {
    /// Counts a flow of this network.
    pub(crate) fn contradicted(&mut self, network: Prefix, now: Duration) {
        self.expire(now);
        if self.networks.len() == NETWORKS && !self.networks.contains_key(&network) {
            let oldest = self.networks.iter().min_by_key(|(_, times)| times.last());
            if let Some(oldest) = oldest.map(|(network, _)| *network) {
                self.networks.remove(&oldest);
            }
        }
        let times = self.networks.entry(network).or_default();
        times.push(now);
        if times.len() > TIMES {
            times.remove(0);
        }
    }

    /// Returns the networks that are distrusted at `now`.
    pub(crate) fn distrusted(&mut self, now: Duration) -> BTreeSet<Prefix> {
        self.expire(now);
        let often = self.networks.iter().filter(|(_, t)| t.len() >= TIMES);
        often.map(|(network, _)| *network).collect()
    }

    /// Trusts all networks again.
    pub(crate) fn restore(&mut self) {
        self.networks.clear();
    }

    fn expire(&mut self, now: Duration) {
        self.networks.retain(|_, times| {
            times.retain(|time| now.saturating_sub(*time) < REST);
            !times.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(n: u8) -> Prefix {
        Prefix::of([10, 0, n, 7].into())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_network_is_distrusted_after_three_flows_and_for_ten_minutes() {
        let mut trust = Trust::default();
        for n in 1..=3 {
            assert!(trust.distrusted(n * SECOND).is_empty());
            trust.contradicted(network(1), n * SECOND);
        }
        let distrusted = trust.distrusted(4 * SECOND);
        assert_eq!(distrusted, BTreeSet::from([network(1)]));
        assert_eq!(trust.distrusted(REST), distrusted);
        assert!(trust.distrusted(REST + SECOND).is_empty());
    }

    #[test]
    fn flows_of_other_networks_do_not_count() {
        let mut trust = Trust::default();
        for n in 0..100 {
            trust.contradicted(network(n), SECOND);
        }
        assert!(trust.distrusted(SECOND).is_empty());
    }

    #[test]
    fn the_number_of_counted_networks_is_bounded() {
        let mut trust = Trust::default();
        for n in 0..2 * NETWORKS as u32 {
            let address = std::net::Ipv4Addr::from(n << 8);
            trust.contradicted(Prefix::of(address.into()), n * SECOND / 1000);
        }
        assert_eq!(trust.networks.len(), NETWORKS);
    }

    #[test]
    fn trust_can_be_restored() {
        let mut trust = Trust::default();
        for _ in 0..3 {
            trust.contradicted(network(1), SECOND);
        }
        trust.restore();
        assert!(trust.distrusted(SECOND).is_empty());
    }
}
