//! The commands that give a verdict on a connection, and what they print.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::case::Case;
use super::cause::Cause;
use super::family::Part;
use crate::experiment::ExperimentError;

/// A command that prints a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    /// `taut why`.
    Why,
    /// `taut why --with`: the verdict of both ends. The same command, which observes one end, also
    /// gives the verdict of [`Mode::Why`].
    BothEnds,
    /// `taut why --no-events`.
    WhyNoEvents,
    /// `taut top --json`: the last scan's verdict.
    Top,
    /// `taut watch`: the verdict of the record at the connection's end, or of the last record if
    /// the connection cannot end.
    Watch,
}

/// The verdict that a command printed for a connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Statement {
    pub(super) said: Said,
    /// The share of the time that the verdict gives to each factor.
    pub(super) shares: BTreeMap<String, f64>,
    /// The factor that `taut watch` recorded for the longest time.
    pub(super) longest: Option<String>,
    /// What the connection would carry without the factor, if the verdict says so.
    pub(super) gain: Option<Gain>,
}

/// The factor of a verdict, and its confidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// The factor, as `taut why --json` writes it; `nothing` without a verdict.
    pub(super) factor: String,
    /// Its confidence, as `taut why --json` writes it.
    pub(super) confidence: String,
}

/// What a connection would carry without the factor of its verdict.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Gain {
    /// Payload, in bytes a second.
    pub(super) rate: f64,
    pub(super) is_lower_bound: bool,
    /// The factor that would limit the connection next.
    pub(super) next: Option<String>,
}

/// The parsed fields of a line of output.
#[derive(Deserialize)]
struct Line {
    cookie: u64,
    verdict: Option<ReportedVerdict>,
    /// Only in a line of `taut watch`.
    event: Option<String>,
    both_ends: Option<ReportedVerdict>,
    #[serde(default)]
    limited: BTreeMap<String, f64>,
    instruments: Carried,
}

#[derive(Deserialize)]
struct ReportedVerdict {
    factor: String,
    confidence: String,
    #[serde(default)]
    shares: BTreeMap<String, f64>,
    #[serde(default)]
    gain: Option<Gain>,
}

#[derive(Deserialize)]
struct Carried {
    #[serde(rename = "HCThruOctetsAcked", default)]
    sent: u64,
    #[serde(rename = "HCThruOctetsReceived", default)]
    received: u64,
}

// === impl Said ===

impl Default for Said {
    fn default() -> Self {
        Self {
            factor: "nothing".to_owned(),
            confidence: "unclear".to_owned(),
        }
    }
}

// === impl Mode ===

impl Mode {
    pub(super) const ALL: [Self; 5] = [
        Self::Why,
        Self::BothEnds,
        Self::WhyNoEvents,
        Self::Top,
        Self::Watch,
    ];

    /// Returns the prefix of its figures; `None` for `taut why`, whose figures have none.
    pub(super) fn key(self) -> Option<&'static str> {
        match self {
            Self::Why => None,
            Self::BothEnds => Some("both_ends"),
            Self::WhyNoEvents => Some("no_events"),
            Self::Top => Some("top"),
            Self::Watch => Some("watch"),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Why => "taut why",
            Self::BothEnds => "taut why --with",
            Self::WhyNoEvents => "taut why --no-events",
            Self::Top => "taut top --json",
            Self::Watch => "taut watch",
        }
    }

    /// Returns the factor that its verdict should name, as `taut why --json` writes it.
    pub(super) fn expected(self, part: Part) -> &'static str {
        match (self, part.cause) {
            // Only the other end knows more than that.
            (Self::BothEnds, Cause::Elsewhere) => "sender-application",
            _ => part.factor(),
        }
    }

    /// Whether the command can be right: its instruments and its window suffice for the cause.
    pub(super) fn can_tell(self, case: &Case) -> bool {
        match self {
            Self::Why => true,
            Self::BothEnds => case.cause.has_both_ends(),
            // Only `taut why` loads the program that sees drops.
            _ if case.cause == Cause::PolicerHere => false,
            Self::WhyNoEvents => true,
            Self::Top | Self::Watch => case.cause.has_scans(case.round_trip),
        }
    }

    /// Returns the arguments with which `taut` observes the connections that a filter matches.
    pub(super) fn args(self, time: Duration, filter: &str) -> Vec<String> {
        let watch = format!("{}ms", time.as_millis());
        // The first scan is at the start, the others a second apart.
        let scans = (time.as_secs() + 1).to_string();
        let own: &[&str] = match self {
            Self::Why => &["why", "--json", "--for", &watch],
            Self::BothEnds => &["why", "--json", "--with", "/dev/stdin", "--for", &watch],
            Self::WhyNoEvents => &["why", "--json", "--no-events", "--for", &watch],
            Self::Top => &["top", "--json", "--scans", &scans],
            Self::Watch => &["watch", "--open-every", "1s"],
        };
        let own = own.iter().chain(&["--own-netns"]);
        own.map(ToString::to_string)
            .chain([filter.to_owned()])
            .collect()
    }

    /// Returns what the output says of the connection that carried the most bytes. `must_end`: only
    /// the record of its end counts.
    ///
    /// # Errors
    /// The output is not what the command prints.
    pub(super) fn statement(
        self,
        output: &str,
        must_end: bool,
    ) -> Result<Statement, ExperimentError> {
        let parsed = self.parse(output, must_end);
        parsed.map_err(|e| ExperimentError::machine(self.name())(e.into()))
    }

    fn parse(self, output: &str, must_end: bool) -> serde_json::Result<Statement> {
        let mut last: BTreeMap<u64, Line> = BTreeMap::new();
        for line in output.lines() {
            // A line for a sum of ended connections has no cookie.
            let any: serde_json::Value = serde_json::from_str(line)?;
            if any.get("cookie").is_none() {
                continue;
            }
            let line: Line = serde_json::from_value(any)?;
            if !must_end || line.event.as_deref() == Some("end") {
                last.insert(line.cookie, line);
            }
        }
        let most = last.into_values().max_by_key(|line| line.instruments.sum());
        let Some(line) = most else {
            return Ok(Statement::default());
        };
        let longest = line.limited.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let longest = longest.map(|(factor, _)| factor);
        let verdict = match self {
            Self::BothEnds => line.both_ends,
            _ => line.verdict,
        };
        Ok(match verdict {
            Some(verdict) => Statement {
                said: Said {
                    factor: verdict.factor,
                    confidence: verdict.confidence,
                },
                shares: verdict.shares,
                longest,
                gain: verdict.gain,
            },
            None => Statement {
                longest,
                ..Statement::default()
            },
        })
    }
}

