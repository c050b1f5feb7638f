//! A route, and what is predicted of it.

use std::time::Duration;

use super::network::{Ends, Network, RelayId};
use super::path::Path;
use super::{Options, leg, terms};

/// The kind of a route (pied-piper 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The path of the Internet, without a relay.
    Direct,
    /// One relay.
    Single,
    /// Two relays: the nearest to the client and the nearest to the destination.
    Baseline,
    /// Two other relays.
    Two,
    /// Three relays.
    Three,
    /// Four relays.
    Four,
}

/// An end of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegEnd {
    /// The client.
    Client,
    /// A relay.
    Relay(RelayId),
    /// The destination.
    Destination,
}

/// A leg of a route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Leg {
    /// The end nearer to the client.
    pub from: LegEnd,
    /// The end nearer to the destination.
    pub to: LegEnd,
    /// The path between them.
    pub path: Path,
    /// The time from the first byte of the file to the last on this leg alone, if its source were
    /// never late.
    pub transfer: Duration,
}

/// A route and its predictions.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The relays, from the client to the destination; empty for the direct path.
    pub relays: Vec<RelayId>,
    /// The kind of the route.
    pub kind: Kind,
    /// The legs, from the client to the destination.
    pub legs: Vec<Leg>,
    /// From the client's SYN to the first byte of the answer, if the server answers at once.
    pub first_byte: Duration,
    /// From the client's SYN to the last byte of [`Options::size`].
    pub finish: Duration,
    /// The sum of the legs' round trips.
    pub total_rtt: Duration,
    /// The price of sending one GB through the route, in the currency of the members' prices.
    pub price: f64,
    /// The paper's estimator without splitting (4.4): the direct path's round trip over this
    /// route's.
    pub total_rtt_gain: Option<f64>,
    /// The paper's estimator with splitting (4.4), for three relays or more: how much faster than
    /// with the first and last relay alone, as their round trip over that of the slowest leg
    /// between relays.
    pub slowest_leg_gain: Option<f64>,
}

// === impl Candidate ===

impl Candidate {
    /// Predicts the route through these relays. `None` if a leg of it is not known.
    pub(super) fn predict(
        network: &Network,
        ends: &Ends,
        options: &Options,
        relays: &[RelayId],
    ) -> Option<Self> {
        let legs = legs(network, ends, options, relays)?;
        Some(Self::of_legs(network, ends, options, relays, legs))
    }

    fn of_legs(
        network: &Network,
        ends: &Ends,
        options: &Options,
        relays: &[RelayId],
        legs: Vec<Leg>,
    ) -> Self {
        let total_rtt: Duration = legs.iter().filter_map(|leg| leg.path.rtt()).sum();
        let first_byte = first_byte(&legs, options);
        let slowest = legs.iter().map(|leg| leg.transfer).max();
        let prices = relays.iter().filter_map(|&id| network.relay(id).price);
        Self {
            kind: kind(network, ends, options, relays),
            first_byte,
            finish: first_byte.saturating_add(slowest.unwrap_or_default()),
            total_rtt,
            // A sum of no prices would be -0.
            price: prices.fold(0.0, |sum, price| sum + price),
            total_rtt_gain: ends
                .direct
                .rtt()
                .and_then(|direct| ratio(direct, total_rtt)),
            slowest_leg_gain: slowest_leg_gain(network, relays),
            relays: relays.to_vec(),
            legs,
        }
    }

    /// Returns what routes are compared by: the sum of both predicted times.
    pub fn score(&self) -> Duration {
        self.first_byte.saturating_add(self.finish)
    }

    /// Returns the leg that takes longest for the file, which governs the route's rate.
    pub fn slowest_leg(&self) -> Option<&Leg> {
        self.legs.iter().max_by_key(|leg| leg.transfer)
    }

    /// Returns the same route, predicted with another round trip of one of its legs.
    pub(super) fn with_rtt(
        &self,
        network: &Network,
        ends: &Ends,
        options: &Options,
        leg: usize,
        rtt: Duration,
    ) -> Self {
        let mut legs = self.legs.clone();
        legs[leg].path = legs[leg].path.with_rtt(rtt);
        legs[leg].transfer = transfer(network, &legs[leg], options);
        Self::of_legs(network, ends, options, &self.relays, legs)
    }
}

