//! A namespace's routes: their two metrics are set, and set back.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use taut_observe::namespaces::Namespace;
use taut_sys::Errno;
use taut_sys::netns;
use taut_sys::route::{Family, Routes};

use crate::actuate::undo::{Spaces, Undo};
use crate::actuate::{ActuateError, Actuators};
use crate::journal::{Entry, Thing, Value};
use crate::routes::message::{Name, Route, choose};
use crate::routes::metrics::Metrics;
use crate::routes::selection::Destinations;

/// Routes of one namespace that are set; where there are more all are left as they are.
pub(crate) const ROUTES: usize = 4096;
/// Of all namespaces together, but the first one, which has room of its own: strangers' leave room in the journal for all else.
pub(crate) const ROUTES_OF_ALL: usize = 16 * ROUTES;

/// How often a list is begun anew in which routes could be missing, as others came or went meanwhile.
pub(crate) const TRIES: usize = 3;
/// The same at the end, when there is no later.
const TRIES_AT_THE_END: usize = 50;
/// How often routes are listed at the end: one that is changed meanwhile, or is not there, is looked for again.
const LISTS_AT_THE_END: usize = 5;
/// What undoing takes at most in this program's own namespace, and in all others together.
const UNDO_OWN: Duration = Duration::from_secs(20);
const UNDO_OTHERS: Duration = Duration::from_secs(40);

/// A namespace, whose routes can be listed and replaced as long as this lives.
#[derive(Debug)]
pub(crate) struct Space {
    cookie: u64,
    netns: String,
    routes: Routes,
    /// Those that are listed and heard of.
    destinations: Destinations,
    /// Of them, those that somebody else has changed since they were listed.
    changed: HashSet<Name>,
    /// More were than could be heard of.
    is_deaf: bool,
}

/// What came of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    Set,
    Gone,
    /// Somebody else changes it just now: his change stays, and it is to be looked at again.
    Meanwhile,
    /// The kernel does not take it, and it is as it was.
    Refused(Errno),
}

/// What was heard of since the last time.
#[derive(Debug, Default)]
struct Since {
    /// What others had made of the route that was asked for before it was replaced here.
    theirs: Option<Route>,
    /// What came of replacing it.
    own: Option<Route>,
    /// A list that was made meanwhile may not have all.
    misses: bool,
}

// === impl Space ===

impl Space {
    /// With these destinations. `None`: it is gone.
    pub(crate) fn open(
        namespace: &Namespace,
        destinations: Destinations,
    ) -> Result<Option<Self>, ActuateError> {
        let open = || -> Result<_, Errno> {
            let cookie = netns::cookie();
            let cookie = cookie.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
            Ok((cookie, Routes::open()?))
        };
        let netns = namespace.name.to_string();
        match namespace.run(open)? {
            None => Ok(None),
            Some(Ok((cookie, routes))) => Ok(Some(Self {
                cookie,
                netns,
                routes,
                destinations,
                changed: HashSet::new(),
                is_deaf: false,
            })),
            Some(Err(error)) => Err(ActuateError::Routes { netns, error }),
        }
    }

    /// The kernel's name of it, which does not come again.
    pub(crate) fn cookie(&self) -> u64 {
        self.cookie
    }

    fn failed(&self, error: Errno) -> ActuateError {
        ActuateError::Routes {
            netns: self.netns.clone(),
            error,
        }
    }

