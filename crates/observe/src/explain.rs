//! The report of `taut why`, as text or JSON.

mod text;

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;

use serde::Serialize;

pub use self::text::{Emphasis, text};
use crate::both_ends::{Joint, Remote, Report, SequenceBase, canonical};
use crate::ended::Groups;
use crate::listeners::Dropping;
use crate::observation::Observation;
use crate::observer::Tracked;
use crate::owner::Process;
use crate::record::Record;
use crate::verdict::{self, Verdict, rank};
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
#[derive(Debug)]
struct Other<'a> {
    machine: Machine<'a>,
    remote: Cow<'a, Remote>,
    /// The verdict of both ends; `None` if one of them has none.
    joint: Option<Joint>,
}

/// The machine of the other end.
#[derive(Clone, Copy, Debug)]
enum Machine<'a> {
    /// This one, on which the socket of the other end has this cookie.
    This(u64),
    /// Another, by name.
    Other(&'a str),
}

/// A socket of this machine that may be the other end of a connection.
struct Candidate<'a> {
    cookie: u64,
    tracked: &'a Tracked,
    process: Option<&'a Process>,
    /// `None` if it is still open.
    verdict: Option<&'a Verdict>,
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
    /// The verdict of both ends, if the other one is on this machine or in the report of `--with`.
    #[serde(skip_serializing_if = "Option::is_none")]
    both_ends: Option<Joint>,
}

/// Explains the connections of the last scan, and those that have ended and that at least two scans
/// have found: those with the most trouble first, and of these those that carry most. `tuned`: the
/// changes that `taut tune` made to them, in sentences by cookie. A connection whose other end is on
/// this machine, too, has the verdict of both.
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
    let filter = observation.filter();
    let kept = observation.kept().iter();
    let kept = kept.filter(|kept| {
        let process = kept.process.as_deref();
        observer.matches(filter, &kept.tracked, process)
    });
    let ended = kept.map(|kept| Explanation {
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
    join_here(&mut all, observation);
    all.sort_by_key(|one| (rank(one.verdict.as_ref(), one.carried), one.cookie));
    all
}

/// Joins each explanation with the connection's other end on this machine.
fn join_here<'a>(explanations: &mut [Explanation<'a>], observation: &'a Observation) {
    let observer = observation.observer();
    let open = observer.connections(observation.both_ends());
    let open = open.map(|seen| Candidate {
        cookie: seen.cookie,
        tracked: seen.tracked,
        process: seen.process,
        verdict: None,
    });
    let ended = observation.kept().iter().map(|kept| Candidate {
        cookie: kept.cookie,
        tracked: &kept.tracked,
        process: kept.process.as_deref(),
        verdict: Some(&kept.verdict),
    });
    let mut candidates: HashMap<_, Vec<Candidate<'_>>> = HashMap::new();
    for candidate in open.chain(ended) {
        let of_end = candidates.entry(candidate.key()).or_default();
        of_end.push(candidate);
    }
    for explanation in explanations {
        let connection = &explanation.tracked.last().connection;
        let key = (canonical(connection.remote), canonical(connection.local));
        let Some((here, others)) = explanation.verdict.as_ref().zip(candidates.get(&key)) else {
            continue;
        };
        let Some(found) = Candidate::of_connection(others, explanation) else {
            continue;
        };
        let seen = || observer.verdict(&observer.get(found.cookie)?);
        let Some(there) = found.verdict.cloned().or_else(seen) else {
            continue;
        };
        let connection = &found.tracked.last().connection;
        let remote = Remote::of_this_machine(connection, found.process, &there);
        explanation.other = Some(Other {
            machine: Machine::This(found.cookie),
            joint: Joint::of(here, explanation.sends(), &remote),
            remote: Cow::Owned(remote),
        });
    }
}

/// Joins each explanation with the connection's other end in the report of the machine `name`. Returns
/// whether the report has any of them.
pub fn join<'a>(explanations: &mut [Explanation<'a>], name: &'a str, report: &'a Report) -> bool {
    let mut is_related = false;
    for explanation in explanations {
        let connection = &explanation.tracked.last().connection;
        let sequence = sequence_of(explanation.tracked);
        let Some(remote) = report.find(connection.local, connection.remote, sequence) else {
            continue;
        };
        let here = explanation.verdict.as_ref();
        let joint = here.and_then(|here| Joint::of(here, explanation.sends(), remote));
        explanation.other = Some(Other {
            machine: Machine::Other(name),
            remote: Cow::Borrowed(remote),
            joint,
        });
        is_related = true;
    }
    is_related
}

fn sequence_of(tracked: &Tracked) -> Option<SequenceBase> {
    let internals = tracked.last().connection.internals.as_ref();
    internals.map(SequenceBase::of)
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
            both_ends: one.other.as_ref().and_then(|other| other.joint),
        };
        text.push_str(&Versioned::new(line).line()?);
    }
    text.push_str(&ended.json()?);
    for listener in dropping {
        text.push_str(&Versioned::new(ListenerLine { listener }).line()?);
    }
    Ok(text)
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
}

// === impl Candidate ===

impl Candidate<'_> {
    fn key(&self) -> (SocketAddr, SocketAddr) {
        let connection = &self.tracked.last().connection;
        (canonical(connection.local), canonical(connection.remote))
    }

    /// Returns the other end of a connection among sockets with its addresses. Sequence numbers
    /// decide: networks of several namespaces may have the same addresses.
    fn of_connection<'c>(
        candidates: &'c [Self],
        explanation: &Explanation<'_>,
    ) -> Option<&'c Self> {
        let here = sequence_of(explanation.tracked);
        let may_be = |candidate: &&Self| {
            let there = sequence_of(candidate.tracked);
            let fits = here.zip(there);
            let fits = fits.is_none_or(|(here, there)| here.is_of_peer(there));
            candidate.cookie != explanation.cookie && fits
        };
        let mut matching = candidates.iter().filter(may_be);
        // If two match, neither is certain.
        matching.next().filter(|_| matching.next().is_none())
    }
}
