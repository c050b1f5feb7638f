//! The report of `taut guest status`.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use taut_sys::plural::counted;

use crate::control::Control;
use crate::counts::{self, Count, Counts};
use crate::gaps::{BUCKETS, Gaps, upper};
use crate::verdict::{Descheduling, Unknown};

/// The events in a span of time.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether the congestion controls are loaded.
    pub is_up: bool,
    /// Those that are loaded: a kernel may not support one of them.
    pub controls: Vec<Control>,
    /// The default congestion control of new connections in this network namespace.
    pub default: Option<String>,
    /// Number of CPUs that are online.
    pub cpus: usize,
    /// Length of the span.
    #[serde(rename = "watched_s", serialize_with = "seconds")]
    pub watched: Duration,
    /// Off-CPU gaps of all CPUs.
    pub gaps: Gaps,
    /// Their share of the time of all CPUs, 0 to 1.
    pub gap_share: f64,
    /// The largest share of a single CPU, on which the verdict is based.
    pub worst_gap_share: f64,
    /// The share of CPU time that the hypervisor reports as stolen; `None` if it reports none.
    pub steal_share: Option<f64>,
    /// The counters of the congestion controls.
    #[serde(serialize_with = "counts::serialize")]
    pub counts: Counts,
    /// The counters of the kernel module; `None` if it is not loaded.
    pub module: Option<Vec<(String, u64)>>,
    /// Whether the gaps matter; `null` in JSON if that is unknown.
    #[serde(serialize_with = "known")]
    pub verdict: Result<Descheduling, Unknown>,
}

// === impl Report ===

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let watched = self.watched.as_secs_f64();
        let is = match self.controls[..] {
            [] => "not loaded",
            [Control::Bbr] => "only taut_bbr is loaded",
            [Control::Cubic] => "only taut_cubic is loaded",
            _ => "loaded",
        };
        let default = self.default.as_deref().unwrap_or("unknown");
        writeln!(f, "congestion controls: {is}; the default is {default}")?;
        writeln!(
            f,
            "watched for {watched:.1} s, {}",
            counted(self.cpus, "CPU")
        )?;
        self.gaps(f)?;
        match self.steal_share {
            None => writeln!(f, "steal: unknown")?,
            Some(share) => writeln!(
                f,
                "steal: {:.1} % of the time, as the hypervisor reports",
                100.0 * share
            )?,
        }
        if self.is_up {
            self.counts(f)?;
        }
        match &self.module {
            None => writeln!(f, "kernel module: not loaded")?,
            Some(counters) => {
                writeln!(f, "kernel module, since it was loaded:")?;
                for (name, count) in counters {
                    writeln!(f, "    {name} {count}")?;
                }
            }
        }
        match self.verdict {
            Ok(verdict) => writeln!(f, "{}", verdict.sentence()),
            Err(unknown) => writeln!(f, "{unknown}"),
        }
    }
}

impl Report {
    fn gaps(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gaps = &self.gaps;
        if gaps.count == 0 {
            let none = self.verdict.map_or("unknown", |_| "none");
            return writeln!(f, "gaps: {none}");
        }
        writeln!(
            f,
            "gaps: {}, {:.1} % of the time; {} on average, {} at most",
            gaps.count,
            100.0 * self.gap_share,
            ms(gaps.mean()),
            ms(gaps.longest),
        )?;
        if self.cpus > 1 {
            let worst = 100.0 * self.worst_gap_share;
            writeln!(f, "    {worst:.1} % of the time of the CPU with the most")?;
        }
        for (bucket, count) in gaps.lengths.iter().enumerate() {
            if *count == 0 {
                continue;
            }
            let to = match upper(bucket) {
                Some(upper) => format!("shorter than {}", ms(upper)),
                None => format!(
                    "of {} and more",
                    ms(Duration::from_millis(1 << (BUCKETS - 1)))
                ),
            };
            writeln!(f, "    {count} {to}")?;
        }
        Ok(())
    }

