//! The paths: their round trips, rates and losses, each with its source, and the ideal pipe.

use std::time::Duration;

use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::{BitsPerSecond, Bytes};
use taut_netlab::world::{World, WorldBuilder, WorldError};

/// A pair of places, and the Internet between them. The places are the routes of pied-piper 2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Path {
    /// A server in Amsterdam, a client at the US East Coast: figure 3.
    EuropeUsEast,
    /// The same over a better Internet path.
    EuropeUsEastGood,
    /// A server at the East Coast, a residential client at the West Coast: figure 2.
    UsEastWest,
    /// A server in India, a residential client at the West Coast: figures 2 and 11.
    IndiaUsWest,
}

/// The share of segments that the Internet's path loses in each direction: 0.5 %, which carriers
/// promise not to exceed over the Atlantic and within the US (Verizon's service level agreement: 99.5 %
/// of packets are delivered). The FCC's reports of US lines call less than 0.4 % good, and more than 1 %
/// bad; Google's servers retransmitted 2.8 % of all segments in 2011 (Dukkipati et al., "Proportional
/// Rate Reduction for TCP").
const INTERNET_LOSS: f64 = 0.005;
/// The loss of the better Internet path, less than is published of any.
const GOOD_INTERNET_LOSS: f64 = 0.001;
/// The loss of the leg within a cloud, and of the short legs to and from it: an order of magnitude
/// less than the Internet's (pied-piper 3.1; Haq, Raja, Dogar, "A Measurement Study of Wide Area Cloud
/// Paths").
const CLEAN_LOSS: f64 = 0.0001;
/// The client's line, with a queue of 100 ms. The paper gives no rates.
pub(super) const LINE: BitsPerSecond = BitsPerSecond::mega(100);
const LINE_QUEUE: Bytes = Bytes::kilo(1_250);
/// Other links: a small cloud machine ("up to 2 Gbps", pied-piper 1), with a queue of 50 ms.
pub(super) const CLOUD: BitsPerSecond = BitsPerSecond::giga(1);
const CLOUD_QUEUE: Bytes = Bytes::kilo(6_250);

/// A delivery that is late by more than this disturbs a download: 5 % of the shortest path's round
/// trip.
const TOLERANCE: Duration = Duration::from_millis(5);

impl Path {
    pub(super) const ALL: [Self; 4] = [
        Self::EuropeUsEast,
        Self::EuropeUsEastGood,
        Self::UsEastWest,
        Self::IndiaUsWest,
    ];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::EuropeUsEast => "Europe - US East",
            Self::EuropeUsEastGood => "Europe - US East, 0.1 % loss",
            Self::UsEastWest => "US East - West",
            Self::IndiaUsWest => "India - US West",
        }
    }

    /// Returns the name in keys of the headline.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::EuropeUsEast => "europe_us_east",
            Self::EuropeUsEastGood => "europe_us_east_loss_0p1",
            Self::UsEastWest => "us_east_west",
            Self::IndiaUsWest => "india_us_west",
        }
    }

    /// Returns the round trips client - near relay, near - far, far - server.
    pub(super) fn legs(self) -> [Duration; 3] {
        let tenths_ms = match self {
            // The FCC measured 11.6 ms from fibre lines at the East Coast to the nearest test server
            // (Measuring Broadband America, 2016). Verizon promises 90 ms between London and New
            // York. Half of the 10,000 most popular servers have an AWS region within 4.8 ms
            // (pied-piper 7).
            Self::EuropeUsEast | Self::EuropeUsEastGood => [116, 900, 48],
            // The client's leg is that of pied-piper 3.3. Microsoft published up to 72 ms between
            // Azure's regions of North America (October 2019).
            Self::UsEastWest => [327, 720, 48],
            // Pied-piper 3.3.
            Self::IndiaUsWest => [327, 2_150, 260],
        };
        tenths_ms.map(|tenths| Duration::from_micros(tenths * 100))
    }

    /// Returns the round trip from the client to the server. The Internet's path has the same as the
    /// route over the relays: the paper gives none, and no gain here comes from a shorter route.
    pub(super) fn rtt(self) -> Duration {
        self.legs().iter().sum()
    }

    /// Returns the Internet's loss, in addition to that of the client's line.
    fn internet_loss(self) -> f64 {
        match self {
            Self::EuropeUsEastGood => GOOD_INTERNET_LOSS,
            _ => INTERNET_LOSS,
        }
    }

    /// Returns the bandwidth-delay product of the client's line and the whole path.
    pub(super) fn bdp(self) -> Bytes {
        LINE.in_time(self.rtt())
    }

    /// Describes the links for the environment of an outcome.
    pub(super) fn describe(self) -> impl Iterator<Item = (String, String)> {
        Link::ALL.into_iter().map(move |link| {
            let text = format!(
                "{:?} round trip, {}, {} % loss",
                link.rtt(self),
                link.rate(),
                link.loss(self) * 100.0
            );
            (
                format!("{} ({})", link.ends().join("-"), self.label()),
                text,
            )
        })
    }

    /// Builds the world, without processes. `over_relays` selects the route over the relays, and
    /// otherwise the Internet's path.
    pub(super) fn build(
        self,
        over_relays: bool,
        seed: u64,
        sysctls: &[(&str, &str, &str)],
    ) -> Result<World, WorldError> {
        let links: &[Link] = match over_relays {
            true => &[Link::Line, Link::Cloud, Link::Server],
            false => &[Link::Line, Link::Internet],
        };
        let mut builder = WorldBuilder::new("internet").host("client");
        for (i, link) in links.iter().enumerate() {
            let shape = Shape::delay(link.rtt(self) / 2)
                .rate(link.rate())
                .queue(link.queue())
                .loss(link.loss(self))
                .tolerance(TOLERANCE);
            let [a, b] = link.ends();
            let spec = LinkSpec::both(shape).seed(seed.wrapping_mul(8) + i as u64);
            builder = builder.host(b).link(a, b, spec);
        }
        for (host, key, value) in sysctls {
            builder = builder.sysctl(host, key, value);
        }
        builder.build()
    }
}

