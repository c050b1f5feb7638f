//! The report of `taut why`, as text or JSON.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Serialize;

use crate::ended::Groups;
use crate::observation::Observation;
use crate::observer::Tracked;
use crate::owner::Process;
use crate::record::Record;
use crate::verdict::{Factor, Verdict};

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
    });
    let ended = observation.kept().iter().map(|kept| Explanation {
        cookie: kept.cookie,
        tracked: &kept.tracked,
        process: kept.process.as_deref(),
        verdict: Some(kept.verdict.clone()),
        has_ended: true,
        carried: kept.carried,
        tuned: tuned(kept.cookie),
    });
    let mut judged: Vec<_> = open.chain(ended).collect();
    judged.sort_by_key(|judged| (Reverse(judged.carried), judged.cookie));
    judged
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
        let doubt = verdict.confidence.doubt();
        text.push_str(&format!("  {}{doubt}\n", verdict.factor.sentence()));
        for evidence in verdict.evidence() {
            text.push_str(&format!("    {}\n", evidence.text));
        }
        if let Some(remedy) = verdict.remedy() {
            text.push_str(&format!("  what helps: {remedy}\n"));
        }
        for sentence in self.tuned {
            text.push_str(&format!("  {sentence}\n"));
        }
        text
    }
}
