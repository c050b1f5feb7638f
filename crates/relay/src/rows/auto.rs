//! Chooses the routes of forwards with `via = "auto"`.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use taut_mesh::members::MemberName;
use taut_mesh::plan::{Candidate, Ends, MAX_RELAYS, Options, Path, Planner, RelayId};
use taut_mesh::rows::{Key, MemberId};

use super::planned::{Planned, path, planned};
use super::thread::Work;
use crate::control::protocol::{RouteOption, RouteStatus};
use crate::route::auto::{AutoRoute, Chosen, Predicted};
use crate::route::peer::Way;
use crate::route::table::OfForward;

/// The number of routes of a destination that sessions try.
const MAX_WAYS: usize = 8;

/// The number of relays to which connections are held ready for one destination.
const KEPT: usize = 2;

impl Work {
    /// Chooses the routes again if something has changed.
    pub(super) fn replan(&mut self) {
        if self.replan.next(self.now).is_none_or(|at| at > self.now) {
            return;
        }
        let began = Instant::now();
        let autos = self.setup.autos();
        if !autos.is_empty() {
            self.choose_all(&autos);
        }
        self.replan.on_choice(self.now, began.elapsed());
    }

    fn choose_all(&mut self, autos: &[OfForward]) {
        let local = &self.mesh.local;
        let Planned { network, left_out } = planned(&local.name, &local.members, &self.table);
        self.left_out = left_out as u64;
        let Some(me) = network.find(self.mesh.local.name.as_str()) else {
            return;
        };
        let planner = Planner::new(&network, self.plan_options());
        for auto in autos {
            self.choose(&auto.route, auto.direct, &planner, me);
        }
        self.keep_connections(&autos.iter().map(|auto| &*auto.route).collect::<Vec<_>>());
    }

    fn plan_options(&self) -> Options {
        let hops = usize::from(self.mesh.hop_limit);
        Options {
            max_relays: MAX_RELAYS.min(hops + 1),
            pool: self.mesh.pool.max > 0,
            ..self.mesh.plan.clone()
        }
    }

    fn choose(&self, auto: &AutoRoute, direct: bool, planner: &Planner<'_>, me: RelayId) {
        let network = planner.network();
        let name = &self.mesh.local.name;
        let to = network.ids().map(|id| {
            let of = MemberId::of(&network.relay(id).name);
            let row = self.table.row(of);
            let figure = match id == me {
                // What its forwards may reach is not what sessions of others may, so it has a key of its own.
                true if direct => {
                    let key = Key::destination(&auto.destination, Some(name));
                    row.and_then(|row| row.outside(key))
                }
                true => None,
                false => row.and_then(|row| row.destination(&auto.destination, name)),
            };
            figure.map_or(Path::UNKNOWN, path)
        });
        let ends = Ends::at_relay(network, me, to.collect());
        let before = auto.chosen();
        let current = before.predicted.first().and_then(|first| {
            let relays = first
                .relays
                .iter()
                .map(|relay| network.find(relay.as_str()));
            std::iter::once(Some(me))
                .chain(relays)
                .collect::<Option<Vec<_>>>()
        });
        let ranking = planner.choose(&ends, current.as_deref());
        let routes: Vec<_> = ranking
            .routes
            .iter()
            .filter(|r| r.relays.first() == Some(&me))
            .collect();
        let after = |route: &Candidate| -> Vec<MemberName> {
            let relays = route.relays[1..].iter();
            relays.map(|id| network.relay(*id).name.clone()).collect()
        };
        let (mut ways, mut first) = (Vec::new(), HashSet::new());
        let mut predicted = Vec::new();
        for route in &routes {
            let relays = after(route);
            if let Some((next, rest)) = relays.split_first() {
                // One that an operator has drained is no peer.
                let peer = self.mesh.peer(next).filter(|_| ways.len() < MAX_WAYS);
                let Some(peer) = peer.filter(|_| first.insert(next.clone())) else {
                    continue;
                };
                ways.push(Way {
                    peer: peer.clone(),
                    route: rest.to_vec(),
                });
            }
            predicted.push(Predicted {
                relays,
                first_byte: route.first_byte,
            });
        }
        let is_same = |a: Option<&Predicted>, b: Option<&Predicted>| {
            a.map(|route| &route.relays) == b.map(|route| &route.relays)
        };
        let stays = is_same(before.predicted.first(), predicted.first());
        let why = why(&predicted);
        if !stays {
            let to = &auto.destination;
            tracing::info!(%to, "automatic route: {why}");
        }
        auto.choose(Chosen {
            direct_first: predicted
                .first()
                .is_some_and(|route| route.relays.is_empty()),
            ways: ways.into(),
            why,
            since: if stays { before.since } else { self.now },
            predicted,
        });
    }

    /// Has connections held ready to the relays that sessions try first, and to no others besides those that
    /// the configuration names.
    fn keep_connections(&self, autos: &[&AutoRoute]) {
        let mut kept = HashSet::new();
        for auto in autos {
            let chosen = auto.chosen();
            kept.extend(
                chosen
                    .ways
                    .iter()
                    .take(KEPT)
                    .map(|way| way.peer.name.clone()),
            );
        }
        for peer in &self.mesh.peers {
            let keeps = peer.is_named || kept.contains(&peer.name);
            peer.kept.store(keeps, Ordering::Relaxed);
        }
    }

    /// Returns the automatic routes for an operator.
    pub(super) fn routes(&self) -> Vec<RouteStatus> {
        let own = self.mesh.local.name.to_string();
        let relays = |route: &Predicted| -> Vec<String> {
            let after = route.relays.iter().map(ToString::to_string);
            std::iter::once(own.clone()).chain(after).collect()
        };
        let status = |chosen: Arc<Chosen>, forward: String, to: String| {
            let first = chosen.predicted.first();
            RouteStatus {
                forward,
                to,
                choice: first.map(relays).unwrap_or_default(),
                first_byte_ms: first.map(|route| ms(route.first_byte)),
                others: chosen
                    .predicted
                    .iter()
                    .skip(1)
                    .map(|route| RouteOption {
                        relays: relays(route),
                        first_byte_ms: ms(route.first_byte),
                    })
                    .collect(),
                why: chosen.why.clone(),
                since_s: self
                    .now
                    .saturating_duration_since(chosen.since)
                    .as_secs_f64(),
            }
        };
        let autos = self.setup.autos().into_iter();
        autos
            .map(|auto| {
                status(
                    auto.route.chosen(),
                    auto.forward,
                    auto.route.destination.to_string(),
                )
            })
            .collect()
    }
}

/// Says which route is the choice, and by how much.
fn why(predicted: &[Predicted]) -> String {
    let name = |route: &Predicted| match &route.relays[..] {
        [] => "the direct path".to_owned(),
        relays => {
            let names: Vec<_> = relays.iter().map(MemberName::as_str).collect();
            format!("through {}", names.join(" > "))
        }
    };
    let [first, others @ ..] = predicted else {
        return "no route: no relay has measured the path to the destination yet, or `allow` refuses it on every relay"
            .to_owned();
    };
    let time = |route: &Predicted| format!("{:.1} ms", ms(route.first_byte));
    match others.first() {
        None => format!(
            "{}: first byte after {}; no other route is known",
            name(first),
            time(first)
        ),
        Some(second) => format!(
            "{}: first byte after {}; {}: after {}",
            name(first),
            time(first),
            name(second),
            time(second)
        ),
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
