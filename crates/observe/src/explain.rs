//! The report of `taut why`, as text or JSON.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Serialize;

use crate::both_ends::{End, Joint, Remote, Report, SequenceBase};
use crate::ended::Groups;
use crate::filter::Filter;
use crate::listeners::Dropping;
use crate::observation::Observation;
use crate::observer::Tracked;
use crate::owner::Process;
use crate::record::Record;
use crate::verdict::{self, Factor, Verdict, rank};
use crate::versioned::Versioned;

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

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
struct Other<'a> {
    /// The name of the machine.
    name: &'a str,
    remote: &'a Remote,
    /// The verdict of both ends; `None` if one of them has none.
    joint: Option<Joint>,
}

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    record: Record<'a>,
    /// `true` for a connection that ended while it was observed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    has_ended: bool,
    /// Sentences about the changes of `taut tune`.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tuned: &'a [String],
    /// With `--with`: the verdict of both ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    both_ends: Option<Joint>,
}

/// Explains the connections of the last scan, and those that have ended and that at least two scans
/// have found: those with the most trouble first, and of these those that carry most. `tuned`: the
/// changes that `taut tune` made to them, in sentences by cookie.
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
    let mut all: Vec<_> = open.chain(ended).collect();
    all.sort_by_key(|one| (rank(one.verdict.as_ref(), one.carried), one.cookie));
    all
}

/// Joins each explanation with the connection's other end in the report of the machine `name`.
pub fn join<'a>(explanations: &mut [Explanation<'a>], name: &'a str, report: &'a Report) {
    for explanation in explanations {
        let connection = &explanation.tracked.last().connection;
        let sequence = connection.internals.as_ref().map(SequenceBase::of);
        let Some(remote) = report.find(connection.local, connection.remote, sequence) else {
            continue;
        };
        let here = explanation.verdict.as_ref();
        let joint = here.and_then(|here| Joint::of(here, explanation.sends(), remote));
        explanation.other = Some(Other {
            name,
            remote,
            joint,
        });
    }
}

/// A line of JSON about a socket that listens.
#[derive(Serialize)]
struct ListenerLine<'a> {
    /// The listener, and what it dropped.
    listener: &'a Dropping,
}