// === impl Carried ===

impl Carried {
    fn sum(&self) -> u64 {
        self.sent.saturating_add(self.received)
    }
}

#[cfg(test)]
mod tests {
    use super::super::family::Family;
    use super::*;

    fn line(cookie: u64, rest: &str, sent: u64, factor: &str) -> String {
        format!(
            r#"{{"cookie": {cookie}, {rest} "instruments": {{"HCThruOctetsAcked": {sent}}},
                "verdict": {{"factor": "{factor}", "confidence": "sure", "shares": {{}}}}}}"#
        )
        .replace('\n', " ")
    }

    #[test]
    fn the_last_line_of_the_connection_that_carried_most_counts() {
        let output = [
            line(1, "", 10, "link"),
            line(2, "", 90, "loss"),
            r#"{"ended": {}}"#.to_owned(),
            line(2, "", 95, "queue"),
            line(1, "", 20, "link"),
        ];
        let statement = Mode::Top.statement(&output.join("\n"), false).unwrap();
        assert_eq!(statement.said.factor, "queue");
    }

    #[test]
    fn the_verdict_of_both_ends_is_apart_from_that_of_one() {
        let both = r#""both_ends": {"factor": "queue", "confidence": "likely"},"#;
        let output = line(1, both, 10, "peer");
        let factor = |mode: Mode| mode.statement(&output, false).unwrap().said.factor;
        assert_eq!(
            (factor(Mode::Why), factor(Mode::BothEnds)),
            ("peer".into(), "queue".into())
        );
    }

    #[test]
    fn a_command_is_not_scored_where_its_scans_cannot_show_the_cause() {
        let can_tell = |mode: Mode, cause, round_trip| {
            let family = Family::Cubic;
            let case = Case {
                round_trip: Duration::from_millis(round_trip),
                ..Case::of(Part { family, cause }, 1, 0)
            };
            mode.can_tell(&case)
        };
        for mode in [Mode::Top, Mode::Watch] {
            assert!(!can_tell(mode, Cause::SlowStart, 249));
            assert!(can_tell(mode, Cause::SlowStart, 250));
            assert!(!can_tell(mode, Cause::MtuProbing, 20));
            assert!(can_tell(mode, Cause::Link, 20));
        }
        for mode in [Mode::WhyNoEvents, Mode::Top, Mode::Watch] {
            assert!(!can_tell(mode, Cause::PolicerHere, 20));
        }
        assert!(can_tell(Mode::Why, Cause::PolicerHere, 20));
        assert!(can_tell(Mode::Why, Cause::SlowStart, 150));
        assert!(can_tell(Mode::WhyNoEvents, Cause::MtuProbing, 20));
        assert!(!can_tell(Mode::BothEnds, Cause::NoAnswer, 20));
    }

    #[test]
    fn only_an_end_counts_if_the_connection_must_end() {
        let limited = r#""limited": {"loss": 3.0, "link": 1.0},"#;
        let open = line(1, r#""event": "open","#, 10, "link");
        let end = line(1, &format!(r#""event": "end", {limited}"#), 10, "queue");
        let none = Mode::Watch.statement(&open, true).unwrap();
        assert_eq!(none, Statement::default());
        let statement = Mode::Watch.statement(&format!("{open}\n{end}"), true);
        let statement = statement.unwrap();
        assert_eq!(statement.said.factor, "queue");
        assert_eq!(statement.longest.as_deref(), Some("loss"));
    }
}
