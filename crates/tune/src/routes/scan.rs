//! Visits the routes of all namespaces, and sets or advises the requested metrics.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use taut_observe::namespaces::{Namespace, in_words};
use taut_sys::netns::NetnsId;

use super::apply;
use super::error::RouteError;
use super::message::{Route, RouteKey};
use super::metrics::{Metrics, Step};
use super::selection::{Destinations, Selector};
use super::table::{LIST_TRIES, MAX_ROUTES, RouteOutcome, RouteTable};
use crate::journal::Journal;
use crate::pace::REPEAT_SCANS;
use crate::plan::Change;
use crate::report::{ChangeReport, Outcome};

/// The maximum number of routes in the journal for all namespaces except the first, which has its
/// own room. So containers cannot use up the journal.
const MAX_ROUTES_OF_OTHERS: usize = 16 * MAX_ROUTES;
/// The number of scans after which a namespace is visited again if its routes could not be listed,
/// or could not all be set.
const RETRY_SCANS: u64 = 5;
/// The maximum time for the first namespace, which is this program's own or the requested one.
const FIRST_TIME: Duration = Duration::from_secs(20);
/// The maximum time for another namespace.
const OTHER_TIME: Duration = Duration::from_secs(1);
/// The maximum time for all other namespaces together.
const OTHERS_TIME: Duration = Duration::from_secs(5);
/// The maximum number of routes of one namespace to report as left alone.
const MAX_REPORTED: usize = 1000;
/// The maximum number of such reports for all namespaces except the first.
const MAX_REPORTED_OF_OTHERS: usize = 100 * MAX_REPORTED;

/// Sets or advises the initial windows on the selected routes of all namespaces.
#[derive(Debug)]
pub struct RouteTuner {
    selectors: Vec<Selector>,
    requested: Metrics,
    destinations: Destinations,
    namespaces: HashMap<NetnsId, NamespaceState>,
    /// Whether each selector has matched a route.
    matched: Vec<bool>,
    /// Whether the routes of all namespaces were listed.
    is_whole: bool,
    /// Whether selectors without a route were reported.
    has_reported_unmatched: bool,
}

/// The remembered state of a namespace.
#[derive(Debug)]
struct NamespaceState {
    /// The cookie, which the kernel never reuses, unlike the inode.
    cookie: u64,
    /// The number of the scan that visits it next.
    due: u64,
    /// Whether all of its routes were listed once.
    is_listed: bool,
    /// Routes that were reported as left alone, with the reasons.
    reported: HashSet<(RouteKey, String)>,
    /// Problems that were reported.
    problems: HashSet<Problem>,
}

/// A problem of a namespace that is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Problem {
    /// Its routes could not be listed.
    Failed,
    /// The journal has no room for all changes.
    JournalFull,
    /// Some of the routes that are left alone are not reported.
    Unreported,
}

/// The result of a scan.
#[derive(Debug, Default)]
pub(crate) struct RouteScan {
    /// Changes of routes, made or advised.
    pub(crate) reports: Vec<ChangeReport>,
    /// Sentences about problems of namespaces.
    pub(crate) problems: Vec<String>,
}

/// A visit of a namespace.
struct Visit<'a> {
    namespace: &'a Namespace,
    is_first: bool,
    goes_on: &'a dyn Fn() -> bool,
}

/// The number of routes in the journal, by namespace and in total; `None` before counting.
#[derive(Debug, Default)]
struct JournalRoom(Option<(HashMap<u64, usize>, usize)>);

/// The result of handling a route that does not already have the requested metrics.
enum Handled {
    Reported(Outcome),
    /// The route is left alone, for this reason.
    LeftAlone(String),
    /// Another program is changing the route.
    ChangedMeanwhile,
}

// === impl RouteTuner ===

impl RouteTuner {
    /// Requests these metrics for the selected routes; without a selector, for all default routes.
    pub fn new(mut selectors: Vec<Selector>, requested: Metrics) -> Self {
        if selectors.is_empty() {
            selectors.push(Selector::defaults());
        }
        let destinations = selectors.iter().flat_map(Selector::destinations);
        Self {
            matched: vec![false; selectors.len()],
            destinations: destinations.copied().collect(),
            selectors,
            requested,
            namespaces: HashMap::new(),
            is_whole: false,
            has_reported_unmatched: false,
        }
    }

