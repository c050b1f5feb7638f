//! Renders groups of ended connections in English and JSON.

use std::time::Duration;

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};

use super::{Group, Groups, Key, Opener, Phase, Phases};
use crate::namespaces::OWN;
use crate::versioned::Versioned;

/// The minimum share of a phase that the sentence names.
const NAMED_SHARE: f64 = 0.01;
/// The minimum share of the longest phase that is worth a remedy.
const REMEDY_SHARE: f64 = 0.25;

/// A group as a line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    /// The sum of connections that have ended.
    ended: Sums<'a>,
}

#[derive(Serialize)]
struct Sums<'a> {
    /// The network namespace.
    netns: Option<&'a str>,
    /// The process; `None` for the sum of what is beyond the limit.
    process: Option<&'a str>,
    /// The peer; `None` for the sum of what is beyond the limit.
    peer: Option<std::net::IpAddr>,
    /// The end that connected.
    opened_by: Option<Opener>,
    /// Connections that ended.
    connections: u64,
    /// Connections that were never established.
    failed: u64,
    /// Connections that were open before Taut started, so that their duration is unknown.
    open_before: u64,
    /// The time that half of them lasted at most, in seconds.
    median: Option<f64>,
    /// The time that 90 % of them lasted at most, in seconds.
    p90: Option<f64>,
    /// Payload sent, in bytes.
    sent: u64,
    /// Payload received, in bytes.
    received: u64,
    /// Segments with data that were sent.
    data_segments: u64,
    /// Segments that were retransmitted.
    retransmitted: u64,
    /// Seconds of each phase.
    phases: Seconds<'a>,
}

/// The phases by name, in seconds.
pub(crate) struct Seconds<'a>(pub(crate) &'a Phases);

// === impl Groups ===

impl Groups {
    /// Returns a sentence for each of the `most` largest groups, and one that counts the rest.
    pub fn text(&self, most: usize) -> String {
        let sorted = self.sorted();
        let mut text = String::new();
        for (key, group) in sorted.iter().take(most) {
            text.push_str(&group.sentence(key));
            text.push('\n');
            if let Some(remedy) = group.remedy() {
                text.push_str(&format!("  what helps: {remedy}\n"));
            }
        }
        let rest = sorted.iter().skip(most).map(|(_, group)| group.count);
        let rest = rest.sum::<u64>() + self.others().map_or(0, |others| others.count);
        if rest > 0 {
            text.push_str(&format!("{rest} more ended, of other processes or peers\n"));
        }
        text
    }

    /// Returns a line with the number of ended connections and the largest group; `None` without
    /// any.
    pub fn line(&self) -> Option<String> {
        let count = self.count();
        let sorted = self.sorted();
        let largest = sorted.first().map(|(key, group)| group.sentence(key));
        let largest = largest.map_or_else(String::new, |sentence| format!("; {sentence}"));
        (count > 0).then(|| format!("ended: {count}{largest}"))
    }

    /// Returns a line of JSON for each group.
    ///
    /// # Errors
    /// Those of serde_json.
    pub fn json(&self) -> serde_json::Result<String> {
        let sorted = self.sorted();
        let groups = sorted.iter().map(|(key, group)| (Some(*key), *group));
        let mut text = String::new();
        for (key, group) in groups.chain(self.others().map(|others| (None, others))) {
            let line = Line {
                ended: Sums::of(key, group),
            };
            text.push_str(&Versioned::new(line).line()?);
        }
        Ok(text)
    }
}

// === impl Group ===

impl Group {
    /// Returns a sentence about the group: `212 connections of nginx to 10.0.0.9 ended, median 38
    /// ms: ...`.
    pub fn sentence(&self, key: &Key) -> String {
        let plural = if self.count == 1 { "" } else { "s" };
        let process = key.process.as_deref().unwrap_or("an unknown process");
        let way = match key.opener {
            Opener::Here => "to",
            Opener::Peer => "from",
            Opener::Unknown => "with",
        };
        let mut text = format!(
            "{} connection{plural} of {process} {way} {} ended",
            self.count, key.peer
        );
        if &*key.netns != OWN {
            text.push_str(&format!(" in namespace {}", key.netns));
        }
        if let Some(median) = self.lasted(0.5) {
            text.push_str(&format!(", median {}", time(median)));
        }
        let shares = self.phases.shares();
        let shares = shares.iter().filter(|(_, share)| *share >= NAMED_SHARE);
        let shares: Vec<_> = shares
            .map(|(phase, share)| format!("{:.0} % {}", share * 100.0, phase.words()))
            .collect();
        if !shares.is_empty() {
            text.push_str(&format!(": {}", shares.join(", ")));
        }
        text.push_str(&format!(
            "; {} sent, {} received, {} of {} segments retransmitted",
            bytes(self.sent),
            bytes(self.received),
            self.retransmitted,
            self.data_segments
        ));
        if self.failed > 0 {
            text.push_str(&format!(", {} never opened", self.failed));
        }
        if self.open_before > 0 {
            text.push_str(&format!(", {} open before", self.open_before));
        }
        text
    }

