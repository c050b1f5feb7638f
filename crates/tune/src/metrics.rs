//! The metrics of `taut tune`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use taut_exposition::SpawnError;
use taut_sys::listen::Listen;

use crate::report::Outcome;
use crate::tuner::Round;

type Labels = Vec<(&'static str, &'static str)>;

/// The object of a change: a connection, or a setting or route of a network namespace.
const SUBJECTS: [&str; 2] = ["connection", "namespace"];

/// The metrics. All series exist from the start, so that an alert sees the first failure.
pub struct Metrics {
    registry: Arc<Registry>,
    changes: Family<Labels, Counter>,
    connections: Gauge,
    left_alone: Gauge,
    left_out: Gauge,
    granted: Gauge,
    excess: Gauge,
    scans: Counter,
    cpu: Counter<f64, AtomicU64>,
    problems: Counter,
    unprinted: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("taut_tune");
        let metrics = Self {
            registry: Arc::default(),
            changes: Family::default(),
            connections: Gauge::default(),
            left_alone: Gauge::default(),
            left_out: Gauge::default(),
            granted: Gauge::default(),
            excess: Gauge::default(),
            scans: Counter::default(),
            cpu: Counter::default(),
            problems: Counter::default(),
            unprinted: Counter::default(),
        };
        for subject in SUBJECTS {
            for outcome in Outcome::NAMES {
                let labels = labels(subject, outcome);
                metrics.changes.get_or_create(&labels).inc_by(0);
            }
        }
        let register = &mut registry;
        register.register(
            "changes",
            "Changes by their subject and outcome",
            metrics.changes.clone(),
        );
        register.register(
            "connections",
            "Connections of the last scan",
            metrics.connections.clone(),
        );
        register.register(
            "connections_left_alone",
            "Connections of the last scan that the filters leave alone",
            metrics.left_alone.clone(),
        );
        register.register(
            "connections_left_out",
            "Connections of the last scan that are not tracked because the table is full",
            metrics.left_out.clone(),
        );
        register.register(
            "granted_bytes",
            "With a budget: what all buffers may hold",
            metrics.granted.clone(),
        );
        register.register(
            "excess_bytes",
            "With a budget: by how much memory that cannot be taken away exceeds it",
            metrics.excess.clone(),
        );
        register.register("scans", "Scans", metrics.scans.clone());
        register.register(
            "cpu_seconds",
            "CPU time of scans and changes",
            metrics.cpu.clone(),
        );
        register.register(
            "problems",
            "Namespaces whose routes could not be listed or changed, requested routes that no namespace has, and a bound of each control group that bounds all connections together",
            metrics.problems.clone(),
        );
        register.register(
            "lines_dropped",
            "Changes that were not printed because the output is read too slowly",
            metrics.unprinted.clone(),
        );
        Self {
            registry: Arc::new(registry),
            ..metrics
        }
    }
}

// === impl Metrics ===

impl Metrics {
    /// Serves them at `addr`, on a thread that ends with the process.
    ///
    /// # Errors
    /// [`SpawnError`].
    pub fn serve(&self, addr: Listen) -> Result<(), SpawnError> {
        let registry = Arc::clone(&self.registry);
        taut_exposition::spawn(addr, "tune-metrics", move || encoded(&registry))
    }

    /// Counts a round that took `cpu` of CPU time. `left_out`: connections for which there was no
    /// room. `unprinted`: lines of its changes that were dropped.
    pub fn round(&self, round: &Round, left_out: usize, cpu: Duration, unprinted: usize) {
        for report in &round.reports {
            let subject = SUBJECTS[usize::from(report.connection.is_none())];
            let labels = labels(subject, report.outcome.name());
            self.changes.get_or_create(&labels).inc();
        }
        set(&self.connections, round.connections as u64);
        set(&self.left_alone, round.left_alone as u64);
        set(&self.left_out, left_out as u64);
        set(&self.granted, round.granted);
        set(&self.excess, round.excess);
        self.scans.inc();
        self.cpu.inc_by(cpu.as_secs_f64());
        let problems = round.problems.len() + round.unmatched.len();
        self.problems.inc_by(problems as u64);
        self.unprinted.inc_by(unprinted as u64);
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

fn encoded(registry: &Registry) -> Result<String, fmt::Error> {
    let mut text = String::new();
    text::encode(&mut text, registry)?;
    Ok(text)
}

fn labels(subject: &'static str, outcome: &'static str) -> Labels {
    vec![("subject", subject), ("outcome", outcome)]
}

fn set(gauge: &Gauge, value: u64) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ChangeReport;

    #[test]
    fn changes_are_counted_by_subject_and_outcome() {
        let metrics = Metrics::default();
        let failed = ChangeReport {
            connection: None,
            netns: "-".to_owned(),
            change: "c".to_owned(),
            reason: "r".to_owned(),
            expected: "e".to_owned(),
            outcome: Outcome::Failed("a reason".to_owned()),
        };
        let round = Round {
            reports: vec![failed],
            connections: 3,
            problems: vec!["p".to_owned()],
            ..Round::default()
        };
        metrics.round(&round, 2, Duration::from_millis(1500), 4);
        let text = encoded(&metrics.registry).unwrap();
        for line in [
            r#"taut_tune_changes_total{subject="namespace",outcome="failed"} 1"#,
            r#"taut_tune_changes_total{subject="connection",outcome="applied"} 0"#,
            "taut_tune_connections 3",
            "taut_tune_connections_left_out 2",
            "taut_tune_cpu_seconds_total 1.5",
            "taut_tune_problems_total 1",
            "taut_tune_lines_dropped_total 4",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
