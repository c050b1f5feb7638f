//! The world: client - near relay - far relay - server, and the Internet's own path beside it.

use std::time::Duration;

use super::download::Condition;
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::{BitsPerSecond, Bytes};
use taut_netlab::world::{World, WorldBuilder, WorldError};

/// A link of the world.
pub(super) struct Leg {
    ends: [&'static str; 2],
    /// The round trip, in tenths of a millisecond: the paper's figures have one decimal.
    rtt_tenths_ms: u64,
    rate: BitsPerSecond,
    queue: Bytes,
}

/// The round trips are from pied-piper 3.3, which gives no rates. The client's link is a good
/// residential line of today with a queue of 100 ms. The other links are those of a small cloud
/// machine ("up to 2 Gbps", section 1) with a queue of 50 ms.
pub(super) const LEGS: [Leg; 3] = [
    Leg {
        ends: ["client", "near"],
        rtt_tenths_ms: 327,
        rate: BitsPerSecond::mega(100),
        queue: Bytes::kilo(1_250),
    },
    Leg {
        ends: ["near", "far"],
        rtt_tenths_ms: 2_150,
        rate: BitsPerSecond::giga(1),
        queue: Bytes::kilo(6_250),
    },
    Leg {
        ends: ["far", "server"],
        rtt_tenths_ms: 260,
        rate: BitsPerSecond::giga(1),
        queue: Bytes::kilo(6_250),
    },
];

/// The rest of the Internet's own path, from the client's first router to a server that has the
/// same files. The near relay's host is also that router. The paper does not give the path's round
/// trip; here both paths have the same round trip, so that only the relays make a difference.
const BYPASS: Leg = Leg {
    ends: ["near", "origin"],
    rtt_tenths_ms: LEGS[1].rtt_tenths_ms + LEGS[2].rtt_tenths_ms,
    rate: BitsPerSecond::giga(1),
    queue: Bytes::kilo(6_250),
};

/// The rate of the client's link when the two flows of pied-piper 6.3 share it. The paper does not
/// give this rate; here it is what the FCC called broadband when the paper was written. At this
/// rate, files of 50 MB last long enough for two control loops to reach a balance. The interval
/// between two losses of Cubic grows with the window (RFC 9438, 4.2); at 100 Mbit/s it would be as
/// long as the download.
pub(super) const BOTTLENECK: BitsPerSecond = BitsPerSecond::mega(25);

/// Returns the queue of that link: one round trip at its rate, the traditional size in routers.
pub(super) fn bottleneck_queue() -> Bytes {
    BOTTLENECK.in_time(LEGS[0].rtt())
}

impl Leg {
    pub(super) const fn rtt(&self) -> Duration {
        Duration::from_micros(self.rtt_tenths_ms * 100)
    }

    pub(super) fn rate(&self) -> BitsPerSecond {
        self.rate
    }

    fn all() -> impl Iterator<Item = &'static Self> {
        LEGS.iter().chain([&BYPASS])
    }
}

/// Returns the round trip of the whole route.
pub(super) fn rtt() -> Duration {
    LEGS.iter().map(Leg::rtt).sum()
}

/// Describes the links for the environment of an outcome.
pub(super) fn describe() -> impl Iterator<Item = (String, String)> {
    Leg::all().map(|leg| {
        let text = format!(
            "{:?} round trip, {}, queue {}",
            leg.rtt(),
            leg.rate,
            leg.queue
        );
        (leg.ends.join("-"), text)
    })
}

/// A delivery that is late by more than this disturbs a download: less than 2 % of the round trip.
/// (Times are compared with one another and with the floor, which is 306 ms.)
const TOLERANCE: Duration = Duration::from_millis(5);

/// What differs between worlds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Setting {
    /// The share of segments lost on the client's link.
    loss: f64,
    /// The rate and the queue of the client's link, if they differ from those in [`LEGS`].
    bottleneck: Option<(BitsPerSecond, Bytes)>,
    /// Whether the client does not scale its window (RFC 7323, 2). Without scaling, the window
    /// cannot exceed 65,535 bytes, whatever the buffers are.
    unscaled_window: bool,
}

impl Setting {
    pub(super) fn of(condition: Condition) -> Self {
        let plain = Self::default();
        match condition {
            Condition::Clean => plain,
            Condition::Lossy => Self {
                loss: 0.001,
                ..plain
            },
            Condition::Window => Self {
                unscaled_window: true,
                ..plain
            },
        }
    }

    /// Returns the setting for two flows to one client.
    pub(super) fn bottleneck() -> Self {
        Self {
            bottleneck: Some((BOTTLENECK, bottleneck_queue())),
            ..Self::default()
        }
    }
}

/// Builds the world, without processes.
pub(super) fn build(setting: Setting, seed: u64) -> Result<World, WorldError> {
    let mut builder = WorldBuilder::new("pied-piper");
    for host in ["client", "near", "far", "server", "origin"] {
        builder = builder.host(host);
    }
    for (i, leg) in Leg::all().enumerate() {
        let (mut loss, mut rate, mut queue) = (0.0, leg.rate, leg.queue);
        // All ways share the client's link.
        if i == 0 {
            loss = setting.loss;
            (rate, queue) = setting.bottleneck.unwrap_or((rate, queue));
        }
        let shape = Shape::delay(leg.rtt() / 2)
            .rate(rate)
            .queue(queue)
            .loss(loss)
            .tolerance(TOLERANCE);
        let spec = LinkSpec::both(shape).seed(seed.wrapping_mul(8) + i as u64);
        builder = builder.link(leg.ends[0], leg.ends[1], spec);
    }
    if setting.unscaled_window {
        builder = builder.sysctl("client", "net.ipv4.tcp_window_scaling", "0");
    }
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_paths_have_the_papers_round_trip() {
        assert_eq!(rtt(), Duration::from_micros(273_700));
        assert_eq!(LEGS[0].rtt() + BYPASS.rtt(), rtt());
    }

    #[test]
    fn the_shared_bottleneck_holds_one_round_trip() {
        // 25 Mbit/s for 32.7 ms.
        assert_eq!(bottleneck_queue(), Bytes(102_187));
    }
}
