//! The report for node_exporter's textfile collector, in Prometheus's text format.

use std::fmt::Write as _;

use crate::report::Report;

/// Returns the metrics of a report on all time since the programs were loaded. If none are loaded,
/// all counters are 0.
pub fn metrics(report: &Report) -> String {
    let gaps = &report.gaps;
    let mut text = String::new();
    for (name, kind, help, value) in [
        (
            "up",
            "gauge",
            "Whether the congestion controls are loaded",
            f64::from(u8::from(report.is_up)),
        ),
        ("cpus", "gauge", "CPUs that are online", report.cpus as f64),
        (
            "loaded_seconds",
            "gauge",
            "Time since the congestion controls were loaded",
            report.watched.as_secs_f64(),
        ),
        (
            "gaps_total",
            "counter",
            "Off-CPU gaps of all CPUs",
            gaps.count as f64,
        ),
        (
            "gap_seconds_total",
            "counter",
            "Length of the off-CPU gaps of all CPUs",
            gaps.total.as_secs_f64(),
        ),
        (
            "longest_gap_seconds",
            "gauge",
            "The longest off-CPU gap",
            gaps.longest.as_secs_f64(),
        ),
        (
            "worst_gap_ratio",
            "gauge",
            "The largest share of the time of one CPU that its gaps took",
            report.worst_gap_share,
        ),
        (
            "ticks_total",
            "counter",
            "Scheduler ticks that the programs observed; without any, it is unknown whether there were gaps",
            gaps.ticks as f64,
        ),
    ] {
        head(&mut text, name, kind, help);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "taut_guest_{name} {value}");
    }
    let help = "What the congestion controls did about gaps";
    events(&mut text, "events_total", help, report.counts.iter());
    if let Some(module) = &report.module {
        let counters = module.iter().map(|(name, count)| (&**name, *count));
        let help = "The counters of the kernel module";
        events(&mut text, "module_events_total", help, counters);
    }
    text
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP taut_guest_{name} {help}");
    let _ = writeln!(text, "# TYPE taut_guest_{name} {kind}");
}

/// Writes a counter for each event. Their names have no character that would need to be escaped.
fn events<'a>(
    text: &mut String,
    name: &str,
    help: &str,
    counts: impl Iterator<Item = (&'a str, u64)>,
) {
    head(text, name, "counter", help);
    for (event, count) in counts {
        let _ = writeln!(text, "taut_guest_{name}{{event=\"{event}\"}} {count}");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::counts::{Count, Counts};
    use crate::gaps::Gaps;
    use crate::verdict::Descheduling;

    #[test]
    fn each_figure_is_a_metric() {
        let report = Report {
            is_up: true,
            controls: Vec::new(),
            default: None,
            cpus: 2,
            watched: Duration::from_millis(2500),
            gaps: Gaps {
                count: 3,
                total: Duration::from_millis(90),
                ..Gaps::default()
            },
            gap_share: 0.018,
            worst_gap_share: 0.036,
            steal_share: None,
            counts: [(Count::Reductions, 4)].into_iter().collect::<Counts>(),
            module: Some(vec![("timers_postponed".into(), u64::MAX)]),
            verdict: Ok(Descheduling::Often),
        };
        let text = metrics(&report);
        for line in [
            "taut_guest_up 1",
            "taut_guest_loaded_seconds 2.5",
            "# TYPE taut_guest_gaps_total counter",
            "taut_guest_gaps_total 3",
            "taut_guest_gap_seconds_total 0.09",
            "taut_guest_worst_gap_ratio 0.036",
            "taut_guest_events_total{event=\"reductions\"} 4",
            "taut_guest_events_total{event=\"catch_ups\"} 0",
            "taut_guest_module_events_total{event=\"timers_postponed\"} 18446744073709551615",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
