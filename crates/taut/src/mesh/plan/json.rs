//! The plan as JSON (docs/mesh-plan.md lists the fields).

use std::time::Duration;

use serde::Serialize;
use taut_observe::versioned::Versioned;
use taut_relay::plan::{Candidate, Change, Endpoint, Leg, LegEnd, Planner, Ranking, RelayId};

use crate::failure::Failure;

#[derive(Serialize)]
struct Plan<'a> {
    /// The relay, address or prefix where a session begins.
    from: String,
    /// The one where it ends.
    to: String,
    /// The size of the file that a session carries.
    size_bytes: u64,
    /// Whether every route was looked at, so that no better one exists.
    complete: bool,
    /// The routes, the choice first.
    routes: Vec<Route<'a>>,
    /// What would change the choice.
    changes: Vec<Condition<'a>>,
}

/// A route, and what is predicted of it.
#[derive(Serialize)]
pub(super) struct Route<'a> {
    /// The relays in order; none for the direct path.
    relays: Vec<&'a str>,
    /// `direct`, `single`, `baseline`, `two`, `three` or `four`.
    kind: &'static str,
    /// The predicted time to the first byte, in milliseconds.
    first_byte_ms: f64,
    /// The predicted time to the last byte, in milliseconds.
    finish_ms: f64,
    /// Sum of the round-trip times of the legs, in milliseconds.
    total_rtt_ms: f64,
    /// Sum of the relays' prices per GB.
    price_per_gb: f64,
    /// The direct path's round-trip time over this sum; `None` if that is unknown.
    total_rtt_gain: Option<f64>,
    /// For three relays or more: the round-trip time between the first and the last relay over that of the
    /// slowest leg between relays.
    slowest_leg_gain: Option<f64>,
    /// The legs from the one end to the other.
    legs: Vec<RouteLeg<'a>>,
}

#[derive(Serialize)]
struct RouteLeg<'a> {
    /// A relay or an end.
    from: &'a str,
    /// The next relay or the other end.
    to: &'a str,
    /// The round-trip time, in milliseconds.
    rtt_ms: f64,
    /// The share of lost segments, from 0 to 1.
    loss: f64,
    /// The rate of the path in bits a second; `None` if it is unknown.
    rate_bit_s: Option<u64>,
    /// The predicted time that the file takes on this leg alone, in milliseconds.
    transfer_ms: f64,
    /// Whether this leg decides how long the whole transfer takes.
    governs: bool,
}

/// A change after which another route would be the choice.
#[derive(Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
enum Condition<'a> {
    /// A round trip of the choice becomes longer.
    RttRises {
        /// One end of the leg.
        from: &'a str,
        /// The other end of the leg.
        to: &'a str,
        /// The round-trip time from which on another route is better, in milliseconds.
        above_ms: f64,
        /// The relays of the route that is better then.
        then: Vec<&'a str>,
    },
    /// A round trip of another route becomes shorter.
    RttFalls {
        /// One end of the leg.
        from: &'a str,
        /// The other end of the leg.
        to: &'a str,
        /// The round-trip time below which that route is better, in milliseconds.
        below_ms: f64,
    },
    /// A relay of the choice is lost.
    RelayLost {
        /// The relay.
        relay: &'a str,
        /// The choice without it; `None` if there is no other route.
        then: Option<Route<'a>>,
    },
}

pub(super) fn plan(
    planner: &Planner<'_>,
    from: &Endpoint,
    to: &Endpoint,
    ranking: &Ranking,
    changes: &[Change],
) -> Result<String, Failure> {
    let names = Names(planner);
    let plan = Plan {
        from: from.to_string(),
        to: to.to_string(),
        size_bytes: planner.options().size,
        complete: ranking.is_complete,
        routes: ranking.routes.iter().map(|r| names.route(r)).collect(),
        changes: changes
            .iter()
            .filter_map(|change| names.condition(ranking, change))
            .collect(),
    };
    line(&plan)
}

/// Returns a line of JSON.
pub(super) fn line(value: &impl Serialize) -> Result<String, Failure> {
    let text = Versioned::new(value).line();
    text.map_err(|e| Failure::Run(format!("cannot write JSON: {e}")))
}

/// The names of a planner's relays.
pub(super) struct Names<'a>(pub(super) &'a Planner<'a>);

// === impl Names ===

impl<'a> Names<'a> {
    fn relay(&self, id: RelayId) -> &'a str {
        self.0.network().relay(id).name.as_str()
    }

    fn end(&self, end: LegEnd) -> &'a str {
        match end {
            LegEnd::Client => "client",
            LegEnd::Relay(id) => self.relay(id),
            LegEnd::Destination => "destination",
        }
    }

    pub(super) fn route(&self, route: &Candidate) -> Route<'a> {
        let governing = route.slowest_leg();
        Route {
            relays: route.relays.iter().map(|&id| self.relay(id)).collect(),
            kind: super::text::kind(route.kind),
            first_byte_ms: ms(route.first_byte),
            finish_ms: ms(route.finish),
            total_rtt_ms: ms(route.total_rtt),
            price_per_gb: route.price,
            total_rtt_gain: route.total_rtt_gain,
            slowest_leg_gain: route.slowest_leg_gain,
            legs: route
                .legs
                .iter()
                .map(|leg| self.leg(leg, governing == Some(leg)))
                .collect(),
        }
    }

    fn leg(&self, leg: &Leg, governs: bool) -> RouteLeg<'a> {
        RouteLeg {
            from: self.end(leg.from),
            to: self.end(leg.to),
            rtt_ms: ms(leg.path.rtt().unwrap_or_default()),
            loss: leg.path.loss(),
            rate_bit_s: leg.path.rate(),
            transfer_ms: ms(leg.transfer),
            governs,
        }
    }

    fn condition(&self, ranking: &Ranking, change: &Change) -> Option<Condition<'a>> {
        let leg = |route: usize, leg: usize| -> Option<(&'a str, &'a str)> {
            let leg = ranking.routes.get(route)?.legs.get(leg)?;
            Some((self.end(leg.from), self.end(leg.to)))
        };
        Some(match change {
            Change::Rises { leg: at, rtt, then } => {
                let (from, to) = leg(0, *at)?;
                let then = &ranking.routes.get(*then)?.relays;
                Condition::RttRises {
                    from,
                    to,
                    above_ms: ms(*rtt),
                    then: then.iter().map(|&id| self.relay(id)).collect(),
                }
            }
            Change::Falls { leg: at, rtt } => {
                let (from, to) = leg(1, *at)?;
                let below_ms = ms(*rtt);
                Condition::RttFalls { from, to, below_ms }
            }
            Change::Lost { relay, then } => Condition::RelayLost {
                relay: self.relay(*relay),
                then: then.as_deref().map(|route| self.route(route)),
            },
        })
    }
}

fn ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}
