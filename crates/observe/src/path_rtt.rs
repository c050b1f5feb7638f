//! The shortest round trip to each peer, over all connections to it.
//!
//! A connection measures only the round trips since it began. If other traffic had filled a queue
//! by then, the connection's shortest round trip includes that queue. Another connection to the
//! same peer may have measured the path without it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;
use taut_sys::sock_diag::Connection;

/// The maximum number of peers, some 10 MB of memory. The round trips to further peers are not
/// compared.
const PEERS: usize = 100_000;
/// A round trip is forgotten if no connection has had one that short for this long, because routes
/// change. The kernel forgets a connection's own after the same time (`net.ipv4.tcp_min_rtt_wlen`).
const KEPT: Duration = Duration::from_secs(300);

/// The shortest round trip to each peer.
#[derive(Debug, Default)]
pub(crate) struct PathRtts {
    peers: FxHashMap<(Arc<str>, IpAddr), Shortest>,
    left_out: usize,
}

#[derive(Clone, Copy, Debug)]
struct Shortest {
    rtt: Duration,
    /// When a connection last reported it.
    at: Duration,
}

// === impl PathRtts ===

impl PathRtts {
    /// Notes the shortest round trip of a connection in a network namespace, read at `now`.
    pub(crate) fn note(&mut self, netns: &Arc<str>, now: Duration, connection: &Connection) {
        let info = connection.info.as_ref();
        let Some(rtt) = info.and_then(|info| info.min_rtt).filter(|r| !r.is_zero()) else {
            return;
        };
        let key = (Arc::clone(netns), connection.remote.ip().to_canonical());
        let noted = Shortest { rtt, at: now };
        if let Some(known) = self.peers.get_mut(&key) {
            if rtt <= known.rtt || known.is_old(now) {
                *known = noted;
            }
            return;
        }
        if self.peers.len() >= PEERS {
            self.peers.retain(|_, known| !known.is_old(now));
        }
        if self.peers.len() < PEERS {
            self.peers.insert(key, noted);
        } else {
            self.left_out += 1;
        }
    }

    /// Returns the shortest round trip to a peer, as of `now`.
    pub(crate) fn shortest(
        &self,
        netns: &Arc<str>,
        peer: IpAddr,
        now: Duration,
    ) -> Option<Duration> {
        let known = self.peers.get(&(Arc::clone(netns), peer.to_canonical()))?;
        (!known.is_old(now)).then_some(known.rtt)
    }

    /// Returns how often a round trip was not noted because there are too many peers.
    pub(crate) fn left_out(&self) -> usize {
        self.left_out
    }
}

// === impl Shortest ===

impl Shortest {
    fn is_old(self, now: Duration) -> bool {
        now.saturating_sub(self.at) > KEPT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::tests::sample;

    fn connection(peer: u32, millis: u64) -> Connection {
        let mut connection = sample(0, |info| {
            info.min_rtt = Some(Duration::from_millis(millis));
        })
        .connection;
        connection.remote = (std::net::Ipv4Addr::from(peer), 443).into();
        connection
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn the_shortest_round_trip_of_all_connections_to_a_peer_counts() {
        let (mut paths, machine) = (PathRtts::default(), "-".into());
        for millis in [30, 20, 25] {
            paths.note(&machine, secs(1), &connection(1, millis));
        }
        paths.note(&machine, secs(1), &connection(2, 3));
        // A socket of both families is connected to the same peer.
        let mut mapped = connection(1, 22);
        mapped.remote = "[::ffff:0.0.0.1]:443".parse().unwrap();
        paths.note(&machine, secs(1), &mapped);
        let shortest = paths.shortest(&machine, mapped.remote.ip(), secs(1));
        assert_eq!(shortest, Some(Duration::from_millis(20)));
        let of = |netns: &Arc<str>, now| {
            let peer = connection(1, 0).remote.ip();
            paths.shortest(netns, peer, secs(now))
        };
        assert_eq!(of(&machine, 301), Some(Duration::from_millis(20)));
        // No connection has had it for five minutes.
        assert_eq!(of(&machine, 302), None);
        // The same address in another namespace is another peer.
        assert_eq!(of(&"blue".into(), 2), None);
    }

    #[test]
    fn an_old_round_trip_is_replaced_by_a_longer_one() {
        let (mut paths, machine) = (PathRtts::default(), "-".into());
        paths.note(&machine, secs(0), &connection(1, 20));
        paths.note(&machine, secs(400), &connection(1, 50));
        let peer = connection(1, 0).remote.ip();
        let shortest = paths.shortest(&machine, peer, secs(400));
        assert_eq!(shortest, Some(Duration::from_millis(50)));
    }

    #[test]
    fn peers_beyond_the_bound_are_counted_until_others_are_forgotten() {
        let (mut paths, machine) = (PathRtts::default(), "-".into());
        for peer in 0..=PEERS as u32 {
            paths.note(&machine, secs(0), &connection(peer, 20));
        }
        let last = connection(PEERS as u32, 20);
        assert_eq!(paths.left_out(), 1);
        assert_eq!(paths.shortest(&machine, last.remote.ip(), secs(0)), None);
        paths.note(&machine, secs(301), &last);
        assert!(
            paths
                .shortest(&machine, last.remote.ip(), secs(301))
                .is_some()
        );
    }
}
