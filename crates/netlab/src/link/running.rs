//! A running link between two hosts.

use taut_sys::netns::Netns;
use taut_sys::tap::Tap;

use super::LinkError;
use super::counters::{DeviceCounters, DirectionReport, LinkReport};
use super::engine::{Engine, Snapshot};
use super::netem;
use super::shape::LinkSpec;

/// One end of a link.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// The host, by its number in the world.
    pub(crate) host: usize,
    /// The device's name in that host.
    pub(crate) device: String,
}

/// A link that carries traffic until it is dropped.
#[derive(Debug)]
pub(crate) struct Link {
    name: String,
    ends: [End; 2],
    carrier: Carrier,
}

#[derive(Debug)]
enum Carrier {
    User(Engine),
    /// Owns nothing: the devices and queueing disciplines go with the namespace in the middle.
    Netem,
}

// === impl Link ===

impl Link {
    /// Creates a TAP in each host and carries frames between them in user space. The devices are down
    /// and have no addresses.
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

    /// Joins the hosts by the kernel's netem, in the namespace `middle`.
    pub(crate) fn join_by_netem(
        name: String,
        ends: [(&Netns, End); 2],
        middle: &Netns,
        spec: &LinkSpec,
    ) -> Result<Self, LinkError> {
        if let Some(what) = netem::lacks(spec) {
            return Err(LinkError::OnlyUser { name, what });
        }
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

    /// Draws losses from another seed from now on. Has no effect on netem, which takes no seed.
    pub(crate) fn reseed(&self, seed: u64) {
        match &self.carrier {
            Carrier::User(engine) => engine.reseed(seed),
            Carrier::Netem => {}
        }
    }

    /// Cuts the given directions or restores them: from the first end to the second, and back. Returns
    /// `false` for netem, which cannot be cut.
    pub(crate) fn cut(&self, directions: [bool; 2], is_cut: bool) -> bool {
        match &self.carrier {
            Carrier::User(engine) => engine.cut(directions, is_cut),
            Carrier::Netem => return false,
        }
        true
    }

    pub(crate) fn ends(&self) -> &[End; 2] {
        &self.ends
    }

    /// Returns whether its ends are TAPs, whose drops in the kernel are the link's own.
    pub(crate) fn has_taps(&self) -> bool {
        matches!(self.carrier, Carrier::User(_))
    }

    /// Returns the link's own counters; those of the kernel's devices are 0.
    pub(crate) fn report(&self) -> LinkReport {
        let (backend, counts) = match &self.carrier {
            Carrier::User(engine) => ("user", engine.snapshot()),
            Carrier::Netem => ("netem", Snapshot::default()),
        };
        let direction = |from: usize| DirectionReport {
            path: counts.paths[from],
            device: DeviceCounters {
                malformed: counts.malformed[from],
                refused: counts.refused[from],
                not_taken: 0,
            },
        };
        LinkReport {
            name: self.name.clone(),
            backend,
            a_to_b: direction(0),
            b_to_a: direction(1),
            cpu: counts.cpu,
            scheduling: counts.scheduling,
        }
    }
}
