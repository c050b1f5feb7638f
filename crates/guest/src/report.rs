//! What `taut guest status` says.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::figures::{BUCKETS, Counts, Gaps, upper};
use crate::verdict::{Unknown, Verdict};

/// Of some time.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether the congestion controls are loaded.
    pub is_up: bool,
    /// The default of new connections in this network namespace.
    pub default: Option<String>,
    /// CPUs of this machine.
    pub cpus: usize,
    /// What was looked at.
    #[serde(rename = "watched_s", serialize_with = "seconds")]
    pub watched: Duration,
    /// Times in which a CPU was away.
    pub gaps: Gaps,
    /// Their share of the time of all CPUs.
    pub gap_share: f64,
    /// Of the CPU that was away most, their share of its time: what the verdict is of.
    pub worst_gap_share: f64,
    /// The share that the hypervisor says it took; nothing where it does not say.
    pub steal_share: Option<f64>,
    /// What the congestion controls did.
    pub counts: Counts,
    /// What the kernel module counts; nothing where it is not loaded.
    pub module: Option<Vec<(String, u64)>>,
    /// What it comes to; nothing where that is not known.
    #[serde(serialize_with = "known")]
    pub verdict: Result<Verdict, Unknown>,
}

// === impl Report ===

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let watched = self.watched.as_secs_f64();
        let (is, default) = (
            if self.is_up { "loaded" } else { "not loaded" },
            self.default.as_deref().unwrap_or("not known"),
        );
        writeln!(f, "congestion controls: {is}; the default is {default}")?;
        let cpus = if self.cpus == 1 { "CPU" } else { "CPUs" };
        writeln!(f, "watched for {watched:.1} s, {} {cpus}", self.cpus)?;
        self.gaps(f)?;
        match self.steal_share {
            None => writeln!(f, "steal: not known")?,
            Some(share) => writeln!(
                f,
                "steal: {:.1} % of the time, as the hypervisor says",
                100.0 * share
            )?,
        }
        if self.is_up {
            self.done(f)?;
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
            let none = self.verdict.map_or("not known", |_| "none");
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
            writeln!(
                f,
                "    {worst:.1} % of the time of the CPU that has most of them"
            )?;
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

    fn done(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        writeln!(
            f,
            "taut_bbr: {} bandwidth samples put right and {} kept out, {} RTTs put right and {} kept out; caught up after {} gaps",
            counts.rate_samples_corrected,
            counts.rate_samples_kept_out,
            counts.rtt_samples_corrected,
            counts.rtt_samples_kept_out,
            counts.catch_ups,
        )?;
        writeln!(
            f,
            "taut_cubic: {} reductions followed a gap: {} undone, {} undone by the kernel itself, {} kept; {} delays kept from HyStart",
            counts.reductions,
            counts.reductions_undone,
            counts.reductions_undone_by_kernel,
            counts.reductions_kept,
            counts.delays_kept_out,
        )?;
        match counts.not_followed {
            0 => Ok(()),
            count => writeln!(f, "{count} connections could not be followed: no memory"),
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
    verdict: &Result<Verdict, Unknown>,
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
            default: Some("cubic".into()),
            cpus: 1,
            watched: Duration::from_secs(10),
            gaps: Gaps::default(),
            gap_share: 0.0,
            worst_gap_share: 0.0,
            steal_share: None,
            counts: Counts::default(),
            module: None,
            verdict: Ok(Verdict::Never),
        }
    }

    #[test]
    fn a_quiet_machine_has_a_short_report() {
        assert_eq!(
            report().to_string(),
            "congestion controls: not loaded; the default is cubic\nwatched for 10.0 s, 1 CPU\ngaps: none\nsteal: not known\n\
             kernel module: not loaded\nthis machine was never off its CPUs: there is nothing to repair, and nothing is recommended\n"
        );
    }

    #[test]
    fn where_no_tick_was_seen_there_is_no_verdict() {
        let report = Report {
            verdict: Err(Unknown::NoTicks),
            ..report()
        };
        let text = report.to_string();
        assert!(text.contains("gaps: not known\n"), "{text}");
        assert!(text.contains("not one tick was seen"), "{text}");
        assert!(!text.contains("nothing is recommended"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["verdict"], serde_json::Value::Null);
        assert_eq!(json["gaps"]["ticks"], 0);
    }

    #[test]
    fn gaps_are_told_by_length() {
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
            counts: Counts {
                reductions: 3,
                reductions_undone: 2,
                ..Counts::default()
            },
            module: Some(vec![("timers_postponed".into(), 4)]),
            verdict: Ok(Verdict::Mostly),
            ..report()
        };
        let text = report.to_string();
        for part in [
            "gaps: 241, 45.0 % of the time; 37 ms on average, 2100 ms at most",
            "    90.0 % of the time of the CPU that has most of them",
            "    240 shorter than 32 ms",
            "    1 of 2048 ms and more",
            "steal: 12.3 %",
            "3 reductions followed a gap: 2 undone",
            "    timers_postponed 4",
        ] {
            assert!(text.contains(part), "{part} in:\n{text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["gaps"]["count"], 241);
        assert_eq!(json["gaps"]["longest_ns"], 2_100_000_000_u64);
        assert_eq!(json["verdict"], "mostly");
        assert_eq!(json["watched_s"], 10.0);
    }
}