    /// Visits namespaces that are new or due, because a route that was replaced since has lost the
    /// metrics.
    ///
    /// The first namespace is this program's own, or the requested one. A namespace without an
    /// entry in `cookies` has ended, or cannot be entered. `ends` returns whether to stop before
    /// the scan is complete.
    pub(crate) fn scan(
        &mut self,
        number: u64,
        namespaces: &[Namespace],
        cookies: &HashMap<NetnsId, u64>,
        mut journal: Option<&mut Journal>,
        ends: &dyn Fn() -> bool,
    ) -> RouteScan {
        let there: HashSet<NetnsId> = namespaces.iter().map(|namespace| namespace.id).collect();
        self.namespaces.retain(|id, _| there.contains(id));
        let mut scan = RouteScan::default();
        let mut room = JournalRoom::default();
        let mut end_of_others = None;
        // After the first namespace, the one that has waited longest comes next, so a slow
        // namespace cannot delay another forever.
        let mut order: Vec<(usize, &Namespace)> = namespaces.iter().enumerate().collect();
        order.sort_by_key(|(at, namespace)| {
            let state = self.namespaces.get(&namespace.id);
            (*at != 0, state.map_or(number, |state| state.due))
        });
        for (at, namespace) in order {
            let Some(&cookie) = cookies.get(&namespace.id) else {
                continue;
            };
            let state = self.namespaces.remove(&namespace.id);
            let mut state = state
                .filter(|state| state.cookie == cookie)
                .unwrap_or_else(|| NamespaceState::new(cookie, number));
            let is_first = at == 0;
            let now = Instant::now();
            let end = match is_first {
                true => now + FIRST_TIME,
                false => (now + OTHER_TIME).min(*end_of_others.get_or_insert(now + OTHERS_TIME)),
            };
            let goes_on = || !ends() && Instant::now() < end;
            // If there is no time for a namespace now, it stays due.
            if number >= state.due && goes_on() {
                let visit = Visit {
                    namespace,
                    is_first,
                    goes_on: &goes_on,
                };
                let visited = self.visit(
                    &visit,
                    &mut state,
                    &mut room,
                    journal.as_deref_mut(),
                    &mut scan,
                );
                state.is_listed |= visited.is_ok();
                let is_done = matches!(visited, Ok(true));
                state.due = number + if is_done { REPEAT_SCANS } else { RETRY_SCANS };
                if let Err(error) = visited
                    && !ends()
                {
                    let sentence = || format!("{error} (will be tried again)");
                    state.report_once(Problem::Failed, &mut scan, sentence);
                }
            }
            self.namespaces.insert(namespace.id, state);
        }
        let is_listed = |id| self.namespaces.get(id).is_none_or(|state| state.is_listed);
        self.is_whole = !self.namespaces.is_empty() && there.iter().all(is_listed);
        scan
    }

    /// Returns the selectors that matched no route when all namespaces were visited for the first
    /// time. Returns them only once.
    pub(crate) fn unmatched(&mut self) -> Vec<String> {
        if !self.is_whole || std::mem::replace(&mut self.has_reported_unmatched, true) {
            return Vec::new();
        }
        let selectors = self.selectors.iter().zip(&self.matched);
        selectors
            .filter(|(_, matched)| !**matched)
            .map(|(selector, _)| selector.to_string())
            .collect()
    }