    /// Its routes that lead somewhere, all of them.
    ///
    /// # Errors
    /// [`ActuateError::Unsteady`]: others came and went in each of so many `tries`, so that some could be missing, which could be taken for gone, or for
    /// the only ones of their names.
    pub(crate) fn list(
        &mut self,
        tries: usize,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Vec<Route>, ActuateError> {
        for _ in 0..tries {
            // What has changed before that is in the list.
            self.hear(None)?;
            self.changed.clear();
            self.is_deaf = false;
            let mut found = Vec::new();
            let mut is_whole = true;
            let [has_v4, has_v6] = self.destinations.families();
            for (family, has_any) in [(Family::V4, has_v4), (Family::V6, has_v6)] {
                if !has_any {
                    continue;
                }
                let destinations = &self.destinations;
                let listed = self.routes.list(family, goes_on, |message| {
                    if found.len() <= ROUTES {
                        let route = Route::parse(message);
                        found.extend(route.filter(|route| destinations.takes(&route.name)));
                    }
                });
                is_whole &= listed.map_err(|error| self.failed(error))?;
            }
            if found.len() > ROUTES {
                return Err(ActuateError::TooMany {
                    netns: self.netns.clone(),
                });
            }
            let misses = self.hear(None)?.misses;
            if is_whole && !misses && !self.is_deaf {
                return Ok(choose(found));
            }
        }
        Err(ActuateError::Unsteady {
            netns: self.netns.clone(),
        })
    }

    /// What has been changed; of routes themselves only those of one name.
    fn hear(&mut self, name: Option<Name>) -> Result<Since, ActuateError> {
        let mut since = Since::default();
        let (changed, destinations) = (&mut self.changed, &self.destinations);
        let heard = self.routes.changes(|heard| {
            since.misses |= !heard.is_own && destinations.miss(heard.route);
            let Some(route) = Route::parse(heard.route) else {
                return;
            };
            // Of others nothing is kept.
            if !destinations.takes(&route.name) {
                return;
            }
            let is_it = name == Some(route.name);
            match heard.is_own {
                true if is_it => since.own = Some(route),
                true => {}
                false => {
                    changed.insert(route.name);
                    if is_it && since.own.is_none() && !heard.is_gone {
                        since.theirs = Some(route);
                    }
                }
            }
        });
        self.is_deaf |= !heard.map_err(|error| self.failed(error))?;
        Ok(since)
    }

    /// Whether somebody else may have changed it since it was listed.
    fn has_changed(&mut self, name: &Name) -> Result<bool, ActuateError> {
        self.hear(None)?;
        Ok(self.is_deaf || self.changed.contains(name))
    }

    /// Sets these metrics of a route that was listed just now, if nobody else has changed it since.
    fn set(&mut self, route: &Route, to: Metrics) -> Result<Made, ActuateError> {
        match self.has_changed(&route.name)? {
            true => Ok(Made::Meanwhile),
            false => self.replace(route, to),
        }
    }

    /// Who changes it before the kernel has come to this has his route back.
    fn replace(&mut self, route: &Route, to: Metrics) -> Result<Made, ActuateError> {
        let name = route.name;
        match self.routes.replace(&route.with(to)) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::SRCH) => return Ok(Made::Gone),
            // Its answer was not had, which is not to say that it was no.
            Err(error @ (Errno::AGAIN | Errno::NOBUFS | Errno::MSGSIZE | Errno::BADMSG)) => {
                return Err(ActuateError::Route { route: name, error });
            }
            Err(error) => return Ok(Made::Refused(error)),
        }
        let Since { theirs, own, .. } = self.hear(Some(name))?;
        let Some(theirs) = theirs else {
            return match self.is_deaf || own.is_some_and(|own| own.metrics == to) {
                true => Ok(Made::Set),
                // It says yes, and has one like it that is another.
                false => Err(ActuateError::NotTaken { route: name }),
            };
        };
        let not_back = |why: String| ActuateError::NotBack { route: name, why };
        match (
            self.routes.replace(&theirs.with(theirs.metrics)),
            theirs.obstacle(),
        ) {
            (Ok(()), None) => Ok(Made::Meanwhile),
            (Ok(()), Some(obstacle)) => Err(not_back(obstacle.to_string())),
            (Err(error), _) => Err(not_back(error.to_string())),
        }
    }
}

fn thing(cookie: u64, name: Name) -> Thing {
    Thing::Route {
        netns: cookie,
        name,
    }
}

/// What a thing was made, the last time and the one before it.
fn made(entry: &Entry) -> Vec<Metrics> {
    let values = [Some(&entry.after), entry.earlier.as_ref()];
    let metrics = |value: &Value| match value {
        Value::Route(metrics) => Some(*metrics),
        _ => None,
    };
    values.into_iter().flatten().filter_map(metrics).collect()
}

