//! What a node counts, and its OpenMetrics form.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::end::End;

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
    pub(crate) refused_full: Figure,
    pub(crate) accept_failed: Figure,
    pub(crate) sessions: Figure,
    pub(crate) onward_bytes: Figure,
    pub(crate) client_bytes: Figure,
    pub(crate) pipes_open: Figure,
    pub(crate) pipes_in_use: Figure,
    pub(crate) pipe_misses: Figure,
    pub(crate) pipes_refused: Figure,
    pub(crate) ended: [Figure; End::ALL.len()],
}

/// What a node counts.
#[derive(Clone, Debug)]
pub struct Metrics {
    workers: Arc<[Arc<WorkerMetrics>]>,
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            workers: (0..workers).map(|_| Arc::default()).collect(),
        }
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

    /// Clients that were refused because the node was full.
    pub fn refused_full(&self) -> u64 {
        self.sum(|w| &w.refused_full)
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
            "taut_relay_refused",
            "Connections reset because max_sessions were open",
            self.sum(|w| &w.refused_full),
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

        let (onward, client) = self.bytes();
        let help = "Bytes passed on, by the leg that they were written to";
        let mut family =
            encoder.encode_descriptor("taut_relay_bytes", help, None, MetricType::Counter)?;
        for (leg, bytes) in [("onward", onward), ("client", client)] {
            Count(bytes).encode(family.encode_family(&[("leg", leg)])?)?;
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
        let metrics = Metrics::new(2);
        metrics.worker(0).onward_bytes.add(3);
        metrics.worker(1).onward_bytes.add(4);
        metrics.worker(1).sessions.add(2);
        metrics.worker(1).sessions.sub(1);
        assert_eq!(metrics.bytes(), (7, 0));
        assert_eq!(metrics.sessions(), 1);
    }

    #[test]
    fn the_text_is_openmetrics_with_every_cause_from_the_start() {
        let metrics = Metrics::new(1);
        metrics.worker(0).ended[End::ConnectRefused.index()].add(5);
        let text = metrics.encode().unwrap();
        for line in [
            "# TYPE taut_relay_sessions gauge",
            "taut_relay_sessions 0",
            "taut_relay_accepted_total 0",
            "taut_relay_bytes_total{leg=\"client\"} 0",
            "taut_relay_ended_total{cause=\"complete\"} 0",
            "taut_relay_ended_total{cause=\"connect_refused\"} 5",
        ] {
            assert!(
                text.lines().any(|l| l == line),
                "no line `{line}` in:\n{text}"
            );
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
