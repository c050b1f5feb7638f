//! The terms that each leg adds to a route's score, in the form in which a search adds it up.
//!
//! A route's score is its time to the first byte plus its time for the whole file, in milliseconds.
//! The first byte's time is a sum over the legs; the file adds the time of the slowest leg. So each
//! leg has a *weight*, which is added, and a *transfer time*, of which the largest counts.

use super::network::{Ends, Network, RelayId};
use super::path::Path;
use super::{Options, leg};

/// The score counts the time to the first byte twice: by itself, and as a part of the whole file's
/// time.
const FIRST_BYTE: f32 = 2.0;

/// The legs between relays: weight and transfer time from each relay to each, infinite where no
/// route may go. 8 bytes for each pair.
#[derive(Debug)]
pub(super) struct MeshTerms {
    n: usize,
    weights: Vec<f32>,
    times: Vec<f32>,
}

/// The legs between relays and the destination.
#[derive(Debug, Default)]
pub(super) struct LastTerms {
    /// The least that the leg can add: its own round trip, and its handshake.
    pub(super) weights: Vec<f32>,
    pub(super) times: Vec<f32>,
    /// Its round trip.
    pub(super) rtts: Vec<f32>,
}

/// The legs between the client and relays.
#[derive(Debug, Default)]
pub(super) struct FirstTerms {
    pub(super) weights: Vec<f32>,
    pub(super) times: Vec<f32>,
    /// Its round trip.
    pub(super) rtts: Vec<f32>,
}

/// Returns whether a route may use a relay.
pub(super) fn is_allowed(network: &Network, options: &Options, id: RelayId) -> bool {
    let relay = network.relay(id);
    let in_cloud = |allowed: &String| relay.cloud.as_ref() == Some(allowed);
    relay.usable && (options.clouds.is_empty() || options.clouds.iter().any(in_cloud))
}

/// Returns the handshakes of a route's first and last leg, as a part of its time to the first byte.
/// With early SYN they overlap (pied-piper 3.2, improvement 1).
pub(super) fn handshakes(first: f32, last: f32, options: &Options) -> f32 {
    match options.early_syn {
        true => first.max(last),
        false => first + last,
    }
}

/// Returns the time that a leg between relays adds to the first byte. A connection from the pool
/// has made its handshakes already; one that is dialled takes two round trips more, of TCP and of
/// TLS.
pub(super) fn mesh_first_byte(rtt: f32, options: &Options) -> f32 {
    let round_trips = if options.pool { 1.0 } else { 3.0 };
    rtt * round_trips + relay_delay(options)
}

/// Returns the time that passing a relay adds to a round trip.
pub(super) fn relay_delay(options: &Options) -> f32 {
    (options.relay_delay.as_secs_f64() * 1e3) as f32
}

// === impl MeshTerms ===

impl MeshTerms {
    pub(super) fn new(network: &Network, options: &Options) -> Self {
        let n = network.len();
        let allowed: Vec<bool> = network
            .ids()
            .map(|id| is_allowed(network, options, id))
            .collect();
        let mut terms = Self {
            n,
            weights: vec![f32::INFINITY; n * n],
            times: vec![f32::INFINITY; n * n],
        };
        for from in network.ids().filter(|&id| allowed[usize::from(id)]) {
            for (to, path) in network.row(from).iter().enumerate() {
                let usable = allowed[to] && to != usize::from(from) && path.is_known();
                if usable {
                    let at = usize::from(from) * n + to;
                    terms.weights[at] = FIRST_BYTE * mesh_first_byte(path.rtt_ms(), options);
                    // The number of relays fits into a `RelayId`.
                    let settings = network.leg(from, to as RelayId).unwrap_or(options.legs);
                    terms.times[at] = leg::mesh(*path, settings, options) as f32;
                }
            }
        }
        terms
    }

    pub(super) fn len(&self) -> usize {
        self.n
    }

    pub(super) fn weights(&self, from: usize) -> &[f32] {
        &self.weights[from * self.n..(from + 1) * self.n]
    }

    pub(super) fn times(&self, from: usize) -> &[f32] {
        &self.times[from * self.n..(from + 1) * self.n]
    }
}

// === impl LastTerms ===

impl LastTerms {
    pub(super) fn new(network: &Network, to: &[Path], options: &Options) -> Self {
        let mut terms = Self::default();
        for (id, path) in network.ids().zip(to) {
            let rtt = path.rtt_ms();
            let known = path.is_known() && is_allowed(network, options, id);
            let (weight, time) = match known {
                true => (
                    FIRST_BYTE * (2.0 * rtt + relay_delay(options)),
                    leg::plain(*path, options) as f32,
                ),
                false => (f32::INFINITY, f32::INFINITY),
            };
            terms.weights.push(weight);
            terms.times.push(time);
            terms.rtts.push(rtt);
        }
        terms
    }
}

// === impl FirstTerms ===

impl FirstTerms {
    pub(super) fn new(network: &Network, ends: &Ends, options: &Options) -> Self {
        let mut terms = Self::default();
        for (id, path) in network.ids().zip(&ends.from) {
            let rtt = path.rtt_ms();
            let known = path.is_known() && is_allowed(network, options, id);
            let handshake = if options.early_syn { 0.0 } else { rtt };
            let (weight, time) = match known {
                true => (
                    FIRST_BYTE * (rtt + handshake),
                    leg::plain(*path, options) as f32,
                ),
                false => (f32::INFINITY, f32::INFINITY),
            };
            terms.weights.push(weight);
            terms.times.push(time);
            terms.rtts.push(rtt);
        }
        terms
    }

    /// Returns the terms of sessions that are at a relay already, whichever it is.
    pub(super) fn at_every_relay(network: &Network, options: &Options) -> Self {
        let weight = |id| match is_allowed(network, options, id) {
            true => 0.0,
            false => f32::INFINITY,
        };
        Self {
            weights: network.ids().map(weight).collect(),
            times: vec![0.0; network.len()],
            rtts: vec![0.0; network.len()],
        }
    }

    /// Returns what the first and the last leg together add beyond their weights.
    pub(super) fn together(first_rtt: f32, last_rtt: f32, options: &Options) -> f32 {
        match options.early_syn {
            true => FIRST_BYTE * (first_rtt - last_rtt).max(0.0),
            false => 0.0,
        }
    }
}
