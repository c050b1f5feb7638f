//! What killed processes of Taut have left on this machine, and its removal.
//!
//! Most of what a job changes ends with its process: programs are attached by descriptors. This is
//! the rest, which the next start of the job would remove, too. What belongs to a network namespace
//! is looked for in the caller's.

use serde::Serialize;
use taut_guest::load;
use taut_relay::{intercept, turbo::route_metrics};
use taut_snoop::records::Records;
use taut_snoop::tap;
use taut_sys::plural::counted;
use taut_tune::journal::{self, Journal};

use super::severity::Severity;
use crate::failure::Failure;
use crate::{guest, tune};

/// Something that a killed process has left, or that cannot be looked for.
#[derive(Debug, Serialize)]
pub(crate) struct Leftover {
    /// A constant identifier.
    pub(crate) id: &'static str,
    /// Whether something is left.
    pub(crate) state: State,
    /// What is left, or why it cannot be looked for.
    pub(crate) detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Left,
    Unknown,
}

/// A kind of leftover.
struct Kind {
    id: &'static str,
    /// Returns what is left, in words.
    find: fn() -> Result<Option<String>, String>,
    remove: fn() -> Result<(), String>,
}

/// The number of kinds that are looked for.
pub(crate) const LOOKED_FOR: usize = KINDS.len();

const KINDS: [Kind; 5] = [
    Kind {
        id: "relay-interception",
        find: interception,
        remove: || intercept::remove_abandoned().map_err(words),
    },
    Kind {
        id: "relay-routes",
        find: routes,
        remove: || route_metrics::remove_abandoned().map_err(words),
    },
    Kind {
        id: "tune",
        find: changes,
        remove: || tune::undo(journal::PATH.as_ref()).map_err(message),
    },
    Kind {
        id: "snoop",
        find: taps,
        remove: || tap::restore_abandoned(&Records::default()).map_err(words),
    },
    Kind {
        id: "guest",
        find: programs,
        remove: || guest::down().map_err(message),
    },
];

// === impl Leftover ===

impl Leftover {
    pub(crate) fn severity(&self) -> Severity {
        match self.state {
            State::Left => Severity::Slows,
            State::Unknown => Severity::Fine,
        }
    }
}

/// Looks for everything that killed processes may have left. Changes nothing.
pub(crate) fn find() -> Vec<Leftover> {
    let found = KINDS.iter().filter_map(|kind| {
        let (state, detail) = match (kind.find)() {
            Ok(left) => (State::Left, left?),
            Err(reason) => (State::Unknown, reason),
        };
        Some(Leftover {
            id: kind.id,
            state,
            detail,
        })
    });
    found.collect()
}

/// Removes what killed processes have left. Returns a sentence for each thing that was removed, and
/// for each that was not.
pub(crate) fn remove() -> (Vec<String>, Vec<String>) {
    let (mut removed, mut stays) = (Vec::new(), Vec::new());
    for Kind { id, find, remove } in KINDS {
        let left = match find() {
            Ok(None) => continue,
            Ok(Some(left)) => left,
            Err(reason) => {
                stays.push(format!("cannot look for leftovers ({id}): {reason}"));
                continue;
            }
        };
        // Some removals only log what the kernel refuses.
        let is_removed = remove().and_then(|()| match find()? {
            None => Ok(()),
            Some(_) => Err("the log says why".into()),
        });
        match is_removed {
            Ok(()) => removed.push(format!("removed ({id}): {left}")),
            Err(reason) => stays.push(format!("cannot remove ({id}): {left}: {reason}")),
        }
    }
    (removed, stays)
}

fn interception() -> Result<Option<String>, String> {
    let left = intercept::is_abandoned().map_err(words)?;
    Ok(left.then(|| {
        "policy rules, routes or nftables rules of a relay that intercepted connections".into()
    }))
}

fn routes() -> Result<Option<String>, String> {
    let left = route_metrics::is_abandoned().map_err(words)?;
    Ok(left.then(|| "routes of a relay with an initial window to other relays".into()))
}

fn changes() -> Result<Option<String>, String> {
    Ok(
        match Journal::abandoned(journal::PATH.as_ref()).map_err(words)? {
            0 => None,
            count => Some(format!("{} of taut tune", counted(count, "change"))),
        },
    )
}

fn taps() -> Result<Option<String>, String> {
    let taps = tap::abandoned(&Records::default()).map_err(words)?;
    Ok((!taps.is_empty()).then(|| {
        let taps = taps.join(", ");
        format!("the queueing discipline that taut snoop replaced on {taps}")
    }))
}

fn programs() -> Result<Option<String>, String> {
    let is_partial = load::is_partial().map_err(words)?;
    Ok(is_partial.then(|| "a part of the programs of taut guest".into()))
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn message(failure: Failure) -> String {
    match failure {
        Failure::Usage(message) | Failure::Run(message) => message,
    }
}
