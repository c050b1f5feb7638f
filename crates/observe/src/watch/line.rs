//! Formats reports as lines of JSON.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Serialize, Serializer};

use super::{Event, Figures, Report};
use crate::ended::Seconds;
use crate::record::Record;
use crate::verdict::Factor;
use crate::versioned::Versioned;

/// A report in its written form.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    /// Time of the report (RFC 3339, UTC).
    #[serde(serialize_with = "rfc3339")]
    pub(super) time: SystemTime,
    /// `end` or `open`.
    pub(super) event: &'static str,
    /// Where the figures are from; `None` if it has not ended, or without figures.
    pub(super) figures: Option<&'static str>,
    /// Seconds since the connection was first found; `None` if no scan found it.
    pub(super) seconds: Option<f64>,
    /// Seconds for which each factor limited it, by the factor's name.
    pub(super) limited: BTreeMap<&'static str, f64>,
    /// Seconds from its first segment to its end; `None` if it has not ended, or was open before
    /// Taut started.
    pub(super) lasted: Option<f64>,
    /// Seconds of each phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) phases: Option<Seconds<'a>>,
    #[serde(flatten)]
    pub(super) record: Record<'a>,
}

fn rfc3339<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_millis(*time))
}

// === impl Line ===

impl<'a> Line<'a> {
    pub(super) fn of(report: &'a Report<'_>, now: SystemTime) -> Self {
        let seconds = report.life.map(|life| {
            let last = report.tracked.last().at;
            last.saturating_sub(life.since).as_secs_f64()
        });
        let limited = report.life.into_iter().flat_map(|life| {
            let each = Factor::ALL.iter().zip(life.limited);
            each.filter(|(_, seconds)| *seconds > 0.0)
                .map(|(factor, seconds)| (factor.name(), seconds))
        });
        let record = Record::of(
            report.cookie,
            report.tracked,
            report.process,
            report.verdict.clone(),
        );
        Self {
            time: now,
            event: match report.event {
                Event::End => "end",
                Event::Open => "open",
            },
            figures: report.figures.map(|figures| match figures {
                Figures::End => "end",
                Figures::Counts => "counts",
                Figures::Scan => "scan",
            }),
            seconds,
            limited: limited.collect(),
            lasted: report
                .ended
                .and_then(|ended| Some(ended.lasted?.as_secs_f64())),
            phases: report.ended.map(|ended| Seconds(&ended.phases)),
            record: match (report.figures, report.ended) {
                (Some(Figures::Counts), Some(ended)) => record.with_counts(&ended.counts),
                _ => record,
            },
        }
    }

    /// Appends the line with a newline.
    pub(super) fn write(&self, to: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(&mut *to, &Versioned::new(self))?;
        to.push(b'\n');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bpf_iter::EndRecord;
    use crate::ended::Ended;
    use crate::observer::Tracked;
    use crate::watch::Life;
    use crate::window::Sample;
    use crate::window::tests::sample;

    #[test]
    fn a_line_has_the_record_and_its_time() {
        let mut tracked = Tracked::only("-".into(), sample(1000, |_| {}));
        let end = sample(6500, |info| {
            (info.segs_out, info.bytes_acked) = (Some(9), Some(77));
        });
        tracked.finish(end.at, Some(end.connection), None);
        let mut life = Life {
            since: Duration::from_secs(1),
            ..Life::default()
        };
        life.limited[Factor::Loss.index()] = 2.5;
        let report = Report {
            event: Event::End,
            cookie: 9,
            tracked: &tracked,
            process: None,
            life: Some(&life),
            verdict: None,
            figures: Some(Figures::End),
            ended: None,
        };
        let mut text = Vec::new();
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        Line::of(&report, now).write(&mut text).unwrap();
        assert_eq!(text.pop(), Some(b'\n'));
        let line: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(line["time"], "1970-01-01T00:00:01.500Z");
        assert_eq!(line["event"], "end");
        assert_eq!(line["figures"], "end");
        assert_eq!(line["seconds"], 5.5);
        assert_eq!(line["limited"], serde_json::json!({"loss": 2.5}));
        assert_eq!(line["cookie"], 9);
        assert_eq!(line["instruments"]["HCThruOctetsAcked"], 77);
    }
    /// No scan has found it, and the kernel has not reported it in time, or without `tcp_info`.
    #[test]
    fn an_end_that_the_program_alone_has_figures_of_has_its_counts_and_no_others() {
        let record = EndRecord {
            bytes_sent: 700,
            bytes_retrans: 5,
            bytes_acked: 697,
            ..crate::ended::tests::record()
        };
        let ended = Ended::of(&record, "-".into(), None);
        let sample = Sample {
            at: Duration::ZERO,
            connection: ended.connection(),
        };
        let tracked = Tracked::only("-".into(), sample);
        let report = Report {
            event: Event::End,
            cookie: 1,
            tracked: &tracked,
            process: None,
            life: None,
            verdict: None,
            figures: Some(Figures::Counts),
            ended: Some(&ended),
        };
        let line = serde_json::to_value(Line::of(&report, SystemTime::UNIX_EPOCH)).unwrap();
        assert_eq!(line["figures"], "counts");
        let expected = serde_json::json!({
            "DataSegsOut": 0, "HCDataOctetsOut": 700, "HCThruOctetsAcked": 697,
            "HCThruOctetsReceived": 1, "OctetsRetrans": 5, "SegsRetrans": 0,
        });
        assert_eq!(line["instruments"], expected);
    }
}