// === impl Actuators ===

impl Actuators {
    /// What this program has made this route's metrics.
    pub(crate) fn made_of_route(&self, space: &Space, name: Name) -> Vec<Metrics> {
        let entry = self.journal.entry(&thing(space.cookie, name));
        entry.map(made).unwrap_or_default()
    }

    /// How many routes of each namespace, by its cookie, the journal has.
    pub(crate) fn routes(&self) -> HashMap<u64, usize> {
        let mut counts = HashMap::new();
        for entry in self.journal.entries() {
            if let Thing::Route { netns, .. } = &entry.thing {
                *counts.entry(*netns).or_default() += 1;
            }
        }
        counts
    }

    /// Sets these metrics of a route that was listed just now; of them `ours` are Taut's then.
    pub(crate) fn route(
        &mut self,
        space: &mut Space,
        route: &Route,
        to: Metrics,
        ours: Metrics,
    ) -> Result<Made, ActuateError> {
        // The journal says nothing of what is not tried.
        if space.has_changed(&route.name)? {
            return Ok(Made::Meanwhile);
        }
        let thing = thing(space.cookie, route.name);
        let before = Value::Route(route.metrics.among(ours));
        let is_first = self.journal.entry(&thing).is_none();
        self.note(thing.clone(), before, Value::Route(ours))?;
        let made = space.set(route, to)?;
        // What somebody makes it now is his, whatever it is, and so is what the kernel has not made.
        if is_first && made != Made::Set {
            self.journal.undone(&thing).map_err(ActuateError::Journal)?;
        }
        match made {
            Made::Refused(error) => Err(ActuateError::Route {
                route: route.name,
                error,
            }),
            made => Ok(made),
        }
    }
}

/// Undoes what was done to routes, this program's own namespace first. What there is no time for is for another time.
pub(crate) fn undo_routes(
    spaces: &Spaces,
    entries: Vec<Entry>,
) -> Vec<(Entry, Result<Undo, ActuateError>)> {
    let mut by_cookie: HashMap<u64, Vec<(Name, Entry)>> = HashMap::new();
    for entry in entries {
        if let Thing::Route { netns, name } = entry.thing {
            by_cookie.entry(netns).or_default().push((name, entry));
        }
    }
    let own = netns::cookie().ok();
    let own = own.and_then(|own| by_cookie.remove_entry(&own));
    let mut undone = undo_in_turn(spaces, own.into_iter().collect(), UNDO_OWN);
    let others = by_cookie.into_iter().collect();
    undone.extend(undo_in_turn(spaces, others, UNDO_OTHERS));
    undone
}

/// The same of these namespaces. Each has an even part of what is left of the time, and what was too little for is tried again when all had their turn: a slow one keeps
/// no other waiting.
fn undo_in_turn(
    spaces: &Spaces,
    mut waiting: Vec<(u64, Vec<(Name, Entry)>)>,
    time: Duration,
) -> Vec<(Entry, Result<Undo, ActuateError>)> {
    let end = Instant::now() + time;
    let mut undone = Vec::new();
    for is_last in [false, true] {
        let mut remain = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        for (cookie, entries) in std::mem::take(&mut waiting) {
            let now = Instant::now();
            let until = now + end.saturating_duration_since(now) / remain.max(1);
            remain = remain.saturating_sub(1);
            let results = undo_in(spaces, cookie, &entries, &|| Instant::now() < until);
            let is_again = !is_last && Instant::now() >= until;
            let (again, done): (Vec<_>, Vec<_>) = { entries.into_iter().zip(results) }
                .partition(|(_, result)| is_again && result.is_err());
            undone.extend(done.into_iter().map(|((_, entry), result)| (entry, result)));
            if !again.is_empty() {
                let again = again.into_iter().map(|(entry, _)| entry);
                waiting.push((cookie, again.collect()));
            }
        }
    }
    undone
}