/// A link of a world.
#[derive(Clone, Copy)]
enum Link {
    /// The client's line. The near relay's host is also the client's first router.
    Line,
    /// The leg between the relays.
    Cloud,
    /// From the far relay to the server.
    Server,
    /// The Internet's path from the first router to a server with the same files.
    Internet,
}

impl Link {
    const ALL: [Self; 4] = [Self::Line, Self::Cloud, Self::Server, Self::Internet];

    fn ends(self) -> [&'static str; 2] {
        match self {
            Self::Line => ["client", "near"],
            Self::Cloud => ["near", "far"],
            Self::Server => ["far", "server"],
            Self::Internet => ["near", "origin"],
        }
    }

    fn rtt(self, path: Path) -> Duration {
        let [line, cloud, server] = path.legs();
        match self {
            Self::Line => line,
            Self::Cloud => cloud,
            Self::Server => server,
            Self::Internet => cloud + server,
        }
    }

    fn rate(self) -> BitsPerSecond {
        match self {
            Self::Line => LINE,
            _ => CLOUD,
        }
    }

    fn queue(self) -> Bytes {
        match self {
            Self::Line => LINE_QUEUE,
            _ => CLOUD_QUEUE,
        }
    }

    fn loss(self, path: Path) -> f64 {
        match self {
            Self::Internet => path.internet_loss(),
            _ => CLEAN_LOSS,
        }
    }
}

/// Returns the ideal pipe's time for a file (pied-piper 3.1), in seconds: a round trip of the whole
/// path, and the file at the rate of the client's line. Headers are not counted, because it is a
/// bound.
pub(super) fn ideal(path: Path, bytes: usize) -> f64 {
    path.rtt().as_secs_f64() + bytes as f64 * 8.0 / LINE.0 as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_internets_path_is_as_long_as_the_route_over_the_relays() {
        for path in Path::ALL {
            let internet = Link::Line.rtt(path) + Link::Internet.rtt(path);
            assert_eq!(internet, path.rtt(), "{path:?}");
        }
        assert_eq!(Path::IndiaUsWest.rtt(), Duration::from_micros(273_700));
    }

    #[test]
    fn the_cloud_loses_ten_times_less_than_the_internet() {
        for path in Path::ALL {
            let cloud: f64 = [Link::Line, Link::Cloud, Link::Server]
                .map(|link| link.loss(path))
                .iter()
                .sum();
            assert!(Link::Internet.loss(path) >= 10.0 * Link::Cloud.loss(path));
            assert!(cloud < Link::Internet.loss(path));
        }
    }

    #[test]
    fn the_ideal_is_one_round_trip_and_the_bytes_at_the_lines_rate() {
        let seconds = ideal(Path::EuropeUsEast, 100_000_000);
        assert!((seconds - 8.1064).abs() < 1e-9, "{seconds}");
    }
}
