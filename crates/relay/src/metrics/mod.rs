//! A node's metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use prometheus_client::registry::Registry;
use taut_mesh::acceptor::Rejection;
use taut_mesh::members::MemberName;

use crate::condition::Tracker;
use crate::counters::by_member::ByMember;
use crate::counters::counter::Counter;
use crate::counters::registry::Registry as ScopeRegistry;
use crate::counters::worker::WorkerMetrics;
use crate::early_syn::PendingTable;
use crate::etcd::ListStatus;
use crate::intercept::{Exits, Method, Status};
use crate::net::backend::BackendTable;
use crate::outcome::proxy::ProxyRefusal;
use crate::outcome::refusal::ClientRefusal;
use crate::outcome::session_end::End;
use crate::rows_mailbox::RowsMailbox;
use crate::session_log::Recorder;
use crate::turbo::TurboStart;
use crate::turbo::route_metrics;
use crate::worker::Queue;

mod encoding;
/// A cloneable handle to a node's metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    workers: Arc<[Arc<WorkerMetrics>]>,
    /// The counters of forwards and peers.
    scopes: Arc<ScopeRegistry>,
    /// What is broken.
    conditions: Arc<Mutex<Tracker>>,
    /// The list of members and its source.
    list: Arc<ListStatus>,
    early: Option<Arc<PendingTable>>,
    /// Kept alive while its counters may be read; legs between relays use it.
    turbo: Arc<TurboStart>,
    log: Option<Recorder>,
    backends: Arc<BackendTable>,
    rows: Option<Arc<RowsMailbox>>,
    queue: Arc<Queue>,
    intercept: Arc<Status>,
    routes: Arc<route_metrics::Status>,
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn new(
        workers: usize,
        early: Option<Arc<PendingTable>>,
        turbo: Arc<TurboStart>,
    ) -> Self {
        Self {
            workers: (0..workers).map(|_| Arc::default()).collect(),
            scopes: Arc::new(ScopeRegistry::new(workers)),
            conditions: Arc::new(Mutex::new(Tracker::new(Instant::now()))),
            list: Arc::default(),
            early,
            turbo,
            log: None,
            backends: Arc::default(),
            rows: None,
            queue: Arc::default(),
            intercept: Arc::default(),
            routes: Arc::default(),
        }
    }

    /// Returns the metrics of a new node without a mesh.
    #[cfg(test)]
    pub(crate) fn of_nothing(workers: usize) -> Self {
        Self::new(workers, None, Arc::new(TurboStart::begin(None)))
    }

    /// Adds the session log's metrics.
    pub(crate) fn with_log(self, log: Option<Recorder>) -> Self {
        Self { log, ..self }
    }

    /// Adds the list of members.
    pub(crate) fn with_list(self, list: Arc<ListStatus>) -> Self {
        Self { list, ..self }
    }

    /// Adds the addresses of destinations.
    pub(crate) fn with_backends(self, backends: Arc<BackendTable>) -> Self {
        Self { backends, ..self }
    }

    /// Returns the sums of counts by member.
    pub(crate) fn by_member(
        &self,
        of: impl Fn(&WorkerMetrics) -> &ByMember,
    ) -> BTreeMap<MemberName, u64> {
        let mut sums = BTreeMap::new();
        self.workers.iter().for_each(|w| of(w).add_to(&mut sums));
        sums
    }

    /// Returns the numbers of addresses of destinations that are alive, and of those that are dead.
    pub fn addresses(&self) -> (u64, u64) {
        self.backends.alive_and_dead(Instant::now())
    }

    /// Returns the number of connection attempts to addresses of destinations.
    pub fn dials(&self) -> u64 {
        self.sum(|w| &w.dials[0]) + self.sum(|w| &w.dials[1])
    }

    /// Adds the metrics of forwards and peers.
    pub(crate) fn with_registry(self, scopes: Arc<ScopeRegistry>) -> Self {
        Self { scopes, ..self }
    }

    /// Adds what is measured of paths to other relays.
    pub(crate) fn with_rows(self, rows: Option<Arc<RowsMailbox>>) -> Self {
        Self { rows, ..self }
    }

    /// Adds the clients that wait for a place.
    pub(crate) fn with_queue(self, queue: Arc<Queue>) -> Self {
        Self { queue, ..self }
    }

    /// Adds the conditions that are broken.
    pub(crate) fn with_conditions(self, conditions: Arc<Mutex<Tracker>>) -> Self {
        Self { conditions, ..self }
    }

    /// Returns the status that interception updates.
    pub(crate) fn intercept(&self) -> Arc<Status> {
        self.intercept.clone()
    }

    /// Returns the initial window for routes to other relays, if routes have to set it.
    pub(crate) fn route_segments(&self) -> Option<u32> {
        self.turbo.route_segments()
    }

    /// Returns the status of routes with an initial window.
    pub fn route_metrics(&self) -> Arc<route_metrics::Status> {
        self.routes.clone()
    }

    pub(crate) fn worker(&self, i: usize) -> Arc<WorkerMetrics> {
        self.workers[i].clone()
    }

    /// Returns the number of open sessions.
    pub fn sessions(&self) -> u64 {
        self.sum(|w| &w.sessions)
    }

    /// Returns the number of clients that wait for a place.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of open pipes.
    pub fn pipes_open(&self) -> u64 {
        self.sum(|w| &w.pipes_open)
    }

    /// Returns the number of pipes that hold bytes.
    pub fn pipes_in_use(&self) -> u64 {
        self.sum(|w| &w.pipes_in_use)
    }

    /// Returns the bytes forwarded to the upstream leg, and to the client.
    pub fn bytes(&self) -> (u64, u64) {
        (
            self.sum(|w| &w.upstream_bytes),
            self.sum(|w| &w.client_bytes),
        )
    }

    /// Returns the number of sessions that ended with this cause.
    pub fn ended(&self, end: End) -> u64 {
        self.sum(|w| &w.ended[end.index()])
    }

    /// Returns the number of connections and sessions that were refused for this cause.
    pub fn refused(&self, cause: ClientRefusal) -> u64 {
        self.sum(|w| &w.refused[cause.index()])
    }

    /// Returns the number of clients that were refused because the node was full.
    pub fn refused_full(&self) -> u64 {
        self.refused(ClientRefusal::Full)
    }

    /// Returns the number of connections to other relays that are ready for use.
    pub fn pool_ready(&self) -> u64 {
        self.sum(|w| &w.pool_ready)
    }

    /// Returns the numbers of sessions that found a connection to the next relay ready, and that
    /// did not.
    pub fn pool_hits_and_misses(&self) -> (u64, u64) {
        (self.sum(|w| &w.pool_hits), self.sum(|w| &w.pool_misses))
    }

    /// Returns the number of sessions that other relays have requested.
    pub fn mesh_hellos(&self) -> u64 {
        self.sum(|w| &w.mesh_hellos)
    }

    /// Returns the number of connections at the mesh port that were closed for a protocol error or
    /// a time-out.
    pub fn mesh_rejected(&self) -> u64 {
        let all = Rejection::ALL.iter().copied();
        all.map(|r| self.sum(|w| &w.mesh_rejected[r.index()])).sum()
    }

    /// Returns the number of connections at the mesh port that were closed for this reason.
    pub(crate) fn mesh_rejected_for(&self, cause: Rejection) -> u64 {
        self.sum(|w| &w.mesh_rejected[cause.index()])
    }

    /// Returns the source of a connection that was closed at the mesh port recently.
    pub(crate) fn last_mesh_rejected(&self) -> Option<std::net::IpAddr> {
        self.workers
            .iter()
            .find_map(|w| w.mesh_last_rejected.take())
    }

    /// Returns the number of connections that could not be accepted.
    pub(crate) fn accept_failed(&self) -> u64 {
        self.sum(|w| &w.accept_failed)
    }

    /// Returns the interception method and the recent counts of packets by result. Returns `None`
    /// without interception.
    pub fn interception(&self) -> Option<(Method, Exits)> {
        self.intercept.get()
    }

    /// Returns the number of intercepted connections that were reset because their destination is
    /// not allowed.
    pub fn intercept_refused(&self) -> u64 {
        self.sum(|w| &w.intercept_refused)
    }

    /// Returns the number of connections that were reset for lack of an accepted PROXY protocol
    /// header.
    pub fn proxy_refused(&self) -> u64 {
        let all = ProxyRefusal::ALL.iter().copied();
        all.map(|u| self.sum(|w| &w.proxy_refused[u.index()])).sum()
    }

    /// Returns the metrics as OpenMetrics text.
    ///
    /// # Errors
    /// None in practice: writing to a string does not fail.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }

    fn sum(&self, counter: impl Fn(&WorkerMetrics) -> &Counter) -> u64 {
        self.workers
            .iter()
            .map(|w| counter(w).get())
            .fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_workers_are_summed() {
        let metrics = Metrics::of_nothing(2);
        metrics.worker(0).upstream_bytes.add(3);
        metrics.worker(1).upstream_bytes.add(4);
        metrics.worker(1).sessions.add(2);
        metrics.worker(1).sessions.sub(1);
        assert_eq!(metrics.bytes(), (7, 0));
        assert_eq!(metrics.sessions(), 1);
    }

    #[test]
    fn the_text_is_openmetrics_with_every_cause_from_the_start() {
        let metrics = Metrics::of_nothing(1);
        metrics.worker(0).ended[End::ConnectRefused.index()].add(5);
        metrics
            .worker(0)
            .setup
            .observe(std::time::Duration::from_millis(30));
        let text = metrics.encode().unwrap();
        for line in [
            "# TYPE taut_relay_setup_seconds histogram",
            "# UNIT taut_relay_setup_seconds seconds",
            "taut_relay_setup_seconds_sum 0.03",
            "taut_relay_setup_seconds_count 1",
            "taut_relay_setup_seconds_bucket{le=\"0.025\"} 0",
            "taut_relay_setup_seconds_bucket{le=\"0.05\"} 1",
            "taut_relay_setup_seconds_bucket{le=\"+Inf\"} 1",
            "taut_relay_dial_seconds_count{leg=\"mesh\"} 0",
            "# TYPE taut_relay_sessions gauge",
            "taut_relay_sessions 0",
            "taut_relay_accepted_total 0",
            "taut_relay_bytes_total{leg=\"client\"} 0",
            "taut_relay_ended_total{cause=\"complete\"} 0",
            "taut_relay_ended_total{cause=\"connect_refused\"} 5",
            "taut_relay_refused_total{cause=\"full\"} 0",
            "taut_relay_refused_total{cause=\"source_limit\"} 0",
        ] {
            assert!(
                text.lines().any(|l| l == line),
                "no line `{line}` in:\n{text}"
            );
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
