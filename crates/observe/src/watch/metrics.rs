//! The metrics of `taut watch`: sums and histograms by process and peer network.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ipnet::IpNet;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::{Counts, Event, Report};
use crate::owner::Process;
use crate::verdict::Factor;

/// The maximum number of pairs of process name and peer network with their own histograms; later
/// pairs count as `other`.
pub const PAIRS: usize = 500;
/// The maximum number of process names with their own counters; later names count as `other`.
pub const PROCESSES: usize = 500;
/// Prefix lengths of peer networks. A site usually has a prefix of this length.
const PREFIX_V4: u8 = 24;
const PREFIX_V6: u8 = 48;
/// The labels of values beyond the limits, and of an unknown process.
const OTHER: &str = "other";
const UNKNOWN: &str = "unknown";

type Labels = Vec<(&'static str, String)>;
type Seconds = Counter<f64, AtomicU64>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// The metrics.
pub struct Metrics {
    registry: Arc<Registry>,
    limited: Family<Labels, Seconds>,
    ended: Family<Labels, Counter>,
    rtt: Histograms,
    retransmitted: Histograms,
    open: Gauge,
    left_out: Gauge,
    unseen: Counter,
    unreported: Counter,
    missed: Counter,
    without_owner: Counter,
    without_phases: Counter,
    lost: Counter,
    counts: Counts,
    pairs: Known<(String, String)>,
    processes: Known<String>,
}

/// A bounded set of label values.
struct Known<T> {
    known: HashSet<T>,
    most: usize,
}

/// Returns a histogram of round trips from 0.1 ms to 13 s.
fn round_trips() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 18))
}

/// Returns a histogram of shares from 1/100,000 to about 1/2.
fn shares() -> Histogram {
    Histogram::new(exponential_buckets(0.00001, 3.0, 11))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("taut_watch");
        let metrics = Self {
            registry: Arc::default(),
            limited: Family::default(),
            ended: Family::default(),
            rtt: Family::new_with_constructor(round_trips),
            retransmitted: Family::new_with_constructor(shares),
            open: Gauge::default(),
            left_out: Gauge::default(),
            unseen: Counter::default(),
            unreported: Counter::default(),
            missed: Counter::default(),
            without_owner: Counter::default(),
            without_phases: Counter::default(),
            lost: Counter::default(),
            counts: Counts::default(),
            pairs: Known::of(PAIRS),
            processes: Known::of(PROCESSES),
        };
        let register = &mut registry;
        register.register(
            "limited_seconds",
            "Connection time by what limited it",
            metrics.limited.clone(),
        );
        register.register(
            "ended",
            "Ended connections by what limited them for longest",
            metrics.ended.clone(),
        );
        register.register(
            "rtt_seconds",
            "Smoothed round-trip time of connections at their end",
            metrics.rtt.clone(),
        );
        register.register(
            "retransmitted_ratio",
            "Share of sent bytes that were retransmitted, of connections at their end",
            metrics.retransmitted.clone(),
        );
        register.register(
            "connections",
            "Connections of the last scan",
            metrics.open.clone(),
        );
        register.register(
            "connections_left_out",
            "Connections of the last scan that are not tracked because the table is full",
            metrics.left_out.clone(),
        );
        register.register(
            "unseen",
            "Ended connections that no scan found",
            metrics.unseen.clone(),
        );
        register.register(
            "unreported",
            "Ended connections whose end the kernel did not report",
            metrics.unreported.clone(),
        );
        register.register(
            "missed",
            "Times the kernel dropped reports of ends that were not read in time",
            metrics.missed.clone(),
        );
        register.register(
            "without_owner",
            "Ended connections that were reported without an owner",
            metrics.without_owner.clone(),
        );
        register.register(
            "without_phases",
            "Ended connections that were reported without phases",
            metrics.without_phases.clone(),
        );
        register.register(
            "records_lost",
            "Records that could not be written",
            metrics.lost.clone(),
        );
        Self {
            registry: Arc::new(registry),
            ..metrics
        }
    }
}

// === impl Metrics ===

impl Metrics {
    /// Returns a function that encodes the current metrics as OpenMetrics text.
    pub fn exposition(
        &self,
    ) -> impl Fn() -> Result<String, fmt::Error> + Clone + Send + Sync + use<> {
        let registry = self.registry.clone();
        move || {
            let mut text = String::new();
            text::encode(&mut text, &registry)?;
            Ok(text)
        }
    }

    /// Adds time in which a factor limited a connection of this process.
    pub fn limited(&mut self, process: Option<&Process>, factor: Factor, seconds: f64) {
        let process = self.process(process);
        let labels = vec![("factor", factor.name().to_owned()), ("process", process)];
        self.limited.get_or_create(&labels).inc_by(seconds);
    }

