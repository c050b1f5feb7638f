//! A link between two hosts of a world.

use taut_sys::netns::Netns;
use taut_sys::tap::Tap;

use super::LinkError;
use super::counters::{DeviceCounters, DirectionReport, LinkReport};
use super::engine::{Engine, Published};
use super::netem;
use super::shape::LinkSpec;

/// Where one end of a link is.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// The host, by its number in the world.
    pub(crate) host: usize,
    /// The device's name in that host.
    pub(crate) device: String,
}

/// A link that exists.
#[derive(Debug)]
pub(crate) struct Link {
    name: String,
    ends: [End; 2],
    carrier: Carrier,
}

#[derive(Debug)]
enum Carrier {
    User(Engine),
    /// Nothing to hold: the devices and disciplines go with the middle's namespace.
    Netem,
}

// === impl Link ===

impl Link {
    /// Makes a device in each host and carries frames between them in user space. The devices are
    /// down, without addresses.
    pub(crate) fn join(
        name: String,
        ends: [(&Netns, End); 2],
        spec: &LinkSpec,
    ) -> Result<Self, LinkError> {
        let [(a, end_a), (b, end_b)] = ends;
        let tap = |host: &Netns, end: &End| -> Result<Tap, LinkError> {
            Ok(host.run(|| Tap::create(&end.device))??)
        };
        let taps = [tap(a, &end_a)?, tap(b, &end_b)?];
        let engine = Engine::start(&name, taps, spec).map_err(|source| LinkError::Start {
            name: name.clone(),
            source,
        })?;
        Ok(Self {
            name,
            ends: [end_a, end_b],
            carrier: Carrier::User(engine),
        })
    }

    /// The same with the kernel's netem, in the namespace `middle`.
    pub(crate) fn join_by_netem(
        name: String,
        ends: [(&Netns, End); 2],
        middle: &Netns,
        spec: &LinkSpec,
    ) -> Result<Self, LinkError> {
        let [(a, end_a), (b, end_b)] = ends;
        netem::probe(&name, middle)?;
        let hosts = [(a, &*end_a.device), (b, &*end_b.device)];
        netem::join(&name, middle, hosts, spec)?;
        Ok(Self {
            name,
            ends: [end_a, end_b],
            carrier: Carrier::Netem,
        })
    }

    /// Draws losses from another seed from now on. Netem has none.
    pub(crate) fn reseed(&self, seed: u64) {
        match &self.carrier {
            Carrier::User(engine) => engine.reseed(seed),
            Carrier::Netem => {}
        }
    }

    /// Cuts it in both directions, or mends it; `false` when nothing here can: netem.
    pub(crate) fn cut(&self, is_cut: bool) -> bool {
        match &self.carrier {
            Carrier::User(engine) => engine.cut(is_cut),
            Carrier::Netem => return false,
        }
        true
    }

    pub(crate) fn ends(&self) -> &[End; 2] {
        &self.ends
    }

    /// Whether the kernel counts drops at its ends that are the link's own.
    pub(crate) fn has_taps(&self) -> bool {
        matches!(self.carrier, Carrier::User(_))
    }

    /// What the link itself counted.
    pub(crate) fn report(&self) -> LinkReport {
        let (backend, seen) = match &self.carrier {
            Carrier::User(engine) => ("user", engine.published()),
            Carrier::Netem => ("netem", Published::default()),
        };
        let direction = |from: usize| DirectionReport {
            path: seen.paths[from],
            device: DeviceCounters {
                malformed: seen.malformed[from],
                refused: seen.refused[from],
                not_taken: 0,
            },
        };
        LinkReport {
            name: self.name.clone(),
            backend,
            a_to_b: direction(0),
            b_to_a: direction(1),
            cpu: seen.cpu,
            scheduling: seen.scheduling,
        }
    }
}
