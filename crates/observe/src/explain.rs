//! Verdicts in sentences, for `taut why`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Serialize;

use crate::filter::Filter;
use crate::observer::{Observer, Seen};
use crate::record::Record;
use crate::verdict::{Factor, Verdict};

/// A connection, and what limits it.
#[derive(Debug)]
pub struct Judged<'a> {
    seen: Seen<'a>,
    verdict: Option<Verdict>,
    /// Payload of the window, both ways.
    carried: u64,
    /// What somebody has changed of it, in sentences.
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

/// Those of the last look that are meant; those that carry most first. `tuned`: what somebody has changed of them, in sentences, by
/// cookie.
pub fn judged<'a>(
    observer: &'a Observer,
    filter: &'a Filter,
    tuned: &'a HashMap<u64, Vec<String>>,
) -> Vec<Judged<'a>> {
    let judged = observer.seen(filter).map(|seen| Judged {
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

/// A line of JSON for each.
///
/// # Errors
/// The library's.
pub fn json(judged: &[Judged<'_>]) -> serde_json::Result<String> {
    let mut text = String::new();
    for Judged {
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

/// How many are limited by what, and the first of them explained.
pub fn text(judged: &[Judged<'_>], watched: Duration, explained: usize) -> String {
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

/// How many are limited by what, the most frequent first.
fn summary(judged: &[Judged<'_>]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for Judged { verdict, .. } in judged {
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

// === impl Judged ===

impl Judged<'_> {
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
                "  was seen only once, or is not open yet ({state})\n"
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