    /// Counts a report of an ended connection.
    pub fn report(&mut self, report: &Report<'_>) {
        if report.event != Event::End {
            return;
        }
        let factor = report.life.and_then(|life| life.longest());
        let labels = vec![
            (
                "factor",
                factor.unwrap_or(Factor::Unclear).name().to_owned(),
            ),
            ("process", self.process(report.process)),
        ];
        self.ended.get_or_create(&labels).inc();
        let connection = &report.tracked.last().connection;
        let Some(info) = &connection.info else {
            return;
        };
        let process = report.process.map_or(UNKNOWN, |process| &process.name);
        let pair = (
            process.to_owned(),
            network(connection.remote.ip().to_canonical()),
        );
        let (process, peer) = self.pairs.or(pair, || (OTHER.to_owned(), OTHER.to_owned()));
        let labels = vec![("process", process), ("peer", peer)];
        if let Some(rtt) = info.rtt {
            self.rtt.get_or_create(&labels).observe(rtt.as_secs_f64());
        }
        if let (Some(again), Some(sent @ 1..)) = (info.bytes_retrans, info.bytes_sent) {
            let share = again as f64 / sent as f64;
            self.retransmitted.get_or_create(&labels).observe(share);
        }
    }

    /// Sets the gauges and counters after a scan.
    pub fn scanned(&mut self, open: usize, left_out: usize, counts: Counts) {
        self.open.set(i64::try_from(open).unwrap_or(i64::MAX));
        self.left_out
            .set(i64::try_from(left_out).unwrap_or(i64::MAX));
        let before = std::mem::replace(&mut self.counts, counts);
        self.unseen.inc_by(counts.unseen - before.unseen);
        self.unreported
            .inc_by(counts.unreported - before.unreported);
        self.missed.inc_by(counts.missed - before.missed);
        self.without_owner
            .inc_by(counts.without_owner - before.without_owner);
        self.without_phases
            .inc_by(counts.without_phases - before.without_phases);
    }

    /// Counts records that could not be written.
    pub fn lost(&self, records: u64) {
        self.lost.inc_by(records);
    }

    fn process(&mut self, process: Option<&Process>) -> String {
        match process {
            Some(process) => self
                .processes
                .or(process.name.to_string(), || OTHER.to_owned()),
            None => UNKNOWN.to_owned(),
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

// === impl Known ===

impl<T: Eq + std::hash::Hash + Clone> Known<T> {
    fn of(most: usize) -> Self {
        Self {
            known: HashSet::new(),
            most,
        }
    }

    /// Returns `one` if it is known or still fits, else `other`.
    fn or(&mut self, one: T, other: impl FnOnce() -> T) -> T {
        if self.known.contains(&one) {
            return one;
        }
        if self.known.len() >= self.most {
            return other();
        }
        self.known.insert(one.clone());
        one
    }
}

/// Returns the network of an address.
fn network(address: IpAddr) -> String {
    let bits = match address {
        IpAddr::V4(_) => PREFIX_V4,
        IpAddr::V6(_) => PREFIX_V6,
    };
    // Cannot fail: both prefix lengths are valid.
    IpNet::new(address, bits).map_or_else(|_| OTHER.to_owned(), |net| net.trunc().to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observer::Tracked;
    use crate::watch::Life;
    use crate::window::tests::sample;

    fn ended(remote: &str) -> Tracked {
        let mut sample = sample(0, |info| {
            info.rtt = Some(Duration::from_millis(20));
            (info.bytes_sent, info.bytes_retrans) = (Some(1000), Some(10));
        });
        sample.connection.remote = remote.parse().unwrap();
        Tracked::only("-".into(), sample)
    }

    fn tell(metrics: &mut Metrics, tracked: &Tracked, life: Option<&Life>) {
        metrics.report(&Report {
            event: Event::End,
            cookie: 1,
            tracked,
            process: None,
            life,
            verdict: None,
            figures: None,
            ended: None,
        });
    }

    #[test]
    fn ends_are_told_by_network_and_by_what_limited_longest() {
        let mut metrics = Metrics::default();
        let mut life = Life::default();
        life.limited[Factor::Loss.index()] = 3.0;
        life.limited[Factor::Idle.index()] = 1.0;
        tell(&mut metrics, &ended("192.0.2.77:80"), Some(&life));
        tell(&mut metrics, &ended("[::ffff:192.0.2.78]:80"), None);
        tell(&mut metrics, &ended("[2001:db8:1:2::3]:80"), None);
        metrics.limited(None, Factor::Loss, 2.5);
        let text = metrics.exposition()().unwrap();
        for line in [
            r#"taut_watch_ended_total{factor="loss",process="unknown"} 1"#,
            r#"taut_watch_ended_total{factor="unclear",process="unknown"} 2"#,
            r#"taut_watch_rtt_seconds_count{process="unknown",peer="192.0.2.0/24"} 2"#,
            r#"taut_watch_rtt_seconds_count{process="unknown",peer="2001:db8:1::/48"} 1"#,
            r#"taut_watch_retransmitted_ratio_sum{process="unknown",peer="192.0.2.0/24"} 0.02"#,
            r#"taut_watch_limited_seconds_total{factor="loss",process="unknown"} 2.5"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn there_are_only_so_many_labels() {
        let mut metrics = Metrics::default();
        for number in 0..PAIRS + 5 {
            let remote = format!("10.{}.{}.1:80", number / 256, number % 256);
            tell(&mut metrics, &ended(&remote), None);
        }
        let text = metrics.exposition()().unwrap();
        let series = text
            .lines()
            .filter(|line| line.starts_with("taut_watch_rtt_seconds_count"));
        assert_eq!(series.count(), PAIRS + 1);
        let other = r#"taut_watch_rtt_seconds_count{process="other",peer="other"} 5"#;
        assert!(text.contains(other));
    }
}
