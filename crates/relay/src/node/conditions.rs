//! Reads the counters that show what is broken, and logs changes of state.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use taut_mesh::acceptor::Rejection;

use super::handle::SharedHandle;
use crate::condition::{Broken, Change, Condition, Observation, Tracker, message};
use crate::counters::forward::{ForwardStats, MESH};
use crate::etcd::ListState;
use crate::metrics::Metrics;
use crate::net::backend::Backend;
use crate::net::names;
use crate::outcome::peer::PeerFailure;
use crate::outcome::refusal::ClientRefusal;
use crate::outcome::session_end::End;
use crate::route::table::{NextHop, Setup, Upstream};

/// The interval at which the counters are read.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// The ends of sessions that show a destination to be unreachable.
const UNREACHABLE: [End; 4] = [
    End::ConnectRefused,
    End::ConnectTimedOut,
    End::ConnectUnreachable,
    End::LookUpFailed,
];

/// The refusals of a client that its configuration causes.
const REFUSALS: [ClientRefusal; 3] = [
    ClientRefusal::ForwardFull,
    ClientRefusal::SourceNotListed,
    ClientRefusal::SourceDenied,
];

impl SharedHandle {
    /// Reads the counters and logs the conditions that have begun or ended since the last call.
    pub(crate) fn report_conditions(&self, metrics: &Metrics, now: Instant) {
        let setup = self.shared.setup();
        let members = setup.mesh.as_ref().map(|mesh| &*mesh.local.members);
        self.list.observe(members, SystemTime::now());
        let of_list = of_list(&self.list.state());
        let addresses = addresses(&setup);
        let of_addresses = addresses.iter().filter(|(_, is_observed)| *is_observed);
        let of_addresses = of_addresses.filter_map(|(backend, _)| address(backend));
        let all = observations(&setup, metrics).into_iter();
        let all: Vec<_> = all.chain(of_list).chain(of_addresses).collect();
        let addresses = addresses.into_iter().map(|(backend, _)| backend);
        self.shared.backends.set_of_forwards(addresses.collect());
        let mut tracker = self.tracker();
        for (condition, seen) in all {
            if let Some(change) = tracker.observe(condition, seen, now) {
                log(&change, &setup, metrics);
            }
        }
        tracker.end_round();
        let unlogged = tracker.take_unlogged();
        if unlogged > 0 {
            tracing::info!(
                "{unlogged} more conditions have ended; `taut relay status` lists what is broken"
            );
        }
    }

    /// Returns the conditions that hold now.
    pub(super) fn broken(&self) -> Vec<Broken> {
        self.tracker().broken()
    }