fn legs(network: &Network, ends: &Ends, options: &Options, relays: &[RelayId]) -> Option<Vec<Leg>> {
    let mut legs = Vec::with_capacity(relays.len() + 1);
    let stops = relays.iter().map(|&id| LegEnd::Relay(id));
    let mut from = LegEnd::Client;
    for to in stops.chain([LegEnd::Destination]) {
        let path = match (from, to) {
            (LegEnd::Client, LegEnd::Relay(id)) => ends.from[usize::from(id)],
            (LegEnd::Relay(a), LegEnd::Relay(b)) => network.path(a, b),
            (LegEnd::Relay(id), _) => ends.to[usize::from(id)],
            _ => ends.direct,
        };
        let mut leg = Leg {
            from,
            to,
            path,
            transfer: Duration::ZERO,
        };
        path.rtt()?;
        leg.transfer = transfer(network, &leg, options);
        legs.push(leg);
        from = to;
    }
    Some(legs)
}

fn transfer(network: &Network, leg: &Leg, options: &Options) -> Duration {
    milliseconds(match (leg.from, leg.to) {
        (LegEnd::Relay(from), LegEnd::Relay(to)) => {
            let settings = network.leg(from, to).unwrap_or(options.legs);
            leg::mesh(leg.path, settings, options)
        }
        _ => leg::plain(leg.path, options),
    })
}

/// Returns the time from the client's SYN to the first byte of the answer: the handshakes of the
/// first and the last leg, and a round trip of every leg.
fn first_byte(legs: &[Leg], options: &Options) -> Duration {
    let rtt = |leg: &Leg| leg.path.rtt_ms();
    let (Some(first), Some(last)) = (legs.first(), legs.last()) else {
        return Duration::ZERO;
    };
    if legs.len() == 1 {
        return milliseconds(f64::from(2.0 * rtt(first)));
    }
    let between = legs[1..legs.len() - 1].iter();
    let mesh: f32 = between
        .map(|leg| terms::mesh_first_byte(rtt(leg), options))
        .sum();
    let handshakes = terms::handshakes(rtt(first), rtt(last), options);
    let ends = rtt(first) + rtt(last) + handshakes + terms::relay_delay(options);
    milliseconds(f64::from(mesh + ends))
}

fn kind(network: &Network, ends: &Ends, options: &Options, relays: &[RelayId]) -> Kind {
    match relays {
        [] => Kind::Direct,
        [_] => Kind::Single,
        [_, _] if baseline(network, ends, options).as_deref() == Some(relays) => Kind::Baseline,
        [_, _] => Kind::Two,
        [_, _, _] => Kind::Three,
        _ => Kind::Four,
    }
}

/// Returns the relays of the paper's baseline (2.1), or the one relay if it is nearest to both
/// ends.
pub(super) fn baseline(network: &Network, ends: &Ends, options: &Options) -> Option<Vec<RelayId>> {
    let allowed = |id| terms::is_allowed(network, options, id);
    let near = Ends::nearest(&ends.from, allowed)?;
    let far = Ends::nearest(&ends.to, allowed)?;
    Some(if near == far {
        vec![near]
    } else {
        vec![near, far]
    })
}

fn slowest_leg_gain(network: &Network, relays: &[RelayId]) -> Option<f64> {
    let [first, _, .., last] = relays else {
        return None;
    };
    let legs = relays.windows(2);
    let slowest = legs
        .filter_map(|leg| network.path(leg[0], leg[1]).rtt())
        .max()?;
    (relays.len() > 2)
        .then(|| network.path(*first, *last).rtt())
        .flatten()
        .and_then(|without| ratio(without, slowest))
}

fn ratio(a: Duration, b: Duration) -> Option<f64> {
    (!b.is_zero()).then(|| a.as_secs_f64() / b.as_secs_f64())
}

fn milliseconds(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1e3).unwrap_or(Duration::MAX)
}
