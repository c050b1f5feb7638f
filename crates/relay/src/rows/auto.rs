//! Chooses the routes of forwards with `via = "auto"`.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use taut_mesh::auto::{Planned, Predicted, RouteQuery, choose, planned, why};
use taut_mesh::plan::{MAX_RELAYS, Options, Planner};

use super::kept::{Kept, MAX_FILE, decode};
use super::thread::Work;
use crate::control::protocol::{RouteOption, RouteStatus};
use crate::route::auto::{AutoRoute, Chosen};
use crate::route::peer::Way;
use crate::route::table::OfForward;

/// The number of relays to which connections are held ready for one destination.
const HELD_READY: usize = 2;

/// How long the routes of the former process stay in use if measurements do not show the first of
/// them.
const RECALLED_FOR: Duration = Duration::from_secs(10);

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
        let Planned {
            mut network,
            left_out,
        } = planned(&local.name, &local.members, &self.table);
        self.left_out = left_out as u64;
        let Some(me) = network.find(local.name.as_str()) else {
            return;
        };
        for (member, settings) in &self.mesh.planned_legs {
            if let Some(to) = network.find(member.as_str()) {
                network.set_leg(me, to, *settings);
            }
        }
        let planner = Planner::new(&network, self.plan_options());
        let mut waits = false;
        for auto in autos {
            waits |= !self.choose(&auto.route, auto.direct, &planner);
        }
        if waits {
            self.replan.choose_at(self.started + RECALLED_FOR);
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

    /// Chooses the routes of one destination. Returns `false` if those that were in use before the
    /// start stay, until measurements show them or [`RECALLED_FOR`] is over.
    fn choose(&self, auto: &AutoRoute, direct: bool, planner: &Planner<'_>) -> bool {
        let before = auto.chosen();
        let query = RouteQuery {
            own: &self.mesh.local.name,
            destination: &auto.destination,
            direct,
            before: &before.predicted,
        };
        let is_peer = |name: &_| self.mesh.peer(name).is_some();
        let predicted = choose(query, planner, &self.table, is_peer);
        if before.recalled && self.now < self.started + RECALLED_FOR {
            // The first measurements may be incomplete, such as the direct path alone.
            let first = before.predicted.first().map(|route| &route.relays);
            if !predicted.iter().any(|route| Some(&route.relays) == first) {
                return false;
            }
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
            ways: self.ways(&predicted),
            why,
            since: if stays { before.since } else { self.now },
            recalled: false,
            predicted,
        });
        true
    }

    /// Returns the routes through other relays in the form in which sessions take them.
    fn ways(&self, routes: &[Predicted]) -> Arc<[Way]> {
        let way = |route: &Predicted| {
            let (next, rest) = route.relays.split_first()?;
            Some(Way {
                peer: self.mesh.peer(next)?.clone(),
                route: rest.to_vec(),
            })
        };
        routes.iter().filter_map(way).collect()
    }

    // === from one start to the next ===

    /// Takes up the routes that were in use before the start, so that sessions need not wait until
    /// paths are measured again.
    pub(super) fn recall(&mut self) {
        let Some(path) = &self.mesh.routes_file else {
            return;
        };
        let known = decode(&read(path));
        for auto in self.setup.autos() {
            let is_its =
                |kept: &&Kept| kept.to == auto.route.destination && kept.direct == auto.direct;
            let Some(kept) = known.iter().find(is_its) else {
                continue;
            };
            let is_usable = |route: &&Predicted| match route.relays.first() {
                Some(next) => self.mesh.peer(next).is_some(),
                None => auto.direct,
            };
            let predicted: Vec<_> = kept.routes.iter().filter(is_usable).cloned().collect();
            let Some(first) = predicted.first() else {
                continue;
            };
            let to = &auto.route.destination;
            let why = format!("as before the start, {}", why(&predicted));
            tracing::info!(%to, "automatic route: {why}");
            auto.route.choose(Chosen {
                direct_first: first.relays.is_empty(),
                ways: self.ways(&predicted),
                why,
                since: self.now,
                recalled: true,
                predicted,
            });
        }
        let autos = self.setup.autos();
        self.keep_connections(&autos.iter().map(|auto| &*auto.route).collect::<Vec<_>>());
    }

    /// Writes the routes in use to `routes_file` if it has others. `last`: the thread ends.
    pub(super) fn save_routes(&mut self, last: bool) {
        let Some(path) = &self.mesh.routes_file else {
            return;
        };
        let kept = self.setup.autos().into_iter().map(|auto| Kept {
            to: auto.route.destination.clone(),
            direct: auto.direct,
            routes: auto.route.chosen().predicted.clone(),
        });
        let kept = kept.filter(|kept| !kept.routes.is_empty()).collect();
        self.routes_file.save(path, kept, self.now, last);
    }

    /// Has connections held ready to the relays that sessions try first, and to no others besides
    /// those that the configuration names.
    fn keep_connections(&self, autos: &[&AutoRoute]) {
        let mut kept = HashSet::new();
        for auto in autos {
            let chosen = auto.chosen();
            kept.extend(
                chosen
                    .ways
                    .iter()
                    .take(HELD_READY)
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

/// Returns the text of a file; empty if it cannot be read, as before the first choice.
fn read(path: &Path) -> String {
    let mut text = String::new();
    let whole = File::open(path).and_then(|file| file.take(MAX_FILE).read_to_string(&mut text));
    match whole {
        Ok(_) => text,
        Err(_) => String::new(),
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
