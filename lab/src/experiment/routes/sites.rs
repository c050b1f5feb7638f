//! The cities, the round trips between them, and the pairs of a client and a server.

use std::time::Duration;

use taut_netlab::units::{BitsPerSecond, Bytes};

/// A city with a region of the cloud, by its place in [`NAMES`].
pub(super) type Site = usize;

/// The cities. The first seven take part in the short form.
const NAMES: [&str; 10] = [
    "dallas",
    "washington",
    "london",
    "frankfurt",
    "tokyo",
    "sydney",
    "sao-paulo",
    "toronto",
    "madrid",
    "osaka",
];

/// The mean round trips between the regions of IBM Cloud from 28 September to 27 October 2024, in
/// milliseconds, in the order of [`NAMES`]. Source: IBM Cloud documentation, "Network latency dashboards"
/// (github.com/ibm-cloud-docs/vpc, `_include-segments/network-latency.md`). The rows differ by up to 2 ms
/// in the two directions; those of the row that comes first are used.
#[rustfmt::skip]
const RTT_MS: [[u64; 10]; 10] = [
    //  dal  was  lon  fra  tok  syd  sao  tor  mad  osa
    [     0,  31, 113, 123, 141, 185, 144,  34, 119, 150],
    [    31,   0,  76,  90, 169, 213, 119,  19,  89, 175],
    [   113,  76,   0,  13, 242, 261, 188,  84,  27, 244],
    [   123,  90,  13,   0, 231, 250, 197,  92,  29, 232],
    [   141, 169, 242, 231,   0, 115, 283, 164, 257,   9],
    [   185, 213, 261, 250, 115,   0, 328, 214, 275, 122],
    [   144, 119, 188, 197, 283, 328,   0, 131, 206, 291],
    [    34,  19,  84,  92, 164, 214, 131,   0, 107, 171],
    [   119,  89,  27,  29, 257, 275, 206, 107,   0, 259],
    [   150, 175, 244, 232,   9, 122, 291, 171, 259,   0],
];

/// How much longer the Internet's path between two cities is than the cloud's. The paper measures no
/// such ratio; its direct paths are longer than the relays' together (4.4).
const DETOUR_PERCENT: u64 = 120;
/// The round trip of the client's own access line, and of the server's.
const CLIENT_ACCESS_MS: u64 = 8;
const SERVER_ACCESS_MS: u64 = 4;
/// The round trip between a client and a server in the same city: their providers meet there.
const SAME_CITY_MS: u64 = 5;

/// The rates of the client's legs and of all others, and the queues in front of them.
pub(super) const CLIENT_RATE: BitsPerSecond = BitsPerSecond::mega(200);
pub(super) const RATE: BitsPerSecond = BitsPerSecond::giga(1);
pub(super) const QUEUE: Bytes = Bytes::mega(6);

/// A host on a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stop {
    Client,
    Relay(Site),
    Server,
}

/// A client and a server, by their cities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pair {
    pub(super) client: Site,
    pub(super) server: Site,
}

/// The pairs. The first three are those of the short form. In the third, the direct path is the best.
pub(super) const PAIRS: [Pair; 6] = [
    Pair {
        client: 2,
        server: 5,
    },
    Pair {
        client: 3,
        server: 4,
    },
    Pair {
        client: 0,
        server: 0,
    },
    Pair {
        client: 6,
        server: 4,
    },
    Pair {
        client: 1,
        server: 5,
    },
    Pair {
        client: 8,
        server: 9,
    },
];

/// Returns the name of a city, which its relay and the relay's host have, too.
pub(super) fn name(site: Site) -> &'static str {
    NAMES[site]
}

/// Returns the round trip of the cloud between two cities.
pub(super) fn cloud_rtt(a: Site, b: Site) -> Duration {
    Duration::from_millis(RTT_MS[a][b])
}

// === impl Stop ===

impl Stop {
    /// Returns the host's name.
    pub(super) fn host(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Relay(site) => name(site),
            Self::Server => "server",
        }
    }
}

fn internet_ms(a: Site, b: Site) -> u64 {
    RTT_MS[a][b] * DETOUR_PERCENT / 100
}

