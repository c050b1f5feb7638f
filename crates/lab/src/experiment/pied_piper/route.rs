//! The world: client - near relay - far relay - server, with everything running on it.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::{Condition, Size, Way};
use crate::experiment::{ExperimentError, Request};
use crate::link::shape::{LinkSpec, Shape};
use crate::peer::curl::{self, Digest, Times};
use crate::peer::{Service, nginx, relay, ssh};
use crate::units::{BitsPerSecond, Bytes};
use crate::world::{World, WorldBuilder};

/// A link of the route.
pub(super) struct Leg {
    ends: [&'static str; 2],
    /// Round trip, in tenths of a millisecond: the paper's figures have one decimal.
    rtt_tenths_ms: u64,
    rate: BitsPerSecond,
    queue: Bytes,
}

/// Round trips from pied-piper 3.3. The paper gives no rates: the client's is a good residential
/// line of today with a queue of 100 ms, the others are what a small cloud machine gets ("up to
/// 2 Gbps", section 1) with a queue of 50 ms.
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

impl Leg {
    pub(super) const fn rtt(&self) -> Duration {
        Duration::from_micros(self.rtt_tenths_ms * 100)
    }

    pub(super) fn rate(&self) -> BitsPerSecond {
        self.rate
    }
}

/// The round trip of the whole route.
pub(super) fn rtt() -> Duration {
    LEGS.iter().map(Leg::rtt).sum()
}

/// The links for the environment of an outcome.
pub(super) fn describe() -> impl Iterator<Item = (String, String)> {
    LEGS.iter().map(|leg| {
        let text = format!(
            "{:?} round trip, {}, queue {}",
            leg.rtt(),
            leg.rate,
            leg.queue
        );
        (leg.ends.join("-"), text)
    })
}

/// Past due by this much, a delivery disturbs a download: it is under 2 % of the round trip.
/// (Times are compared with each other and with the floor, which is 306 ms.)
const TOLERANCE: Duration = Duration::from_millis(5);

/// The world with its services. Services go before the world they run in.
pub(super) struct Route {
    relays: [Service; 2],
    splitters: [ssh::Splitter; 2],
    server: Service,
    digests: Vec<(Size, Digest)>,
    world: World,
}

impl Route {
    pub(super) fn build(
        condition: Condition,
        lane: usize,
        request: &Request,
    ) -> Result<Self, ExperimentError> {
        let seed = request.seed.wrapping_mul(1_000).wrapping_add(lane as u64);
        let mut builder = WorldBuilder::new("pied-piper");
        for host in ["client", "near", "far", "server"] {
            builder = builder.host(host);
        }
        for (i, leg) in LEGS.iter().enumerate() {
            let loss = match condition {
                Condition::Lossy if i == 0 => 0.001,
                _ => 0.0,
            };
            let shape = Shape::delay(leg.rtt() / 2)
                .rate(leg.rate)
                .queue(leg.queue)
                .loss(loss)
                .tolerance(TOLERANCE);
            let spec = LinkSpec::both(shape).seed(seed.wrapping_mul(LEGS.len() as u64) + i as u64);
            builder = builder.link(leg.ends[0], leg.ends[1], spec);
        }
        let world = builder.build()?;
        let dir = world.dir().to_owned();

        let digests = make_files(&dir.join("www"), request.seed)
            .map_err(ExperimentError::machine("make the files to be downloaded"))?;
        let server = nginx::serve(world.host("server"), &dir)?;
        let (near, far) = (world.host("near"), world.host("far"));
        let second = relay::relay(far, &request.taut, server.addr, false, &dir)?;
        let bbr = Way::available().contains(&Way::RelayBbr);
        let first = relay::relay(near, &request.taut, second.addr, bbr, &dir)?;
        let keys = ssh::Keys::generate(&dir)?;
        let far_ssh = ssh::Splitter::start(far, &keys, server.addr, &dir)?;
        let near_ssh = ssh::Splitter::start(near, &keys, far_ssh.addr(), &dir)?;
        Ok(Self {
            relays: [first, second],
            splitters: [near_ssh, far_ssh],
            server,
            digests,
            world,
        })
    }

    pub(super) fn world(&self) -> &World {
        &self.world
    }

    /// Downloads one file and compares it with what the server has.
    pub(super) fn download(&self, way: Way, size: Size) -> Result<Times, ExperimentError> {
        let into: PathBuf = self.world.dir().join("download");
        let digest = self
            .digests
            .iter()
            .find(|(s, _)| *s == size)
            .map(|(_, d)| *d);
        let digest = digest.ok_or_else(|| std::io::ErrorKind::NotFound.into());
        let digest = digest.map_err(ExperimentError::machine("find what the file should be"))?;
        Ok(curl::fetch(
            self.world.host("client"),
            self.entrance(way),
            size.file(),
            digest,
            &into,
        )?)
    }

    /// What the client connects to.
    fn entrance(&self, way: Way) -> SocketAddr {
        match way {
            Way::EndToEnd => self.server.addr,
            Way::Ssh => self.splitters[0].addr(),
            Way::Relay => self.relays[0].addr,
            Way::RelayBbr => (self.relays[0].addr.ip(), relay::BBR_PORT).into(),
        }
    }
}

fn make_files(dir: &std::path::Path, seed: u64) -> std::io::Result<Vec<(Size, Digest)>> {
    fs::create_dir(dir)?;
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut digests = Vec::new();
    for size in Size::ALL {
        let mut bytes = vec![0; size.bytes()];
        random.fill_bytes(&mut bytes);
        let path = dir.join(size.file());
        fs::write(&path, bytes)?;
        digests.push((size, Digest::of(&path)?));
    }
    Ok(digests)
}
