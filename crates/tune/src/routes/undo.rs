//! Undoes the changes of routes.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use taut_sys::Errno;
use taut_sys::netns;

use super::apply::made;
use super::error::RouteError;
use super::message::{Route, RouteKey};
use super::table::{RouteOutcome, RouteTable};
use crate::journal::{Entry, Target, Value};
use crate::namespaces::index::NamespaceIndex;
use crate::undo::UndoOutcome;

/// The maximum number of dumps for a list. Higher than in a scan, because no later scan follows.
const LIST_TRIES: usize = 50;
/// The maximum number of lists if routes are missing or change meanwhile.
const LISTS: usize = 5;
/// The maximum time for this program's own namespace.
const OWN_TIME: Duration = Duration::from_secs(20);
/// The maximum time for all other namespaces together.
const OTHERS_TIME: Duration = Duration::from_secs(40);

/// The result for each entry.
type Results = Vec<(Entry, Result<UndoOutcome, RouteError>)>;

/// Undoes all changes of routes, those of this program's own namespace first. Changes for which the
/// time runs out fail and stay in the journal.
pub(crate) fn undo(index: &NamespaceIndex, entries: Vec<Entry>) -> Results {
    let mut by_cookie: HashMap<u64, Vec<(RouteKey, Entry)>> = HashMap::new();
    for entry in entries {
        if let Target::Route { netns, key } = entry.target {
            by_cookie.entry(netns).or_default().push((key, entry));
        }
    }
    let own = netns::cookie().ok();
    let own = own.and_then(|own| by_cookie.remove_entry(&own));
    let mut undone = undo_in_turn(index, own.into_iter().collect(), OWN_TIME);
    let others = by_cookie.into_iter().collect();
    undone.extend(undo_in_turn(index, others, OTHERS_TIME));
    undone
}

/// Gives each namespace an equal part of the remaining time, and a second turn after all others if
/// that was too short. So a slow namespace delays no other.
fn undo_in_turn(
    index: &NamespaceIndex,
    mut waiting: Vec<(u64, Vec<(RouteKey, Entry)>)>,
    time: Duration,
) -> Results {
    let end = Instant::now() + time;
    let mut undone = Vec::new();
    for is_last in [false, true] {
        let mut remaining = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        for (cookie, entries) in std::mem::take(&mut waiting) {
            let now = Instant::now();
            let until = now + end.saturating_duration_since(now) / remaining.max(1);
            remaining = remaining.saturating_sub(1);
            let results = undo_in(index, cookie, &entries, &|| Instant::now() < until);
            let has_run_out = !is_last && Instant::now() >= until;
            let (again, done): (Vec<_>, Vec<_>) = { entries.into_iter().zip(results) }
                .partition(|(_, result)| has_run_out && result.is_err());
            undone.extend(done.into_iter().map(|((_, entry), result)| (entry, result)));
            if !again.is_empty() {
                let again = again.into_iter().map(|(entry, _)| entry);
                waiting.push((cookie, again.collect()));
            }
        }
    }
    undone
}

/// Undoes the changes of routes in the namespace with this cookie, and returns the result for each
/// entry.
fn undo_in(
    index: &NamespaceIndex,
    cookie: u64,
    entries: &[(RouteKey, Entry)],
    goes_on: &dyn Fn() -> bool,
) -> Vec<Result<UndoOutcome, RouteError>> {
    let all = |result: &dyn Fn() -> Result<UndoOutcome, RouteError>| {
        entries.iter().map(|_| result()).collect()
    };
    let unknown = || Err(RouteError::NamespaceUnknown { cookie });
    let namespace = match index.get(cookie) {
        Err(_) => return all(&unknown),
        Ok(None) => return all(&|| Ok(UndoOutcome::Gone)),
        Ok(Some(namespace)) => namespace,
    };
    let destinations = entries.iter().filter_map(|(key, _)| key.prefix());
    let mut table = match RouteTable::open(namespace, destinations.collect()) {
        // Another namespace has this inode, so the wanted namespace has ended.
        Ok(Some(table)) if table.cookie() != cookie => return all(&|| Ok(UndoOutcome::Gone)),
        Ok(Some(table)) => table,
        Ok(None) => return all(&unknown),
        Err(error) => {
            let routes = entries.iter().map(|(key, _)| not_undone(*key, &error));
            return routes.collect();
        }
    };
    let mut results: Vec<Option<Result<UndoOutcome, RouteError>>> = Vec::new();
    results.resize_with(entries.len(), || None);
    let mut missing = HashSet::new();
    for _ in 0..LISTS {
        let listed = match table.list(LIST_TRIES, goes_on) {
            Ok(listed) => listed,
            Err(error) => {
                let left = entries.iter().zip(&mut results);
                for ((key, _), result) in left.filter(|(_, result)| result.is_none()) {
                    *result = Some(not_undone(*key, &error));
                }
                break;
            }
        };
        let mut by_key: HashMap<RouteKey, Vec<Route>> = HashMap::new();
        for route in listed {
            by_key.entry(route.key).or_default().push(route);
        }
        for ((key, entry), result) in entries.iter().zip(&mut results) {
            if result.is_some() || !goes_on() {
                continue;
            }
            *result = match by_key.get(key) {
                // A list may miss a route, so the route counts as gone only if two lists lack it.
                None if missing.insert(*key) => None,
                None => Some(Ok(UndoOutcome::Gone)),
                Some(routes) => undo_route(&mut table, *key, routes, entry).transpose(),
            };
        }
        if results.iter().all(Option::is_some) {
            break;
        }
    }
    let results = entries.iter().zip(results);
    let busy = |route| RouteError::Replace {
        route,
        error: Errno::BUSY,
    };
    results
        .map(|((key, _), result)| result.unwrap_or_else(|| Err(busy(*key))))
        .collect()
}

fn not_undone(route: RouteKey, why: &RouteError) -> Result<UndoOutcome, RouteError> {
    Err(RouteError::NotUndone {
        route,
        why: why.to_string(),
    })
}

/// Restores the route with this key. If several routes have the key, restores the one that was
/// changed. Returns `None` if another program is changing the route.
fn undo_route(
    table: &mut RouteTable,
    key: RouteKey,
    routes: &[Route],
    entry: &Entry,
) -> Result<Option<UndoOutcome>, RouteError> {
    let (Value::Route(before), made) = (&entry.before, made(entry)) else {
        return Err(RouteError::Replace {
            route: key,
            error: Errno::INVAL,
        });
    };
    let restoration = |route: &Route| before.restore(route.metrics, &made);
    let undone = match routes.iter().any(|route| restoration(route).is_foreign) {
        true => UndoOutcome::Foreign,
        false => UndoOutcome::Restored,
    };
    let mut routes = routes.iter();
    let Some(route) = routes.find(|route| restoration(route).to != route.metrics) else {
        return Ok(Some(undone));
    };
    if let Some(obstacle) = route.obstacle() {
        return Err(RouteError::LeftAlone {
            route: key,
            obstacle,
        });
    }
    match table.set(route, restoration(route).to)? {
        RouteOutcome::Set => Ok(Some(undone)),
        RouteOutcome::Gone => Ok(Some(UndoOutcome::Gone)),
        RouteOutcome::ChangedMeanwhile => Ok(None),
        RouteOutcome::Refused(error) => Err(RouteError::Replace { route: key, error }),
    }
}

#[cfg(test)]
mod tests;
