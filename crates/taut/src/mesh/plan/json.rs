//! The plan as JSON (docs/mesh-plan.md lists the fields).

use std::time::Duration;

use serde::Serialize;
use taut_relay::plan::{Candidate, Change, Endpoint, Leg, LegEnd, Planner, Ranking, RelayId};

use crate::Failure;

#[derive(Serialize)]
struct Plan<'a> {
    from: String,
    to: String,
    size_bytes: u64,
    complete: bool,
    /// The choice first.
    routes: Vec<Route<'a>>,
    changes: Vec<Condition<'a>>,
}

/// A route, and what is predicted of it.
#[derive(Serialize)]
pub(super) struct Route<'a> {
    relays: Vec<&'a str>,
    kind: &'static str,
    first_byte_ms: f64,
    finish_ms: f64,
    total_rtt_ms: f64,
    price_per_gb: f64,
    total_rtt_gain: Option<f64>,
    slowest_leg_gain: Option<f64>,
    legs: Vec<RouteLeg<'a>>,
}

#[derive(Serialize)]
struct RouteLeg<'a> {
    from: &'a str,
    to: &'a str,
    rtt_ms: f64,
    loss: f64,
    rate_bit_s: Option<u64>,
    transfer_ms: f64,
    governs: bool,
}

/// A change after which another route would be the choice.
#[derive(Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
enum Condition<'a> {
    RttRises {
        from: &'a str,
        to: &'a str,
        above_ms: f64,
        then: Vec<&'a str>,
    },
    RttFalls {
        from: &'a str,
        to: &'a str,
        below_ms: f64,
    },
    RelayLost {
        relay: &'a str,
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
    let text = serde_json::to_string(value);
    let text = text.map_err(|e| Failure::Run(format!("cannot write JSON: {e}")))?;
    Ok(text + "\n")
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