// === impl Pair ===

impl Pair {
    /// Returns the pair's name: its two cities.
    pub(super) fn name(self) -> String {
        format!("{}-{}", name(self.client), name(self.server))
    }

    /// Returns whether both are in the same city.
    pub(super) fn is_local(self) -> bool {
        self.client == self.server
    }

    /// Returns the round trip between the client and a relay.
    pub(super) fn client_rtt(self, relay: Site) -> Duration {
        Duration::from_millis(CLIENT_ACCESS_MS + internet_ms(self.client, relay))
    }

    /// Returns the round trip between a relay and the server.
    pub(super) fn server_rtt(self, relay: Site) -> Duration {
        Duration::from_millis(SERVER_ACCESS_MS + internet_ms(relay, self.server))
    }

    /// Returns the round trip between the client and the server.
    pub(super) fn direct_rtt(self) -> Duration {
        Duration::from_millis(match self.is_local() {
            true => SAME_CITY_MS,
            false => CLIENT_ACCESS_MS + SERVER_ACCESS_MS + internet_ms(self.client, self.server),
        })
    }

    /// Returns the round trip and the rate of the path between two hosts.
    pub(super) fn path(self, a: Stop, b: Stop) -> (Duration, BitsPerSecond) {
        match (a.min(b), a.max(b)) {
            (Stop::Client, Stop::Relay(relay)) => (self.client_rtt(relay), CLIENT_RATE),
            (Stop::Relay(relay), Stop::Server) => (self.server_rtt(relay), RATE),
            (Stop::Relay(a), Stop::Relay(b)) => (cloud_rtt(a, b), RATE),
            _ => (self.direct_rtt(), CLIENT_RATE),
        }
    }

    /// Returns the content of the file that `taut mesh plan` reads: the round trip of every path.
    pub(super) fn table(self, sites: usize, client: &str, server: &str) -> String {
        let mut text = String::new();
        let mut add = |(a, a_name): (Stop, &str), (b, b_name): (Stop, &str)| {
            let (rtt, rate) = self.path(a, b);
            let (rtt, mbit) = (rtt.as_millis(), rate.0 / 1_000_000);
            text.push_str(&format!("{a_name} {b_name} {rtt} 0 {mbit}\n"));
        };
        let relay = |site| (Stop::Relay(site), name(site));
        let (client, server) = ((Stop::Client, client), (Stop::Server, server));
        for a in 0..sites {
            add(relay(a), client);
            add(relay(a), server);
            for b in a + 1..sites {
                add(relay(a), relay(b));
            }
        }
        add(client, server);
        text
    }
}

/// Describes the links for the environment of an outcome.
pub(super) fn describe(sites: usize) -> Vec<(String, String)> {
    let mut links = Vec::new();
    for a in 0..sites {
        for b in a + 1..sites {
            let text = format!("{:?} round trip, {RATE}", cloud_rtt(a, b));
            links.push((format!("{}-{}", name(a), name(b)), text));
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_round_trips_is_symmetric() {
        for a in 0..NAMES.len() {
            for b in 0..NAMES.len() {
                assert_eq!(cloud_rtt(a, b), cloud_rtt(b, a), "{} {}", name(a), name(b));
            }
            assert_eq!(cloud_rtt(a, a), Duration::ZERO);
        }
    }

    #[test]
    fn the_short_form_has_distant_ends_and_ends_in_one_city() {
        let short = &PAIRS[..3];
        assert!(short.iter().any(|pair| pair.is_local()));
        assert!(short.iter().any(|pair| !pair.is_local()));
        assert!(short.iter().all(|pair| pair.client < 7 && pair.server < 7));
    }

    #[test]
    fn the_planners_file_has_every_link_once() {
        let table = PAIRS[0].table(7, "10.0.0.1", "10.0.0.2");
        assert_eq!(table.lines().count(), 7 * 6 / 2 + 2 * 7 + 1);
        assert!(table.contains("london sydney 261 0 1000\n"), "{table}");
        assert!(table.contains("london 10.0.0.1 8 0 200\n"), "{table}");
    }
}
