//! Sets the metrics of routes, and writes each change to the journal first.

use std::collections::HashMap;

use super::error::RouteError;
use super::message::{Route, RouteKey};
use super::metrics::Metrics;
use super::table::{RouteOutcome, RouteTable};
use crate::journal::{Entry, Journal, Target, Value};

/// Sets the metrics of a route of the last list to `to`; `ours` are the metrics that this program
/// owns afterwards.
///
/// # Errors
/// [`RouteError`], also if the kernel refuses the change.
pub(crate) fn set(
    journal: &mut Journal,
    table: &mut RouteTable,
    route: &Route,
    to: Metrics,
    ours: Metrics,
) -> Result<RouteOutcome, RouteError> {
    // A route that will not be changed gets no line in the journal.
    if table.has_changed(&route.key)? {
        return Ok(RouteOutcome::ChangedMeanwhile);
    }
    let target = target(table.cookie(), route.key);
    let before = Value::Route(route.metrics.among(ours));
    let is_first = journal.entry(&target).is_none();
    journal.note(Entry::new(target.clone(), before, Value::Route(ours)))?;
    let outcome = table.set(route, to)?;
    // The route was not changed, so later changes belong to other programs.
    if is_first && outcome != RouteOutcome::Set {
        journal.undone(&target)?;
    }
    match outcome {
        RouteOutcome::Refused(error) => Err(RouteError::Replace {
            route: route.key,
            error,
        }),
        outcome => Ok(outcome),
    }
}

/// Returns the metrics that this program has set on the route.
pub(crate) fn made_of_route(journal: &Journal, cookie: u64, key: RouteKey) -> Vec<Metrics> {
    let entry = journal.entry(&target(cookie, key));
    entry.map(made).unwrap_or_default()
}

/// Counts the routes in the journal, by the cookie of their namespace.
pub(crate) fn count_by_namespace(journal: &Journal) -> HashMap<u64, usize> {
    let mut counts = HashMap::new();
    for entry in journal.entries() {
        if let Target::Route { netns, .. } = &entry.target {
            *counts.entry(*netns).or_default() += 1;
        }
    }
    counts
}

pub(super) fn target(cookie: u64, key: RouteKey) -> Target {
    Target::Route { netns: cookie, key }
}

/// Returns the metrics of the entry's last change and of the change before it.
pub(super) fn made(entry: &Entry) -> Vec<Metrics> {
    let values = [Some(&entry.after), entry.earlier.as_ref()];
    let metrics = |value: &Value| match value {
        Value::Route(metrics) => Some(*metrics),
        _ => None,
    };
    values.into_iter().flatten().filter_map(metrics).collect()
}