    fn counts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |count| self.counts.get(count);
        if self.controls.contains(&Control::Bbr) {
            writeln!(
                f,
                "taut_bbr: {} corrected and {} kept out, {} corrected and {} kept out; caught up after {}",
                counted(count(Count::RateSamplesCorrected), "bandwidth sample"),
                count(Count::RateSamplesKeptOut),
                counted(count(Count::RttSamplesCorrected), "RTT sample"),
                count(Count::RttSamplesKeptOut),
                counted(count(Count::CatchUps), "gap"),
            )?;
        }
        if self.controls.contains(&Control::Cubic) {
            writeln!(
                f,
                "taut_cubic: {} after a gap: {} undone, {} undone by the kernel itself, {} kept; {} kept from HyStart",
                counted(count(Count::Reductions), "window reduction"),
                count(Count::ReductionsUndone),
                count(Count::ReductionsUndoneByKernel),
                count(Count::ReductionsKept),
                counted(count(Count::DelaysKeptOut), "delay"),
            )?;
        }
        match count(Count::NotFollowed) {
            0 => Ok(()),
            count => writeln!(
                f,
                "the kernel's own control runs in {}: no memory for the state",
                counted(count, "connection")
            ),
        }
    }
}

fn ms(time: Duration) -> String {
    let ms = 1000.0 * time.as_secs_f64();
    match ms < 10.0 {
        true => format!("{ms:.1} ms"),
        false => format!("{ms:.0} ms"),
    }
}

fn seconds<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}

fn known<S: serde::Serializer>(
    verdict: &Result<Descheduling, Unknown>,
    to: S,
) -> Result<S::Ok, S::Error> {
    verdict.ok().serialize(to)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            is_up: false,
            controls: Vec::new(),
            default: Some("cubic".into()),
            cpus: 1,
            watched: Duration::from_secs(10),
            gaps: Gaps::default(),
            gap_share: 0.0,
            worst_gap_share: 0.0,
            steal_share: None,
            counts: Counts::default(),
            module: None,
            verdict: Ok(Descheduling::Never),
        }
    }

    #[test]
    fn a_quiet_machine_has_a_short_report() {
        assert_eq!(
            report().to_string(),
            "congestion controls: not loaded; the default is cubic\nwatched for 10.0 s, 1 CPU\ngaps: none\nsteal: unknown\n\
             kernel module: not loaded\nthis machine was never descheduled: nothing is recommended\n"
        );
    }

    #[test]
    fn without_ticks_there_is_no_verdict() {
        let report = Report {
            verdict: Err(Unknown::NoTicks),
            ..report()
        };
        let text = report.to_string();
        assert!(text.contains("gaps: unknown\n"), "{text}");
        assert!(text.contains("no scheduler tick was observed"), "{text}");
        assert!(!text.contains("nothing is recommended"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["verdict"], serde_json::Value::Null);
        assert_eq!(json["gaps"]["ticks"], 0);
    }

    #[test]
    fn gaps_are_listed_by_length() {
        let mut lengths = [0; BUCKETS];
        lengths[4] = 240;
        lengths[BUCKETS - 1] = 1;
        let gaps = Gaps {
            count: 241,
            total: Duration::from_secs(9),
            longest: Duration::from_millis(2100),
            lengths,
            ticks: 240,
        };
        let report = Report {
            gaps,
            cpus: 2,
            gap_share: 0.45,
            worst_gap_share: 0.9,
            steal_share: Some(0.123),
            is_up: true,
            controls: vec![Control::Cubic],
            counts: [(Count::Reductions, 3), (Count::ReductionsUndone, 2)]
                .into_iter()
                .collect(),
            module: Some(vec![("timers_postponed".into(), 4)]),
            verdict: Ok(Descheduling::Mostly),
            ..report()
        };
        let text = report.to_string();
        assert!(!text.contains("taut_bbr"), "{text}");
        for part in [
            "congestion controls: only taut_cubic is loaded",
            "gaps: 241, 45.0 % of the time; 37 ms on average, 2100 ms at most",
            "    90.0 % of the time of the CPU with the most",
            "    240 shorter than 32 ms",
            "    1 of 2048 ms and more",
            "steal: 12.3 %",
            "3 window reductions after a gap: 2 undone",
            "    timers_postponed 4",
        ] {
            assert!(text.contains(part), "{part} in:\n{text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["gaps"]["count"], 241);
        assert_eq!(json["gaps"]["longest_ns"], 2_100_000_000_u64);
        assert_eq!(json["counts"]["reductions_undone"], 2);
        assert_eq!(json["controls"], serde_json::json!(["cubic"]));
        assert_eq!(json["verdict"], "mostly");
        assert_eq!(json["watched_s"], 10.0);
    }
}