/// Returns a line of JSON for each connection, one for each group of those that have ended, and one
/// for each socket that dropped connection attempts.
///
/// # Errors
/// Those of serde_json.
pub fn json(
    explanations: &[Explanation<'_>],
    ended: &Groups,
    dropping: &[Dropping],
) -> serde_json::Result<String> {
    let mut text = String::new();
    for one in explanations {
        let line = Line {
            record: Record::of(one.cookie, one.tracked, one.process, one.verdict.clone()),
            has_ended: one.has_ended,
            tuned: one.tuned,
            both_ends: one.other.and_then(|other| other.joint),
        };
        text.push_str(&Versioned::new(line).line()?);
    }
    text.push_str(&ended.json()?);
    for listener in dropping {
        text.push_str(&Versioned::new(ListenerLine { listener }).line()?);
    }
    Ok(text)
}

/// Returns what to do where the filter matches no connection.
fn nothing(filter: &Filter, watched: f64) -> String {
    match filter.matches_all() {
        true => format!(
            "no connection in {watched:.1} s: run this while one is slow, or let `taut watch --to DIR` record each\n"
        ),
        false => {
            format!("no such connection in {watched:.1} s: `taut top` shows those that are open\n")
        }
    }
}

/// Reports how many connections each factor limits, explains the first `explained` of them, sums up
/// those that have ended, and names the sockets that dropped connection attempts.
pub fn text(
    explanations: &[Explanation<'_>],
    observation: &Observation,
    dropping: &[Dropping],
    watched: Duration,
    explained: usize,
) -> String {
    let watched = watched.as_secs_f64();
    let ended = observation.groups();
    let mut text = match explanations.len() {
        0 if ended.is_empty() => nothing(observation.filter(), watched),
        0 | 1 => String::new(),
        count => format!(
            "{count} connections in {watched:.1} s: {}\n\n",
            summary(explanations)
        ),
    };
    for explanation in explanations.iter().take(explained) {
        text.push_str(&explanation.text());
        text.push('\n');
    }
    if !ended.is_empty() {
        text.push_str(&format!("ended in {watched:.1} s: {}\n", ended.count()));
        text.push_str(&ended.text(explained));
    }
    for listener in dropping.iter().take(explained) {
        text.push_str(&listener.text());
    }
    if !observation.sees_all_ends() {
        text.push_str(
            "connections that open and close between two scans are not reported (root sees them, on a kernel with BTF)\n",
        );
    }
    text
}

/// Reports how many connections each factor limits, in descending order of frequency.
fn summary(explanations: &[Explanation<'_>]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for Explanation { verdict, .. } in explanations {
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
    /// Returns whether this end sends at least as much as it receives: in the window, or else in
    /// the connection's whole life.
    fn sends(&self) -> bool {
        let in_life = || {
            let info = self.tracked.last().info()?;
            Some(info.bytes_acked? >= info.bytes_received?)
        };
        let window = self.tracked.window();
        let in_window = window.as_ref().and_then(verdict::sends);
        in_window.or_else(in_life).unwrap_or(true)
    }

    fn text(&self) -> String {
        let connection = &self.tracked.last().connection;
        let process = match self.process {
            Some(process) => format!(" ({}, pid {})", process.name, process.pid),
            None => String::new(),
        };
        let ended = if self.has_ended { ", has ended" } else { "" };
        let mut text = format!(
            "{} -> {}{process}{ended}\n",
            connection.local, connection.remote
        );
        let joint = self.other.and_then(|other| Some((other, other.joint?)));
        match (&self.verdict, joint) {
            (None, _) => {
                let state = connection.state.name();
                text.push_str(&format!(
                    "  was found only once, or is not open yet ({state})\n"
                ));
            }
            (Some(verdict), Some((other, joint))) => {
                text.push_str(&self.joint_text(verdict, other, joint));
            }
            (Some(verdict), None) => {
                text.push_str(&verdict_text(verdict));
                if let Some(other) = self.other {
                    text.push_str(&format!(
                        "  {} has no verdict on this connection\n",
                        other.name
                    ));
                }
            }
        }
        for sentence in self.tuned {
            text.push_str(&format!("  {sentence}\n"));
        }
        text
    }

    /// Returns the verdict of both ends, with the factor and the evidence of each.
    fn joint_text(&self, verdict: &Verdict, other: Other<'_>, joint: Joint) -> String {
        let Other { name, remote, .. } = other;
        let doubt = joint.confidence.doubt();
        let mut text = format!("  {}{doubt}\n", joint.factor.sentence());
        let factor = verdict.factor.name();
        let doubt = verdict.confidence.doubt();
        text.push_str(&format!("  here: {factor}{doubt}\n"));
        for evidence in verdict.evidence() {
            text.push_str(&format!("    {}\n", evidence.text));
        }
        let connection = &self.tracked.last().connection;
        let process = remote.process();
        let process = process.map_or(String::new(), |process| format!(" ({process})"));
        let translated = match remote.has_addresses(connection.local, connection.remote) {
            true => String::new(),
            false => format!(", as {} -> {}", remote.local, remote.remote),
        };
        text.push_str(&format!(
            "  at {name}{process}{translated}: {}\n",
            remote.factor()
        ));
        for evidence in remote.evidence() {
            text.push_str(&format!("    {evidence}\n"));
        }
        match joint.shown_by {
            End::Here => {
                if let Some(remedy) = verdict.remedy().filter(|_| verdict.factor == joint.factor) {
                    text.push_str(&format!("  what helps: {remedy}\n"));
                }
                if verdict.factor == joint.factor {
                    text.push_str(&gain_text(verdict));
                }
            }
            End::There => {
                let remedy = remote.remedy().filter(|_| remote.names(joint.factor));
                if let Some(remedy) = remedy {
                    text.push_str(&format!("  what helps, at {name}: {remedy}\n"));
                }
            }
        }
        text
    }
}

/// Returns what the connection would carry without the factor of the verdict.
fn gain_text(verdict: &Verdict) -> String {
    let gain = verdict.gain.map(|gain| gain.sentence());
    gain.map_or(String::new(), |gain| format!("  {gain}\n"))
}

/// Returns the verdict of this end, with its evidence and the remedy.
fn verdict_text(verdict: &Verdict) -> String {
    let doubt = verdict.confidence.doubt();
    let mut text = format!("  {}{doubt}\n", verdict.factor.sentence());
    for evidence in verdict.evidence() {
        text.push_str(&format!("    {}\n", evidence.text));
    }
    if let Some(remedy) = verdict.remedy() {
        text.push_str(&format!("  what helps: {remedy}\n"));
    }
    text.push_str(&gain_text(verdict));
    text
}
