//! Chooses the routes of forwards with `via = "auto"`.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use taut_mesh::auto::{Planned, Predicted, Wanted, choose, planned, why};
use taut_mesh::plan::{MAX_RELAYS, Options, Planner};

use super::thread::Work;
use crate::control::protocol::{RouteOption, RouteStatus};
use crate::route::auto::{AutoRoute, Chosen};
use crate::route::peer::Way;
use crate::route::table::OfForward;

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
        if network.find(local.name.as_str()).is_none() {
            return;
        }
        let planner = Planner::new(&network, self.plan_options());
        for auto in autos {
            self.choose(&auto.route, auto.direct, &planner);
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

    fn choose(&self, auto: &AutoRoute, direct: bool, planner: &Planner<'_>) {
        let before = auto.chosen();
        let wanted = Wanted {
            own: &self.mesh.local.name,
            destination: &auto.destination,
            direct,
            before: &before.predicted,
        };
        let is_peer = |name: &_| self.mesh.peer(name).is_some();
        let predicted = choose(wanted, planner, &self.table, is_peer);
        let way = |route: &Predicted| {
            let (next, rest) = route.relays.split_first()?;
            Some(Way {
                peer: self.mesh.peer(next)?.clone(),
                route: rest.to_vec(),
            })
        };
        let ways: Vec<_> = predicted.iter().filter_map(way).collect();
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

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
