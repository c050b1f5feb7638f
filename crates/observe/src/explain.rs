//! The report of `taut why`, as text or JSON.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Serialize;

use crate::filter::Filter;
use crate::observer::{Observed, Observer};
use crate::record::Record;
use crate::verdict::{Factor, Verdict};

/// A connection with its verdict.
#[derive(Debug)]
pub struct Explanation<'a> {
    seen: Observed<'a>,
    verdict: Option<Verdict>,
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
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tuned: &'a [String],
}

/// Explains the connections of the last scan that the filter matches, in descending order of
/// payload. `tuned`: the changes that `taut tune` made to them, in sentences by cookie.
pub fn explanations<'a>(
    observer: &'a Observer,
    filter: &'a Filter,
    tuned: &'a HashMap<u64, Vec<String>>,
) -> Vec<Explanation<'a>> {
    let judged = observer.connections(filter).map(|seen| Explanation {
        verdict: observer.verdict(&seen),
        carried: seen.tracked.window().map_or(0, |window| {
            window.more(|info| info.bytes_acked) + window.more(|info| info.bytes_received)
        }),
        tuned: tuned.get(&seen.cookie).map_or(&[], Vec::as_slice),
        seen,
    });
    let mut judged: Vec<_> = judged.collect();
    judged.sort_by_key(|judged| (Reverse(judged.carried), judged.seen.cookie));
    judged
}

/// Returns a line of JSON for each connection.
///
/// # Errors
/// Those of serde_json.
pub fn json(judged: &[Explanation<'_>]) -> serde_json::Result<String> {
    let mut text = String::new();
    for Explanation {
        seen,
        verdict,
        tuned,
        ..
    } in judged
    {
        let record = Record::of(seen.cookie, seen.tracked, seen.process, verdict.clone());
        text.push_str(&serde_json::to_string(&Line { record, tuned })?);
        text.push('\n');
    }
    Ok(text)
}

/// Reports how many connections each factor limits, and explains the first `explained` of them.
pub fn text(judged: &[Explanation<'_>], watched: Duration, explained: usize) -> String {
    let watched = watched.as_secs_f64();
    let mut text = match judged.len() {
        0 => return format!("no such connection in {watched:.1} s\n"),
        1 => String::new(),
        count => format!(
            "{count} connections in {watched:.1} s: {}\n\n",
            summary(judged)
        ),
    };
    for judged in judged.iter().take(explained) {
        text.push_str(&judged.explained());
        text.push('\n');
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
        let connection = &self.seen.tracked.last().connection;
        let who = match self.seen.process {
            Some(process) => format!(" ({}, pid {})", process.name, process.pid),
            None => String::new(),
        };
        let mut text = format!("{} -> {}{who}\n", connection.local, connection.remote);
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