/// Undoes what was done to routes of the namespace with this cookie: what came of each.
fn undo_in(
    spaces: &Spaces,
    cookie: u64,
    entries: &[(Name, Entry)],
    goes_on: &dyn Fn() -> bool,
) -> Vec<Result<Undo, ActuateError>> {
    let all =
        |why: &dyn Fn() -> Result<Undo, ActuateError>| entries.iter().map(|_| why()).collect();
    let namespace = match spaces.get(cookie) {
        Err(_) => return all(&|| Err(ActuateError::Elsewhere { cookie })),
        Ok(None) => return all(&|| Ok(Undo::Gone)),
        Ok(Some(namespace)) => namespace,
    };
    let destinations = entries.iter().filter_map(|(name, _)| name.prefix());
    let mut space = match Space::open(namespace, destinations.collect()) {
        // Another has its inode, so that it is no more.
        Ok(Some(space)) if space.cookie != cookie => return all(&|| Ok(Undo::Gone)),
        Ok(Some(space)) => space,
        Ok(None) => return all(&|| Err(ActuateError::Elsewhere { cookie })),
        Err(error) => {
            let routes = entries.iter().map(|(name, _)| not_undone(*name, &error));
            return routes.collect();
        }
    };
    let mut results: Vec<Option<Result<Undo, ActuateError>>> = Vec::new();
    results.resize_with(entries.len(), || None);
    // A list has missed it.
    let mut missed = HashSet::new();
    for _ in 0..LISTS_AT_THE_END {
        let listed = match space.list(TRIES_AT_THE_END, goes_on) {
            Ok(listed) => listed,
            Err(error) => {
                let left = entries.iter().zip(&mut results);
                for ((name, _), result) in left.filter(|(_, result)| result.is_none()) {
                    *result = Some(not_undone(*name, &error));
                }
                break;
            }
        };
        let mut by_name: HashMap<Name, Vec<Route>> = HashMap::new();
        for route in listed {
            by_name.entry(route.name).or_default().push(route);
        }
        for ((name, entry), result) in entries.iter().zip(&mut results) {
            if result.is_some() || !goes_on() {
                continue;
            }
            *result = match by_name.get(name) {
                None if missed.insert(*name) => None,
                None => Some(Ok(Undo::Gone)),
                Some(routes) => undo_route(&mut space, *name, routes, entry).transpose(),
            };
        }
        if results.iter().all(Option::is_some) {
            break;
        }
    }
    let results = entries.iter().zip(results);
    let busy = |name| ActuateError::Route {
        route: name,
        error: Errno::BUSY,
    };
    results
        .map(|((name, _), result)| result.unwrap_or_else(|| Err(busy(*name))))
        .collect()
}

fn not_undone(route: Name, why: &ActuateError) -> Result<Undo, ActuateError> {
    Err(ActuateError::NotUndone {
        route,
        why: why.to_string(),
    })
}

/// Undoes what was done to the route that has this name, or to one of those that have. `None`: somebody else changes it just now.
fn undo_route(
    space: &mut Space,
    name: Name,
    routes: &[Route],
    entry: &Entry,
) -> Result<Option<Undo>, ActuateError> {
    let (Value::Route(before), made) = (&entry.before, made(entry)) else {
        return Err(ActuateError::Route {
            route: name,
            error: Errno::INVAL,
        });
    };
    let back = |route: &Route| before.back(route.metrics, &made);
    let undone = match routes.iter().any(|route| back(route).others) {
        true => Undo::Others,
        false => Undo::Restored,
    };
    let mut routes = routes.iter();
    let Some(route) = routes.find(|route| back(route).to != route.metrics) else {
        return Ok(Some(undone));
    };
    if let Some(obstacle) = route.obstacle() {
        return Err(ActuateError::Left {
            route: name,
            obstacle,
        });
    }
    match space.set(route, back(route).to)? {
        Made::Set => Ok(Some(undone)),
        Made::Gone => Ok(Some(Undo::Gone)),
        Made::Meanwhile => Ok(None),
        Made::Refused(error) => Err(ActuateError::Route { route: name, error }),
    }
}

#[cfg(test)]
mod tests;
