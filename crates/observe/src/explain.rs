//! The report of `taut why`, as text or JSON.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Serialize;

use crate::both_ends::{End, Joint, Remote, Report, SequenceBase};
use crate::ended::Groups;
use crate::observation::Observation;
use crate::observer::Tracked;
use crate::owner::Process;
use crate::record::Record;
use crate::verdict::{self, Factor, Verdict};

/// A connection with its verdict.
#[derive(Debug)]
pub struct Explanation<'a> {
    cookie: u64,
    tracked: &'a Tracked,
    process: Option<&'a Process>,
    verdict: Option<Verdict>,
    has_ended: bool,
    /// Payload sent and received in the window, in bytes.
    carried: u64,
    /// The changes that `taut tune` made to it, in sentences.
    tuned: &'a [String],
    other: Option<Other<'a>>,
}

/// The other end of a connection, and what both ends say.
#[derive(Clone, Copy, Debug)]
struct Other<'a> {
    name: &'a str,
    remote: &'a Remote,
    joint: Option<Joint>,
}

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    record: Record<'a>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    has_ended: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tuned: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    both_ends: Option<Joint>,
}

/// Explains the connections that two scans or more have found, whether they have ended or not, in
/// descending order of payload. `tuned`: the changes that `taut tune` made to them, in sentences by
/// cookie.
pub fn explanations<'a>(
    observation: &'a Observation,
    tuned: &'a HashMap<u64, Vec<String>>,
) -> Vec<Explanation<'a>> {
    let tuned = |cookie| tuned.get(&cookie).map_or(&[][..], Vec::as_slice);
    let observer = observation.observer();
    let open = observer.connections(observation.filter());
    let open = open.map(|seen| Explanation {
        cookie: seen.cookie,
        tracked: seen.tracked,
        process: seen.process,
        verdict: observer.verdict(&seen),
        has_ended: false,
        carried: seen.tracked.carried(),
        tuned: tuned(seen.cookie),
        other: None,
    });
    let ended = observation.kept().iter().map(|kept| Explanation {
        cookie: kept.cookie,
        tracked: &kept.tracked,
        process: kept.process.as_deref(),
        verdict: Some(kept.verdict.clone()),
        has_ended: true,
        carried: kept.carried,
        tuned: tuned(kept.cookie),
        other: None,
    });
    let mut judged: Vec<_> = open.chain(ended).collect();
    judged.sort_by_key(|judged| (Reverse(judged.carried), judged.cookie));
    judged
}

/// Joins the connections with those of the other machine, `name`.
pub fn join<'a>(judged: &mut [Explanation<'a>], name: &'a str, report: &'a Report) {
    for judged in judged {
        let connection = &judged.tracked.last().connection;
        let sequence = connection.internals.as_ref().map(SequenceBase::of);
        let Some(remote) = report.find(connection.local, connection.remote, sequence) else {
            continue;
        };
        let window = judged.tracked.window();
        // Without data in the window, what it has carried so far.
        let so_far = || {
            let info = judged.tracked.last().info()?;
            Some(info.bytes_acked? >= info.bytes_received?)
        };
        let sends = window.as_ref().and_then(verdict::sends).or_else(so_far);
        let joint = judged
            .verdict
            .as_ref()
            .and_then(|here| Joint::of(here, sends.unwrap_or(true), remote));
        judged.other = Some(Other {
            name,
            remote,
            joint,
        });
    }
}