    /// Returns what shortens the longest phase; `None` if that phase is short, or nothing at this
    /// end shortens it.
    fn remedy(&self) -> Option<&'static str> {
        let (phase, share) = *self.phases.shares().first()?;
        (share >= REMEDY_SHARE).then_some(())?;
        Some(match phase {
            Phase::Handshake => {
                "keep connections open and reuse them, or `taut relay` near the clients"
            }
            Phase::SlowStart => {
                "keep connections open and reuse them, or a larger initial window: `taut tune --apply --initcwnd 20`"
            }
            Phase::SendBuffer => "`taut tune --apply`, which enlarges buffers that are too small",
            Phase::RoundTrip
            | Phase::Path
            | Phase::Loss
            | Phase::ReceiveWindow
            | Phase::Receiving
            | Phase::Waiting => return None,
        })
    }
}

// === impl Sums ===

impl<'a> Sums<'a> {
    fn of(key: Option<&'a Key>, group: &'a Group) -> Self {
        Self {
            netns: key.map(|key| &*key.netns),
            process: key.and_then(|key| key.process.as_deref()),
            peer: key.map(|key| key.peer),
            opened_by: key.map(|key| key.opener),
            connections: group.count,
            failed: group.failed,
            open_before: group.open_before,
            median: group.lasted(0.5).map(|time| time.as_secs_f64()),
            p90: group.lasted(0.9).map(|time| time.as_secs_f64()),
            sent: group.sent,
            received: group.received,
            data_segments: group.data_segments,
            retransmitted: group.retransmitted,
            phases: Seconds(&group.phases),
        }
    }
}

impl Serialize for Seconds<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for &phase in Phase::ALL {
            let time = self.0.get(phase);
            if !time.is_zero() {
                map.serialize_entry(phase.name(), &time.as_secs_f64())?;
            }
        }
        map.end()
    }
}

fn time(time: Duration) -> String {
    match time.as_secs_f64() * 1e3 {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 1e4 => format!("{ms:.0} ms"),
        ms => format!("{:.0} s", ms / 1e3),
    }
}

fn bytes(count: u64) -> String {
    const UNITS: [(&str, f64); 4] = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)];
    let (unit, size) = UNITS
        .into_iter()
        .find(|(_, size)| count as f64 >= *size)
        .unwrap_or(("B", 1.0));
    match size {
        1.0 => format!("{count} {unit}"),
        size => format!("{:.1} {unit}", count as f64 / size),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::ended;
    use super::*;

    #[test]
    fn a_group_is_one_sentence_and_one_line_of_json() {
        let mut groups = Groups::new(1);
        for _ in 0..212 {
            groups.add(&ended(|end| {
                end.bytes_acked = 1002;
                (end.busy, end.data_segs_out) = (Duration::from_millis(52), 50);
            }));
        }
        groups.add(&ended(|end| end.remote.set_ip([10, 0, 0, 8].into())));
        let text = groups.text(5);
        let first = "212 connections of nginx to 10.0.0.9 ended, median ";
        assert!(text.starts_with(first), "{text}");
        let rest = "52 % slow start, 28 % waiting for an application, 20 % handshake; \
                    212.0 kB sent, 0 B received, 0 of 10600 segments retransmitted\n  what helps: keep";
        assert!(text.contains(rest), "{text}");
        assert!(
            text.ends_with("1 more ended, of other processes or peers\n"),
            "{text}"
        );
        let line = groups.line().unwrap();
        assert!(
            line.starts_with("ended: 213; 212 connections of nginx"),
            "{line}"
        );
        assert_eq!(Groups::default().line(), None);
        let json = groups.json().unwrap();
        let lines: Vec<serde_json::Value> = json
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["ended"]["connections"], 212);
        assert_eq!(lines[0]["ended"]["sent"], 212_000);
        assert_eq!(lines[0]["ended"]["opened_by"], "here");
        let handshake = lines[0]["ended"]["phases"]["handshake"].as_f64().unwrap();
        assert!((handshake - 4.24).abs() < 1e-9);
        assert_eq!(lines[1]["ended"]["peer"], serde_json::Value::Null);
    }
}
