//! The threads of a node other than its workers.

use std::sync::Arc;
use std::time::Instant;

use super::early_syn_thread::{Reader, ReaderError};
use super::next_hop::addrs_of;
use crate::config::{Config, InterceptConfig};
use crate::early_syn::{PendingTable, Watch};
use crate::intercept::Plan;
use crate::metrics::Metrics;
use crate::route::table::{NextHop, Setup};
use crate::turbo::route_metrics::{Job, RouteMetrics};
use crate::worker::Shared;
use crate::worker::mailbox::Mailbox;

/// Starts early SYN for the listeners of forwards that use it.
pub(super) fn early_reader(
    config: &Config,
    setup: &Setup,
    table: Arc<PendingTable>,
    mailboxes: Vec<Arc<Mailbox>>,
) -> Result<Reader, ReaderError> {
    let mut watch = Watch::default();
    for route in &setup.routes {
        let number = route.early_syn.then_some(route.id);
        match (&route.next_hop, number) {
            (NextHop::OriginalDst(original), _) => {
                watch.intercepted.push((original.taking.clone(), number));
            }
            (_, Some(number)) => {
                let listen = route.listen.iter().map(|listen| (listen.0, number));
                watch.listeners.extend(listen);
            }
            (_, None) => {}
        }
    }
    let limits = config.early_syn.limits;
    let devices = config.early_syn.devices.clone();
    Reader::start(devices, watch, limits, table, mailboxes)
}

/// Starts keeping routes with an initial window to other relays, unless a congestion control sets
/// the window.
pub(super) fn route_metrics(shared: &Arc<Shared>, metrics: &Metrics) -> Option<RouteMetrics> {
    let relays = shared.relays.clone()?;
    let job = Job {
        segments: metrics.route_segments()?,
        changed: relays.changed(),
        status: metrics.route_metrics(),
        wanted: Box::new({
            let shared = shared.clone();
            move || {
                let setup = shared.setup();
                let dialled = setup.mesh.iter().flat_map(|mesh| addrs_of(&mesh.peers));
                let dialled = dialled.map(|addr| addr.ip());
                dialled.chain(relays.current(Instant::now())).collect()
            }
        }),
    };
    RouteMetrics::start(job)
        .inspect_err(|error| {
            tracing::warn!("{error}; legs between relays begin with 10 segments");
        })
        .ok()
}

/// Returns the connections to intercept, or `None` if there are none.
pub(super) fn plan(config: &Config, setup: &Setup) -> Option<Plan> {
    let takings = setup
        .routes
        .iter()
        .filter_map(|route| match &route.next_hop {
            NextHop::OriginalDst(original) => Some(original.taking.clone()),
            _ => None,
        });
    let takings: Vec<_> = takings.collect();
    let borrows = config.forwards.iter().any(|f| f.identity.borrow)
        || config.mesh.as_ref().is_some_and(|mesh| mesh.borrow);
    let InterceptConfig { mark, method } = config.intercept;
    (borrows || !takings.is_empty()).then_some(Plan {
        takings,
        borrows,
        mark,
        method,
    })
}