    /// Visits a namespace. Returns `false` if the visit is incomplete.
    fn visit(
        &mut self,
        visit: &Visit<'_>,
        state: &mut NamespaceState,
        room: &mut JournalRoom,
        mut journal: Option<&mut Journal>,
        scan: &mut RouteScan,
    ) -> Result<bool, RouteError> {
        let Some(mut table) = RouteTable::open(visit.namespace, self.destinations.clone())? else {
            return Ok(true);
        };
        // Another namespace has taken the inode: the next scan visits it.
        if table.cookie() != state.cookie {
            return Ok(true);
        }
        for _ in 0..LIST_TRIES {
            let routes = table.list(LIST_TRIES, visit.goes_on)?;
            for (selector, matched) in self.selectors.iter().zip(&mut self.matched) {
                *matched |= routes.iter().any(|route| selector.selects(&route.key));
            }
            let mut has_changed = false;
            for route in &routes {
                if !(visit.goes_on)() {
                    return Ok(false);
                }
                let is_first_time = journal.as_deref().is_some_and(|journal| {
                    apply::made_of_route(journal, table.cookie(), route.key).is_empty()
                });
                if is_first_time
                    && self.would_set(route)
                    && let Some(journal) = journal.as_deref()
                    && !room.has_room(visit.is_first, journal, state.cookie)
                {
                    state.report_once(Problem::JournalFull, scan, || {
                        format!(
                            "routes of {}: the journal is full ({MAX_ROUTES} routes of one namespace, {MAX_ROUTES_OF_OTHERS} of all): \
                             the other routes are left as they are",
                            in_words(&visit.namespace.name)
                        )
                    });
                    continue;
                }
                let (change, outcome) = match self.handle(&mut table, route, journal.as_deref_mut())
                {
                    None => continue,
                    Some((_, Handled::ChangedMeanwhile)) => {
                        has_changed = true;
                        continue;
                    }
                    Some((change, Handled::Reported(outcome))) => (change, outcome),
                    Some((change, Handled::LeftAlone(reason))) => {
                        match self.is_unreported(visit, state, route.key, &reason, scan) {
                            true => (change, Outcome::Failed(reason)),
                            false => continue,
                        }
                    }
                };
                if is_first_time && outcome == Outcome::Applied {
                    room.take(state.cookie);
                }
                let netns = visit.namespace.name.to_string();
                let report = ChangeReport::new(&change, None, netns, outcome);
                scan.reports.push(report);
            }
            if !has_changed {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a route that this program has not changed yet would be changed.
    fn would_set(&self, route: &Route) -> bool {
        let step = self.requested.step(route.metrics, &[]);
        matches!(step, Step::Set { .. }) && route.obstacle().is_none()
    }

    /// Whether to report that the route is left alone for this reason: it was not reported yet, and
    /// the limit allows it.
    fn is_unreported(
        &self,
        visit: &Visit<'_>,
        state: &mut NamespaceState,
        key: RouteKey,
        reason: &str,
        scan: &mut RouteScan,
    ) -> bool {
        let of_others = || -> usize {
            let states = self.namespaces.values();
            states.map(|state| state.reported.len()).sum()
        };
        let report = (key, reason.to_owned());
        if state.reported.contains(&report) {
            return false;
        }
        if state.reported.len() >= MAX_REPORTED
            || !visit.is_first && of_others() >= MAX_REPORTED_OF_OTHERS
        {
            state.report_once(Problem::Unreported, scan, || {
                format!(
                    "routes of {}: more are left as they are than are reported",
                    in_words(&visit.namespace.name)
                )
            });
            return false;
        }
        state.reported.insert(report)
    }

    /// Sets a route's metrics, or decides not to; `None` if the route already has them.
    fn handle(
        &self,
        table: &mut RouteTable,
        route: &Route,
        journal: Option<&mut Journal>,
    ) -> Option<(Change, Handled)> {
        let change = |to| Change::Route {
            key: route.key,
            from: route.metrics,
            to,
        };
        let made = journal
            .as_deref()
            .map(|journal| apply::made_of_route(journal, table.cookie(), route.key));
        let reason = match (
            self.requested
                .step(route.metrics, &made.unwrap_or_default()),
            route.obstacle(),
        ) {
            (Step::Keep, _) => return None,
            (Step::Foreign, _) => format!(
                "it has {} already, which another program or an administrator has set",
                route.metrics.among(self.requested)
            ),
            (_, Some(obstacle)) => format!("it is left as it is: {obstacle}"),
            (Step::Set { to, ours }, None) => {
                let set = journal.map(|journal| apply::set(journal, table, route, to, ours));
                let outcome = match set {
                    None => Outcome::Advised,
                    Some(Ok(RouteOutcome::Set)) => Outcome::Applied,
                    Some(Ok(RouteOutcome::Gone)) => Outcome::Gone,
                    Some(Ok(RouteOutcome::ChangedMeanwhile)) => {
                        return Some((change(to), Handled::ChangedMeanwhile));
                    }
                    Some(Ok(RouteOutcome::Refused(error))) => Outcome::Failed(error.to_string()),
                    Some(Err(error)) => Outcome::Failed(error.to_string()),
                };
                return Some((change(to), Handled::Reported(outcome)));
            }
        };
        Some((change(self.requested), Handled::LeftAlone(reason)))
    }
}

// === impl NamespaceState ===

impl NamespaceState {
    fn new(cookie: u64, due: u64) -> Self {
        Self {
            cookie,
            due,
            is_listed: false,
            reported: HashSet::new(),
            problems: HashSet::new(),
        }
    }

    fn report_once(
        &mut self,
        problem: Problem,
        scan: &mut RouteScan,
        sentence: impl FnOnce() -> String,
    ) {
        if self.problems.insert(problem) {
            scan.problems.push(sentence());
        }
    }
}

// === impl JournalRoom ===

impl JournalRoom {
    /// Whether the journal has room for another route of this namespace.
    fn has_room(&mut self, is_first: bool, journal: &Journal, cookie: u64) -> bool {
        let (counts, total) = self.0.get_or_insert_with(|| {
            let counts = apply::count_by_namespace(journal);
            let total = counts.values().sum();
            (counts, total)
        });
        let of_namespace = counts.get(&cookie).copied().unwrap_or(0);
        of_namespace < MAX_ROUTES && (is_first || *total < MAX_ROUTES_OF_OTHERS)
    }

    /// Counts another route of this namespace.
    fn take(&mut self, cookie: u64) {
        if let Some((counts, total)) = &mut self.0 {
            *counts.entry(cookie).or_default() += 1;
            *total += 1;
        }
    }
}

#[cfg(test)]
mod tests;