/// Returns a line of JSON for each connection, and one for each group of those that have ended.
///
/// # Errors
/// Those of serde_json.
pub fn json(judged: &[Explanation<'_>], ended: &Groups) -> serde_json::Result<String> {
    let mut text = String::new();
    for judged in judged {
        let verdict = judged.verdict.clone();
        let line = Line {
            record: Record::of(judged.cookie, judged.tracked, judged.process, verdict),
            has_ended: judged.has_ended,
            tuned: judged.tuned,
            both_ends: judged.other.and_then(|other| other.joint),
        };
        text.push_str(&serde_json::to_string(&line)?);
        text.push('\n');
    }
    text.push_str(&ended.json()?);
    Ok(text)
}

/// Reports how many connections each factor limits, explains the first `explained` of them, and sums
/// up those that have ended.
pub fn text(
    judged: &[Explanation<'_>],
    observation: &Observation,
    watched: Duration,
    explained: usize,
) -> String {
    let watched = watched.as_secs_f64();
    let ended = observation.groups();
    let mut text = match judged.len() {
        0 if ended.is_empty() => format!("no such connection in {watched:.1} s\n"),
        0 | 1 => String::new(),
        count => format!(
            "{count} connections in {watched:.1} s: {}\n\n",
            summary(judged)
        ),
    };
    for judged in judged.iter().take(explained) {
        text.push_str(&judged.explained());
        text.push('\n');
    }
    if !ended.is_empty() {
        text.push_str(&format!("ended in {watched:.1} s: {}\n", ended.count()));
        text.push_str(&ended.text(explained));
    }
    if !observation.sees_all_ends() {
        text.push_str(
            "connections that come and go between two scans are not seen: that needs root, and a kernel with BTF\n",
        );
    }
    text
}

/// Reports how many connections each factor limits, in descending order of frequency.
fn summary(judged: &[Explanation<'_>]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for Explanation { verdict, .. } in judged {
        let factor = verdict
            .as_ref()
            .map_or(Factor::Unclear, |verdict| verdict.factor);
        *counts.entry(factor.name()).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let words: Vec<_> = counts
        .iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    words.join(", ")
}

// === impl Explanation ===

impl Explanation<'_> {
    fn explained(&self) -> String {
        let connection = &self.tracked.last().connection;
        let who = match self.process {
            Some(process) => format!(" ({}, pid {})", process.name, process.pid),
            None => String::new(),
        };
        let ended = if self.has_ended { ", has ended" } else { "" };
        let mut text = format!(
            "{} -> {}{who}{ended}\n",
            connection.local, connection.remote
        );
        let Some(verdict) = &self.verdict else {
            let state = connection.state.name();
            text.push_str(&format!(
                "  was found only once, or is not open yet ({state})\n"
            ));
            return text;
        };
        let other = self.other.and_then(|other| Some((other, other.joint?)));
        let Some((other, joint)) = other else {
            text.push_str(&verdict_of_one_end(verdict));
            if let Some(other) = self.other {
                text.push_str(&format!("  {} has no verdict on it\n", other.name));
            }
            text.push_str(&self.tuned());
            return text;
        };
        let doubt = joint.confidence.doubt();
        text.push_str(&format!("  {}{doubt}\n", joint.factor.sentence()));
        let process = other.remote.process();
        let process = process.map_or(String::new(), |process| format!(" ({process})"));
        let behind = match other
            .remote
            .has_addresses(connection.local, connection.remote)
        {
            true => String::new(),
            false => format!(", as {} -> {}", other.remote.local, other.remote.remote),
        };
        text.push_str(&format!(
            "  here: {}{}\n",
            verdict.factor.name(),
            verdict.confidence.doubt()
        ));
        for evidence in verdict.evidence() {
            text.push_str(&format!("    {}\n", evidence.text));
        }
        text.push_str(&format!(
            "  at {}{process}{behind}: {}\n",
            other.name,
            other.remote.factor()
        ));
        for evidence in other.remote.evidence() {
            text.push_str(&format!("    {evidence}\n"));
        }
        match joint.shown_by {
            End::Here => {
                if let Some(remedy) = verdict.remedy().filter(|_| verdict.factor == joint.factor) {
                    text.push_str(&format!("  what helps: {remedy}\n"));
                }
            }
            End::There => {
                let remedy = other.remote.remedy();
                if let Some(remedy) = remedy.filter(|_| other.remote.names(joint.factor)) {
                    text.push_str(&format!("  what helps, at {}: {remedy}\n", other.name));
                }
            }
        }
        text.push_str(&self.tuned());
        text
    }

    fn tuned(&self) -> String {
        self.tuned
            .iter()
            .map(|sentence| format!("  {sentence}\n"))
            .collect()
    }
}

fn verdict_of_one_end(verdict: &Verdict) -> String {
    let doubt = verdict.confidence.doubt();
    let mut text = format!("  {}{doubt}\n", verdict.factor.sentence());
    for evidence in verdict.evidence() {
        text.push_str(&format!("    {}\n", evidence.text));
    }
    if let Some(remedy) = verdict.remedy() {
        text.push_str(&format!("  what helps: {remedy}\n"));
    }
    text
}