    fn tracker(&self) -> MutexGuard<'_, Tracker> {
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn observations(setup: &Setup, metrics: &Metrics) -> Vec<(Condition, Observation)> {
    let mut all = Vec::new();
    for route in &setup.routes {
        let forward = route.stats.name.clone();
        let condition = match &route.next_hop {
            NextHop::Direct { .. } => Some(Condition::Destination {
                forward: forward.clone(),
                to: route.destination.clone(),
            }),
            NextHop::OriginalDst(original) => match original.upstream {
                Upstream::Direct(_) => Some(Condition::Destinations {
                    forward: forward.clone(),
                }),
                Upstream::Mesh { .. } => None,
            },
            // The next relay has its own condition.
            NextHop::Mesh { .. } => None,
        };
        all.extend(condition.map(|condition| (condition, reached(&route.stats))));
        let queued = [("full", route.stats.sum(|c| &c.queued))].into_iter();
        let queue = Condition::Queue {
            forward: forward.clone(),
        };
        all.push((queue, only_failures(queued)));
        all.push((Condition::Refused { forward }, refused(&route.stats)));
        all.extend(route.targets().filter_map(|targets| look_ups(targets)));
    }
    if let Some(mesh) = &setup.mesh {
        if !mesh.listen.is_empty() {
            let forward = mesh.stats.name.clone();
            all.push((Condition::Destinations { forward }, reached(&mesh.stats)));
            let forward = mesh.stats.name.clone();
            all.push((Condition::Refused { forward }, refused(&mesh.stats)));
            let failed = Rejection::ALL.iter().copied();
            let failed = failed.map(|r| (r.label(), metrics.mesh_rejected_for(r)));
            all.push((Condition::Handshakes, only_failures(failed)));
            for (member, count) in metrics.by_member(|w| &w.mesh_ready_full) {
                let member = member.to_string();
                let seen = only_failures([("max_ready", count)].into_iter());
                all.push((Condition::MaxReady { member }, seen));
            }
            for (member, count) in metrics.by_member(|w| &w.mesh_member_limit) {
                let member = member.to_string();
                let cause = ClientRefusal::MemberLimit.label();
                let seen = only_failures([(cause, count)].into_iter());
                all.push((Condition::MemberLimit { member }, seen));
            }
        }
        for peer in &mesh.peers {
            let stats = &peer.stats;
            let failed = PeerFailure::ALL.iter().copied();
            let failed = failed.map(|f| (f.label(), stats.sum(|c| &c.failed[f.index()])));
            let seen = Observation {
                failed: failed.collect(),
                succeeded: stats.sum(|c| &c.dialled),
                affected: Some(stats.sum(|c| &c.sessions_failed)),
            };
            let peer_name = stats.name.clone();
            all.push((Condition::Peer { peer: peer_name }, seen));
            let targets = peer.targets.iter();
            all.extend(targets.filter_map(|targets| look_ups(targets)));
        }
    }
    for (party, [in_all, of_party]) in names::refused_by_party() {
        let member = party.map(|name| name.to_string());
        let seen = only_failures([("all", in_all), ("party", of_party)].into_iter());
        all.push((Condition::LookUpLimit { member }, seen));
    }
    let limit = |cause: ClientRefusal| [(cause.label(), metrics.refused(cause))];
    let evicted = (End::Evicted.label(), metrics.ended(End::Evicted));
    let full = limit(ClientRefusal::Full).into_iter().chain([evicted]);
    all.push((Condition::MaxSessions, only_failures(full)));
    let source = limit(ClientRefusal::SourceLimit).into_iter();
    all.push((Condition::SourceLimit, only_failures(source)));
    let rate = limit(ClientRefusal::SourceRate).into_iter();
    all.push((Condition::SourceRate, only_failures(rate)));
    let unproven = limit(ClientRefusal::UnprovenRate).into_iter();
    all.push((Condition::UnprovenRate, only_failures(unproven)));
    let accept = [("accept", metrics.accept_failed())].into_iter();
    all.push((Condition::Accept, only_failures(accept)));
    all
}

/// Returns what is known of the list of members and of etcd.
fn of_list(state: &ListState) -> Vec<(Condition, Observation)> {
    let etcd = &state.etcd;
    let mut all = Vec::new();
    if state.follows {
        let causes = |labels: [&'static str; 8], counts: [u64; 8]| {
            labels.into_iter().zip(counts).collect::<Vec<_>>()
        };
        let seen = |failed, succeeded| Observation {
            failed,
            succeeded,
            affected: Some(0),
        };
        let failed = causes(ListState::FAILURES, etcd.failures);
        all.push((Condition::Etcd, seen(failed, etcd.reads)));
        let refused = causes(ListState::REFUSALS, state.refused);
        all.push((Condition::MembersList, seen(refused, state.accepted)));
        let duplicates = vec![("duplicate", etcd.duplicates)];
        all.push((Condition::DuplicateName, seen(duplicates, etcd.announced)));
    }
    for near in state.near_expiry() {
        let failed = [("soon", near.soon), ("expired", near.expired)].into_iter();
        all.push((Condition::Expiry { what: near.what }, only_failures(failed)));
    }
    all
}

/// Returns the addresses of the destinations of forwards, each once, and whether each has a condition of its own.
/// The only address of a forward has that of the destination, unless checks find out more than sessions do.
fn addresses(setup: &Setup) -> Vec<(Arc<Backend>, bool)> {
    let mut all: BTreeMap<SocketAddr, (Arc<Backend>, bool)> = BTreeMap::new();
    for route in &setup.routes {
        let backends = route.targets().flat_map(|t| t.backends().to_vec());
        let backends: Vec<_> = backends.collect();
        let is_observed = backends.len() > 1 || route.check.is_some();
        for backend in backends {
            let entry = all.entry(backend.addr.0);
            entry.or_insert((backend, false)).1 |= is_observed;
        }
    }
    all.into_values().collect()
}

/// Returns whether an address is dead.
fn address(backend: &Arc<Backend>) -> Option<(Condition, Observation)> {
    let (dead, alive, cause) = backend.observe()?;
    let seen = Observation {
        failed: vec![(cause.label(), dead)],
        succeeded: alive,
        affected: Some(0),
    };
    let addr = backend.addr.0.to_string();
    Some((Condition::Address { addr }, seen))
}

/// Returns the attempts of a forward's sessions to reach their destination.
fn reached(stats: &ForwardStats) -> Observation {
    // A leg that this machine has no resources for says nothing about the destination, but its
    // sessions are reset all the same.
    let ends = UNREACHABLE.into_iter().chain([End::NoResources]);
    Observation {
        failed: ends
            .map(|end| (end.label(), stats.sum(|c| &c.ended[end.index()])))
            .collect(),
        succeeded: stats.sum(|c| &c.connected),
        affected: None,
    }
}

fn refused(stats: &ForwardStats) -> Observation {
    let sources = REFUSALS.into_iter();
    let sources = sources.map(|cause| (cause.label(), stats.sum(|c| &c.refused[cause.index()])));
    only_failures(sources.chain([
        ("destination", stats.sum(|c| &c.destination_refused)),
        ("no_route", stats.sum(|c| &c.without_route)),
        ("proxy_header", stats.sum(|c| &c.header_refused)),
        ("client_hello", stats.sum(|c| &c.hello_refused)),
    ]))
}

fn look_ups(targets: &crate::net::targets::Targets) -> Option<(Condition, Observation)> {
    let look_ups = targets.look_ups();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let name = targets
        .is_a_name()
        .then(|| targets.destination().to_string())?;
    let seen = Observation {
        failed: vec![
            ("look_up", count(&look_ups.failed)),
            ("no_address", count(&look_ups.without_address)),
        ],
        succeeded: count(&look_ups.succeeded),
        affected: Some(0),
    };
    Some((Condition::LookUp { name }, seen))
}

fn only_failures(failed: impl Iterator<Item = (&'static str, u64)>) -> Observation {
    Observation {
        failed: failed.collect(),
        succeeded: 0,
        affected: None,
    }
}

fn log(change: &Change, setup: &Setup, metrics: &Metrics) {
    match change {
        Change::Broken {
            condition,
            cause,
            affected,
        } => {
            let of = |name: &str| {
                let routes = setup.routes.iter().map(|route| &route.stats);
                let mut all = routes.chain(setup.mesh.iter().map(|mesh| &mesh.stats));
                all.find(|stats| &*stats.name == name)?.last_refused()
            };
            let example = match condition {
                Condition::Refused { forward } => of(forward),
                Condition::SourceLimit | Condition::SourceRate | Condition::MaxSessions => {
                    let routes = setup.routes.iter().map(|route| &route.stats);
                    let all = routes.chain(setup.mesh.iter().map(|mesh| &mesh.stats));
                    all.into_iter().find_map(|stats| stats.last_refused())
                }
                Condition::UnprovenRate => of(MESH),
                Condition::Handshakes => metrics.last_mesh_rejected(),
                _ => None,
            };
            tracing::warn!("{}", message::broken(condition, cause, *affected, example));
        }
        Change::Well {
            condition,
            lasted,
            affected,
        } => tracing::info!("{}", message::well(condition, *lasted, *affected)),
    }
}
