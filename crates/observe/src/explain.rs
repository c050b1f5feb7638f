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
use crate::observation::{Observation, Transfer};
use crate::observer::Tracked;
use crate::owner::Process;
use crate::record::Record;
use crate::verdict::{Verdict, rank};
use crate::versioned::Versioned;

/// A connection with its verdict.
#[derive(Debug)]
pub struct Explanation<'a> {
    cookie: u64,
    tracked: &'a Tracked,
    process: Option<&'a Process>,
    verdict: Option<Verdict>,
    has_ended: bool,
    transfer: Transfer,
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
    /// This one.
    This {
        /// The cookie of the other end's socket.
        cookie: u64,
        /// The name of its network namespace.
        netns: &'a str,
    },
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
        transfer: Transfer::of(seen.tracked),
        tuned: tuned(seen.cookie),
        other: None,
    });
    let ended = observation.kept().iter().map(|kept| Explanation {
        cookie: kept.cookie,
        tracked: &kept.tracked,
        process: kept.process.as_deref(),
        verdict: Some(kept.verdict.clone()),
        has_ended: true,
        transfer: kept.transfer,
        tuned: tuned(kept.cookie),
        other: None,
    });
    let mut all: Vec<_> = open.chain(ended).collect();
    join_here(&mut all, observation);
    all.sort_by_key(|one| {
        (
            rank(one.verdict.as_ref(), one.transfer.carried()),
            one.cookie,
        )
    });
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
    let ended = observation.kept().iter().chain(observation.other_ends());
    let ended = ended.map(|kept| Candidate {
        cookie: kept.cookie,
        tracked: &kept.tracked,
        process: kept.process.as_deref(),
        verdict: Some(&kept.verdict),
    });
    let candidates = Candidates::of(open.chain(ended));
    for explanation in explanations {
        let Some(here) = explanation.verdict.as_ref() else {
            continue;
        };
        let Some(found) = candidates.other_end(explanation) else {
            continue;
        };
        let seen = || observer.verdict(&observer.get(found.cookie)?);
        let Some(there) = found.verdict.cloned().or_else(seen) else {
            continue;
        };
        let connection = &found.tracked.last().connection;
        let remote = Remote::of_this_machine(connection, found.process, &there);
        explanation.other = Some(Other {
            machine: Machine::This {
                cookie: found.cookie,
                netns: &found.tracked.netns,
            },
            joint: Joint::of(here, explanation.transfer.sends, &remote),
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
        is_related = true;
        if explanation.other.is_some() {
            // On this machine, which the report is of, too.
            continue;
        }
        let here = explanation.verdict.as_ref();
        let joint = here.and_then(|here| Joint::of(here, explanation.transfer.sends, remote));
        explanation.other = Some(Other {
            machine: Machine::Other(name),
            remote: Cow::Borrowed(remote),
            joint,
        });
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

/// Sockets of this machine that may be the other ends of connections.
struct Candidates<'a> {
    all: Vec<Candidate<'a>>,
    /// Indexes by this end and the peer.
    by_address: HashMap<(SocketAddr, SocketAddr), Vec<usize>>,
    /// Indexes by [`SequenceBase::received`].
    by_received: HashMap<u32, Vec<usize>>,
}

// === impl Candidates ===

impl<'a> Candidates<'a> {
    fn of(candidates: impl Iterator<Item = Candidate<'a>>) -> Self {
        let mut found = Self {
            all: candidates.collect(),
            by_address: HashMap::new(),
            by_received: HashMap::new(),
        };
        for (index, candidate) in found.all.iter().enumerate() {
            let connection = &candidate.tracked.last().connection;
            let ends = (canonical(connection.local), canonical(connection.remote));
            found.by_address.entry(ends).or_default().push(index);
            if let Some(sequence) = sequence_of(candidate.tracked) {
                let same = found.by_received.entry(sequence.received).or_default();
                same.push(index);
            }
        }
        found
    }

    /// Returns the other end of a connection: by its addresses, or else, where the machine translates
    /// them, by its sequence numbers alone.
    fn other_end(&self, explanation: &Explanation<'_>) -> Option<&Candidate<'a>> {
        let connection = &explanation.tracked.last().connection;
        let ends = (canonical(connection.remote), canonical(connection.local));
        let by_address = self.by_address.get(&ends).into_iter().flatten();
        let by_address = self.only(by_address, explanation);
        by_address.or_else(|| {
            let near = sequence_of(explanation.tracked)?.received_of_peer();
            let near = near.filter_map(|received| self.by_received.get(&received));
            self.only(near.flatten(), explanation)
        })
    }

    /// Returns the one that fits the connection. If two do, neither is certain.
    fn only<'i>(
        &self,
        indexes: impl Iterator<Item = &'i usize>,
        explanation: &Explanation<'_>,
    ) -> Option<&Candidate<'a>> {
        let candidates = indexes.filter_map(|index| self.all.get(*index));
        let mut fitting = candidates.filter(|candidate| candidate.is_other_end(explanation));
        fitting.next().filter(|_| fitting.next().is_none())
    }
}

// === impl Candidate ===

impl Candidate<'_> {
    /// Whether it is the other end of a connection with these addresses. Sequence numbers decide. A
    /// relay that dials from its client's address has two sockets with each other's addresses, and
    /// several namespaces may have the same ones: without the numbers only loopback is certain.
    fn is_other_end(&self, explanation: &Explanation<'_>) -> bool {
        let (here, there) = (explanation.tracked, self.tracked);
        let fits = match (sequence_of(here), sequence_of(there)) {
            (Some(here), Some(there)) => here.is_of_peer(there),
            _ => {
                let is_loopback = here
                    .last()
                    .connection
                    .remote
                    .ip()
                    .to_canonical()
                    .is_loopback();
                is_loopback && here.netns == there.netns
            }
        };
        fits && self.cookie != explanation.cookie
    }
}
