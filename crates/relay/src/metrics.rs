//! What a node counts, and its OpenMetrics form.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use taut_mesh::acceptor::Rejection;

use crate::early::Table;
use crate::end::End;
use crate::histogram::{Histogram, Totals};
use crate::intercept::{Exits, Method, Status};
use crate::pipe::Count as PipeCount;
use crate::refused::Refused;
use crate::route_metrics;
use crate::session_log::Recorder;
use crate::turbo::TurboStart;
use crate::worker::{Refusal, Unproxied};

/// A figure that one thread writes and any may read.
///
/// Having one writer it needs no locked instruction, only a store that cannot tear.
#[derive(Debug, Default)]
pub(crate) struct Figure(AtomicU64);

impl Figure {
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, n: u64) {
        self.0.store(self.get().wrapping_sub(n), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one worker counts. Aligned so that workers do not share cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerMetrics {
    pub(crate) accepted: Figure,
    pub(crate) refused: [Figure; Refused::ALL.len()],
    pub(crate) accept_failed: Figure,
    pub(crate) sessions: Figure,
    pub(crate) onward_bytes: Figure,
    pub(crate) client_bytes: Figure,
    pub(crate) pipes_open: Figure,
    pub(crate) pipes_in_use: Figure,
    pub(crate) pipe_misses: Figure,
    pub(crate) pipes_refused: Figure,
    pub(crate) ended: [Figure; End::ALL.len()],
    pub(crate) dial_direct: Histogram,
    pub(crate) dial_mesh: Histogram,
    pub(crate) setup: Histogram,
    pub(crate) first_byte: Histogram,
    pub(crate) pool_ready: Figure,
    pub(crate) pool_hits: Figure,
    pub(crate) pool_misses: Figure,
    pub(crate) pool_retries: Figure,
    pub(crate) pool_expired: Figure,
    pub(crate) pool_dead: Figure,
    pub(crate) pool_dials_failed: Figure,
    pub(crate) pool_dials_postponed: Figure,
    pub(crate) pool_peers_rejected: Figure,
    pub(crate) early_begun: Figure,
    pub(crate) early_joined: Figure,
    pub(crate) early_unused: Figure,
    pub(crate) intercept_refused: Figure,
    pub(crate) proxy_waiting: Figure,
    pub(crate) proxy_headers: Figure,
    pub(crate) proxy_refused: [Figure; Unproxied::ALL.len()],
    pub(crate) mesh_accepted: Figure,
    pub(crate) mesh_unproven: Figure,
    pub(crate) mesh_ready: Figure,
    pub(crate) mesh_evicted: Figure,
    pub(crate) mesh_refused_full: Figure,
    pub(crate) mesh_hellos: Figure,
    pub(crate) mesh_rejected: [Figure; Rejection::ALL.len()],
    pub(crate) mesh_refused: [Figure; Refusal::ALL.len()],
}

/// What a node counts.
#[derive(Clone, Debug)]
pub struct Metrics {
    workers: Arc<[Arc<WorkerMetrics>]>,
    early: Option<Arc<Table>>,
    /// Kept here for as long as anybody asks: legs between relays use it.
    turbo: Arc<TurboStart>,
    log: Option<Recorder>,
    intercept: Arc<Status>,
    routes: Arc<route_metrics::Status>,
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn new(workers: usize, early: Option<Arc<Table>>, turbo: TurboStart) -> Self {
        Self {
            workers: (0..workers).map(|_| Arc::default()).collect(),
            early,
            turbo: Arc::new(turbo),
            log: None,
            intercept: Arc::default(),
            routes: Arc::default(),
        }
    }

    /// Of a node that has just begun, without a mesh.
    #[cfg(test)]
    pub(crate) fn of_nothing(workers: usize) -> Self {
        let keepalive = crate::config::Config::new(Vec::new()).keepalive;
        Self::new(workers, None, TurboStart::begin(keepalive, None))
    }

    /// The same with the session log's figures.
    pub(crate) fn with_log(self, log: Option<Recorder>) -> Self {
        Self { log, ..self }
    }

    /// Where interception says what it counts.
    pub(crate) fn intercept(&self) -> Arc<Status> {
        self.intercept.clone()
    }

    /// The initial window that routes to other relays are to have, if they are to.
    pub(crate) fn route_segments(&self) -> Option<u32> {
        self.turbo.route_segments()
    }

    /// Routes to other relays that have an initial window: those there are, and the relays without.
    pub fn route_metrics(&self) -> Arc<route_metrics::Status> {
        self.routes.clone()
    }

    pub(crate) fn worker(&self, i: usize) -> Arc<WorkerMetrics> {
        self.workers[i].clone()
    }

    /// Sessions that are open now.
    pub fn sessions(&self) -> u64 {
        self.sum(|w| &w.sessions)
    }

    /// Pipes that exist now.
    pub fn pipes_open(&self) -> u64 {
        self.sum(|w| &w.pipes_open)
    }

    /// Pipes with bytes on their way through them now.
    pub fn pipes_in_use(&self) -> u64 {
        self.sum(|w| &w.pipes_in_use)
    }

    /// Bytes passed to the onward leg and to the client.
    pub fn bytes(&self) -> (u64, u64) {
        (self.sum(|w| &w.onward_bytes), self.sum(|w| &w.client_bytes))
    }

    /// Sessions that ended in this way.
    pub fn ended(&self, end: End) -> u64 {
        self.sum(|w| &w.ended[end.index()])
    }

    /// Connections and sessions that were refused for this reason.
    pub fn refused(&self, cause: Refused) -> u64 {
        self.sum(|w| &w.refused[cause.index()])
    }

    /// Clients that were refused because the node was full.
    pub fn refused_full(&self) -> u64 {
        self.refused(Refused::Full)
    }

    /// Connections to other relays that are ready for use.
    pub fn pool_ready(&self) -> u64 {
        self.sum(|w| &w.pool_ready)
    }

    /// Sessions that found a connection to the next relay ready, and those that did not.
    pub fn pool_hits_and_misses(&self) -> (u64, u64) {
        (self.sum(|w| &w.pool_hits), self.sum(|w| &w.pool_misses))
    }

    /// Sessions that other relays have asked for.
    pub fn mesh_hellos(&self) -> u64 {
        self.sum(|w| &w.mesh_hellos)
    }

    /// Connections at the mesh port that were closed for what they said or did not say.
    pub fn mesh_rejected(&self) -> u64 {
        let all = Rejection::ALL.into_iter();
        all.map(|r| self.sum(|w| &w.mesh_rejected[r.index()])).sum()
    }

    /// How connections are intercepted, if any are, and what has become of packets as of a moment
    /// ago.
    pub fn interception(&self) -> Option<(Method, Exits)> {
        self.intercept.get()
    }

    /// Intercepted connections that were reset because their destination is not allowed.
    pub fn intercept_refused(&self) -> u64 {
        self.sum(|w| &w.intercept_refused)
    }

    /// Connections that were reset for want of a PROXY protocol header that is believed.
    pub fn proxy_refused(&self) -> u64 {
        let all = Unproxied::ALL.into_iter();
        all.map(|u| self.sum(|w| &w.proxy_refused[u.index()])).sum()
    }

    /// The figures as OpenMetrics text.
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

    fn sum(&self, figure: impl Fn(&WorkerMetrics) -> &Figure) -> u64 {
        self.workers
            .iter()
            .map(|w| figure(w).get())
            .fold(0, u64::wrapping_add)
    }
}

type Encoded = Result<(), std::fmt::Error>;

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Encoded {
        let mut counter = |name, help, value: u64| -> Encoded {
            Count(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
        };
        counter(
            "taut_relay_accepted",
            "Connections accepted from clients",
            self.sum(|w| &w.accepted),
        )?;
        counter(
            "taut_relay_accept_errors",
            "Connections that could not be accepted for want of descriptors or memory",
            self.sum(|w| &w.accept_failed),
        )?;
        counter(
            "taut_relay_pipe_misses",
            "Times a bulk transfer copied because no pipe was free",
            self.sum(|w| &w.pipe_misses),
        )?;
        counter(
            "taut_relay_pipes_refused",
            "Times the kernel refused a pipe",
            self.sum(|w| &w.pipes_refused),
        )?;

        let mut gauge = |name, help, value: u64| -> Encoded {
            Level(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge("taut_relay_sessions", "Sessions open now", self.sessions())?;
        gauge("taut_relay_pipes", "Pipes open now", self.pipes_open())?;
        gauge(
            "taut_relay_pipes_in_use",
            "Pipes with bytes on their way through them now",
            self.pipes_in_use(),
        )?;

        self.encode_mesh(&mut encoder)?;
        self.encode_early(&mut encoder)?;
        self.encode_turbo(&mut encoder)?;
        self.encode_times(&mut encoder)?;
        self.encode_log(&mut encoder)?;
        self.encode_identity(&mut encoder)?;

        let (onward, client) = self.bytes();
        let help = "Bytes passed on, by the leg that they were written to";
        let mut family =
            encoder.encode_descriptor("taut_relay_bytes", help, None, MetricType::Counter)?;
        for (leg, bytes) in [("onward", onward), ("client", client)] {
            Count(bytes).encode(family.encode_family(&[("leg", leg)])?)?;
        }

        let help = "Connections reset before anything was done for them, by cause";
        let mut family =
            encoder.encode_descriptor("taut_relay_refused", help, None, MetricType::Counter)?;
        for cause in Refused::ALL {
            let count = Count(self.refused(cause));
            count.encode(family.encode_family(&[("cause", cause.label())])?)?;
        }

        let help = "Sessions that ended, by cause";
        let mut family =
            encoder.encode_descriptor("taut_relay_ended", help, None, MetricType::Counter)?;
        for end in End::ALL {
            Count(self.ended(end)).encode(family.encode_family(&[("cause", end.label())])?)?;
        }
        Ok(())
    }
}

impl Metrics {
    /// How long things took.
    fn encode_times(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        type Of = fn(&WorkerMetrics) -> &Histogram;
        let totals = |of: Of| Totals::of(self.workers.iter().map(|w| of(w)));
        let kind = MetricType::Histogram;
        let help = "Time from SYN to a connected onward leg (direct), or to a proven one that was made because none was ready (mesh)";
        let name = "taut_relay_dial";
        let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
        let legs: [(&str, Of); 2] = [("direct", |w| &w.dial_direct), ("mesh", |w| &w.dial_mesh)];
        for (leg, of) in legs {
            encode_histogram(totals(of), family.encode_family(&[("leg", leg)])?)?;
        }
        let others: [(&str, &str, Of); 2] = [
            (
                "taut_relay_setup",
                "Time from accept until the onward leg was ready",
                |w| &w.setup,
            ),
            (
                "taut_relay_first_byte",
                "Time from accept until the first byte was written to the client",
                |w| &w.first_byte,
            ),
        ];
        for (name, help, of) in others {
            let unit = Some(&Unit::Seconds);
            let encoder = encoder.encode_descriptor(name, help, unit, kind)?;
            encode_histogram(totals(of), encoder)?;
        }
        Ok(())
    }

    /// What became of the session log's records.
    fn encode_log(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let Some(log) = &self.log else {
            return Ok(());
        };
        let counts = log.counts();
        let help = "Records of the session log, by what became of them";
        let name = "taut_relay_session_log_records";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (outcome, count) in [
            ("written", counts.written),
            ("dropped", counts.dropped),
            ("failed", counts.failed),
        ] {
            Count(count).encode(family.encode_family(&[("outcome", outcome)])?)?;
        }
        Ok(())
    }
}

fn encode_histogram(totals: Totals, mut encoder: MetricEncoder<'_>) -> Encoded {
    let (sum, count) = (totals.seconds(), totals.count());
    encoder.encode_histogram::<NoLabelSet>(sum, count, &totals.bounded(), None)
}

impl Metrics {
    /// The pools' and the mesh port's figures.
    fn encode_mesh(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        type Of = fn(&WorkerMetrics) -> &Figure;
        let counters: [(&str, &str, Of); 12] = [
            (
                "taut_relay_pool_hits",
                "Sessions that found a connection ready",
                |w| &w.pool_hits,
            ),
            (
                "taut_relay_pool_misses",
                "Sessions for which a connection had to be made",
                |w| &w.pool_misses,
            ),
            (
                "taut_relay_pool_retries",
                "Connections made anew because one from the pool was dead, or could not be made at first",
                |w| &w.pool_retries,
            ),
            (
                "taut_relay_pool_expired",
                "Unused connections closed because of their age",
                |w| &w.pool_expired,
            ),
            (
                "taut_relay_pool_dead",
                "Unused connections found to be dead",
                |w| &w.pool_dead,
            ),
            (
                "taut_relay_pool_dials_failed",
                "Connections to other relays that could not be made",
                |w| &w.pool_dials_failed,
            ),
            (
                "taut_relay_pool_dials_postponed",
                "Sessions for which no connection to another relay was begun at once, because enough were under way",
                |w| &w.pool_dials_postponed,
            ),
            (
                "taut_relay_pool_peers_rejected",
                "Relays dialled that could not prove that they belong to the mesh",
                |w| &w.pool_peers_rejected,
            ),
            (
                "taut_relay_mesh_accepted",
                "Connections accepted at the mesh port",
                |w| &w.mesh_accepted,
            ),
            (
                "taut_relay_mesh_evicted",
                "Connections without proof of a key that were closed to make room for others",
                |w| &w.mesh_evicted,
            ),
            (
                "taut_relay_mesh_refused_full",
                "Connections of other relays that were closed because max_ready waited already",
                |w| &w.mesh_refused_full,
            ),
            (
                "taut_relay_mesh_hellos",
                "Sessions that other relays have asked for",
                |w| &w.mesh_hellos,
            ),
        ];
        for (name, help, of) in counters {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            Count(self.sum(of)).encode(encoder)?;
        }
        let gauges: [(&str, &str, Of); 3] = [
            (
                "taut_relay_pool_ready",
                "Connections to other relays that are ready for use",
                |w| &w.pool_ready,
            ),
            (
                "taut_relay_mesh_unproven",
                "Connections at the mesh port that have not proven that they hold a key",
                |w| &w.mesh_unproven,
            ),
            (
                "taut_relay_mesh_ready",
                "Connections of other relays that wait to be used",
                |w| &w.mesh_ready,
            ),
        ];
        for (name, help, of) in gauges {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            Level(self.sum(of)).encode(encoder)?;
        }
        let help = "Connections at the mesh port that were closed, by what was wrong with them";
        let name = "taut_relay_mesh_rejected";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for rejection in Rejection::ALL {
            let count = Count(self.sum(|w| &w.mesh_rejected[rejection.index()]));
            count.encode(family.encode_family(&[("cause", rejection.label())])?)?;
        }
        let help = "Sessions that other relays asked for and did not get, by cause";
        let name = "taut_relay_mesh_refused";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for refusal in Refusal::ALL {
            let count = Count(self.sum(|w| &w.mesh_refused[refusal.index()]));
            count.encode(family.encode_family(&[("cause", refusal.label())])?)?;
        }
        Ok(())
    }
}

impl Metrics {
    /// Figures of interception and of PROXY protocol headers.
    fn encode_identity(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let mut counter = |name, help, value: u64| -> Encoded {
            Count(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
        };
        counter(
            "taut_relay_intercept_refused",
            "Intercepted connections reset because their destination is not allowed",
            self.sum(|w| &w.intercept_refused),
        )?;
        counter(
            "taut_relay_proxy_headers",
            "Connections that began with a PROXY protocol header",
            self.sum(|w| &w.proxy_headers),
        )?;
        let help = "Connections that wait for the end of their PROXY protocol header";
        let name = "taut_relay_proxy_waiting";
        let waiting = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        Level(self.sum(|w| &w.proxy_waiting)).encode(waiting)?;
        let help = "Connections reset for want of a PROXY protocol header that is believed";
        let name = "taut_relay_proxy_refused";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for why in Unproxied::ALL {
            let count = Count(self.sum(|w| &w.proxy_refused[why.index()]));
            count.encode(family.encode_family(&[("cause", why.label())])?)?;
        }
        let Some((method, exits)) = self.intercept.get() else {
            return Ok(());
        };
        let help = "How connections are intercepted: 1 for the method that is used";
        let name = "taut_relay_intercept_method";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (label, of) in [("bpf", Method::Bpf), ("nft", Method::Nft)] {
            let level = Level(u64::from(of == method));
            level.encode(family.encode_family(&[("method", label)])?)?;
        }
        if method == Method::Bpf {
            let help = "Packets that the program looked at, by what became of them";
            let name = "taut_relay_intercept_packets";
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (exit, count) in exits.each() {
                Count(count).encode(family.encode_family(&[("exit", exit)])?)?;
            }
        }
        Ok(())
    }

    /// Early SYN's figures.
    fn encode_early(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        type Of = fn(&WorkerMetrics) -> &Figure;
        let counters: [(&str, &str, Of); 3] = [
            (
                "taut_relay_early_begun",
                "Onward legs begun when a client's SYN was seen",
                |w| &w.early_begun,
            ),
            (
                "taut_relay_early_joined",
                "Clients whose onward leg was under way when they were accepted",
                |w| &w.early_joined,
            ),
            (
                "taut_relay_early_unused",
                "Onward legs begun early whose client did not come",
                |w| &w.early_unused,
            ),
        ];
        for (name, help, of) in counters {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            Count(self.sum(of)).encode(encoder)?;
        }
        let Some(table) = &self.early else {
            return Ok(());
        };
        let (counts, exits) = table.counts();
        let help = "SYNs that the program reported, by what was decided about them";
        let name = "taut_relay_early_syns";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (verdict, count) in [
            ("admitted", counts.admitted),
            ("merged", counts.merged),
            ("late", counts.late),
            ("over_source_rate", counts.over_source_rate),
            ("over_destination_rate", counts.over_destination_rate),
            ("too_many_pending", counts.too_many_pending),
            ("cookies_active", counts.cookies_active),
        ] {
            Count(count).encode(family.encode_family(&[("verdict", verdict)])?)?;
        }
        let help = "Packets that the program looked at, by what became of them";
        let name = "taut_relay_early_packets";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (exit, count) in exits.iter().flat_map(|exits| exits.each()) {
            Count(count).encode(family.encode_family(&[("exit", exit)])?)?;
        }
        Ok(())
    }
}

impl Metrics {
    /// The figures of `taut_pipe`, or of what stands in for it.
    fn encode_turbo(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        if self.turbo.route_segments().is_some() {
            let mut gauge = |name, help, value: u64| -> Encoded {
                Level(value).encode(encoder.encode_descriptor(
                    name,
                    help,
                    None,
                    MetricType::Gauge,
                )?)
            };
            gauge(
                "taut_relay_route_metrics",
                "Addresses of other relays whose route has an initial window",
                self.routes.in_place(),
            )?;
            gauge(
                "taut_relay_route_metrics_without",
                "Addresses of other relays whose route could not be given one",
                self.routes.without(),
            )?;
        }
        let Some(counters) = self.turbo.counters() else {
            return Ok(());
        };
        let help = "What the congestion control of legs between relays has done, by event";
        let name = "taut_relay_pipe_events";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for count in PipeCount::ALL {
            let value = Count(counters.get(count));
            value.encode(family.encode_family(&[("event", count.label())])?)?;
        }
        Ok(())
    }
}

struct Count(u64);

impl Count {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Encoded {
        encoder.encode_counter::<NoLabelSet, u64, u64>(&self.0, None)
    }
}

struct Level(u64);

impl Level {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Encoded {
        // A gauge is a signed figure in this library; a level past i64 does not happen.
        prometheus_client::metrics::gauge::ConstGauge::new(
            i64::try_from(self.0).unwrap_or(i64::MAX),
        )
        .encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_all_workers_are_added_up() {
        let metrics = Metrics::of_nothing(2);
        metrics.worker(0).onward_bytes.add(3);
        metrics.worker(1).onward_bytes.add(4);
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
