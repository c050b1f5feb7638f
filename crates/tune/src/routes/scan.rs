//! Which routes are looked at, and what is set on them or said of them.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use taut_observe::namespaces::Namespace;
use taut_sys::netns::NetnsId;

use crate::actuate::{ActuateError, Actuators};
use crate::plan::Change;
use crate::routes::message::{Name, Route};
use crate::routes::metrics::{Metrics, Step};
use crate::routes::selection::{Chosen, Destinations};
use crate::routes::table::{Made as RouteMade, ROUTES, ROUTES_OF_ALL, Space, TRIES};
use crate::tuner::{AGAIN, Outcome, Told, tell};

/// Looks after which a namespace whose routes could not be listed, or not all be set, is looked at again.
const SOON: u64 = 5;
/// What a look takes at most in the first namespace, this program's own or the one that was asked for; in another; and in all others together.
const TIME_OF_FIRST: Duration = Duration::from_secs(20);
const TIME: Duration = Duration::from_secs(1);
const TIME_OF_ALL: Duration = Duration::from_secs(5);
/// Routes of one namespace of which it is said why they are left alone.
const SAID: usize = 1000;
/// The same of all namespaces together, but the first.
const SAID_OF_ALL: usize = 100 * SAID;

/// Why one is changed.
pub(crate) const BECAUSE: &str = "it is asked for: the kernel begins each connection with 10 segments (RFC 6928), whatever its path takes";

/// Sets on the routes of all namespaces with how much a connection begins, or says what it would set.
#[derive(Debug)]
pub struct Routes {
    chosen: Vec<Chosen>,
    asked: Metrics,
    destinations: Destinations,
    known: HashMap<NetnsId, Known>,
    /// Which of `chosen` was found somewhere.
    found: Vec<bool>,
    /// All namespaces were looked at.
    is_whole: bool,
    /// It was said which was not.
    is_told: bool,
}

/// What is known of a namespace.
#[derive(Debug)]
struct Known {
    /// The kernel gives its inode to another when it is gone, but never its cookie.
    cookie: u64,
    /// In which look its routes are to be looked at.
    due: u64,
    /// All of them were seen once.
    is_listed: bool,
    /// Routes of which it was said why they are left alone.
    said: HashSet<(Name, String)>,
    /// What was said of it as a whole.
    troubles: HashSet<Trouble>,
}

/// What is said once of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Trouble {
    /// It could not be looked at.
    Failed,
    /// There is no room in the journal for all that would be changed.
    Short,
    /// More are left alone than are told.
    Untold,
}

/// What a look came to.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// What was said or done of routes,
    pub(crate) told: Vec<Told>,
    /// and of namespaces.
    pub(crate) troubles: Vec<String>,
}

/// A namespace that is looked at, and for how long.
struct At<'a> {
    namespace: &'a Namespace,
    is_first: bool,
    goes_on: &'a dyn Fn() -> bool,
}

/// Routes that the journal has, of each namespace and of all, once that was counted.
#[derive(Debug, Default)]
struct Room(Option<(HashMap<u64, usize>, usize)>);

/// What is changed.
pub(crate) fn change(name: &Name, from: Metrics, to: Metrics) -> String {
    let new = to.among(Metrics {
        initcwnd: to.initcwnd.filter(|_| to.initcwnd != from.initcwnd),
        initrwnd: to.initrwnd.filter(|_| to.initrwnd != from.initrwnd),
    });
    format!("route {name}: {new}")
}

/// What is expected of it.
pub(crate) fn expected(from: Metrics, to: Metrics) -> String {
    let sends = to.initcwnd.filter(|_| to.initcwnd != from.initcwnd);
    let takes = to.initrwnd.filter(|_| to.initrwnd != from.initrwnd);
    let sends = sends.map(|count| {
        format!("who connects over it sends up to {count} segments in the first round trip")
    });
    let takes = takes
        .map(|count| format!("peers may send {count} segments in it, or 64 KiB if that is less"));
    let said: Vec<String> = sends.into_iter().chain(takes).collect();
    said.join("; ")
}

// === impl Routes ===

impl Routes {
    /// These metrics are to be set on these routes; on all default routes, if none is chosen.
    pub fn new(mut chosen: Vec<Chosen>, asked: Metrics) -> Self {
        if chosen.is_empty() {
            chosen.push(Chosen::defaults());
        }
        let destinations = chosen.iter().flat_map(Chosen::destinations);
        Self {
            found: vec![false; chosen.len()],
            destinations: destinations.copied().collect(),
            chosen,
            asked,
            known: HashMap::new(),
            is_whole: false,
            is_told: false,
        }
    }

    /// Looks at routes of namespaces that are new, or were looked at long ago: a route that was replaced has lost what was set. The first of them is this program's
    /// own, or the only one. Those of which no cookie is known have ended, or cannot be entered. `ends`: whether it is to stop before it is through.
    pub(crate) fn look(
        &mut self,
        look: u64,
        namespaces: &[Namespace],
        cookies: &HashMap<NetnsId, u64>,
        mut actuators: Option<&mut Actuators>,
        ends: &dyn Fn() -> bool,
    ) -> Seen {
        let there: HashSet<NetnsId> = namespaces.iter().map(|namespace| namespace.id).collect();
        self.known.retain(|id, _| there.contains(id));
        let mut seen = Seen::default();
        let mut room = Room::default();
        let mut end_of_all = None;
        // Then it is the turn of who has waited longest: a slow one keeps no other waiting for ever.
        let mut order: Vec<(usize, &Namespace)> = namespaces.iter().enumerate().collect();
        order.sort_by_key(|(at, namespace)| {
            let due = self
                .known
                .get(&namespace.id)
                .map_or(look, |known| known.due);
            (*at != 0, due)
        });
        for (at, namespace) in order {
            let Some(&cookie) = cookies.get(&namespace.id) else {
                continue;
            };
            let known = self.known.remove(&namespace.id);
            let mut known = known
                .filter(|known| known.cookie == cookie)
                .unwrap_or_else(|| Known::new(cookie, look));
            let is_first = at == 0;
            let now = Instant::now();
            let end = match is_first {
                true => now + TIME_OF_FIRST,
                false => (now + TIME).min(*end_of_all.get_or_insert(now + TIME_OF_ALL)),
            };
            let goes_on = || !ends() && Instant::now() < end;
            // Those for which there is no time now are due in the next look.
            if look >= known.due && goes_on() {
                let at = At {
                    namespace,
                    is_first,
                    goes_on: &goes_on,
                };
                let looked = self.look_at(
                    &at,
                    &mut known,
                    &mut room,
                    actuators.as_deref_mut(),
                    &mut seen,
                );
                known.is_listed |= looked.is_ok();
                let is_done = matches!(looked, Ok(true));
                known.due = look + if is_done { AGAIN } else { SOON };
                if let Err(error) = looked
                    && !ends()
                {
                    let say = || format!("{error} (it is tried again)");
                    known.say(Trouble::Failed, &mut seen, say);
                }
            }
            self.known.insert(namespace.id, known);
        }
        let is_listed = |id| self.known.get(id).is_none_or(|known| known.is_listed);
        self.is_whole = !self.known.is_empty() && there.iter().all(is_listed);
        seen
    }

    /// What was chosen, and was not found when all namespaces were looked at the first time.
    pub(crate) fn unmatched(&mut self) -> Vec<String> {
        if !self.is_whole || std::mem::replace(&mut self.is_told, true) {
            return Vec::new();
        }
        let missing = self.chosen.iter().zip(&self.found);
        missing
            .filter(|(_, found)| !**found)
            .map(|(chosen, _)| chosen.to_string())
            .collect()
    }

    /// `false`: not all that is to be done was.
    fn look_at(
        &mut self,
        at: &At<'_>,
        known: &mut Known,
        room: &mut Room,
        mut actuators: Option<&mut Actuators>,
        seen: &mut Seen,
    ) -> Result<bool, ActuateError> {
        // It has ended, and so has one whose place another has taken.
        let Some(mut space) = Space::open(at.namespace, self.destinations.clone())? else {
            return Ok(true);
        };
        if space.cookie() != known.cookie {
            return Ok(true);
        }
        for _ in 0..TRIES {
            let routes = space.list(TRIES, at.goes_on)?;
            for (chosen, found) in self.chosen.iter().zip(&mut self.found) {
                *found |= routes.iter().any(|route| chosen.takes(&route.name));
            }
            let mut meanwhile = false;
            for route in &routes {
                if !(at.goes_on)() {
                    return Ok(false);
                }
                let is_first_time = actuators
                    .as_deref()
                    .is_some_and(|of| of.made_of_route(&space, route.name).is_empty());
                if is_first_time
                    && self.would_set(route)
                    && let Some(actuators) = actuators.as_deref()
                    && !room.has(at.is_first, actuators, known.cookie)
                {
                    known.say(Trouble::Short, seen, || {
                        format!(
                            "routes of namespace {}: the journal has as many as it may have ({ROUTES} of one namespace, {ROUTES_OF_ALL} of all), and others are left as they are",
                            at.namespace.name
                        )
                    });
                    continue;
                }
                let (change, outcome) = match self.make(&mut space, route, actuators.as_deref_mut())
                {
                    None => continue,
                    Some((_, Came::Meanwhile)) => {
                        meanwhile = true;
                        continue;
                    }
                    Some((change, Came::Told(outcome))) => (change, outcome),
                    Some((change, Came::Left(why))) => {
                        match self.is_new(at, known, route.name, &why, seen) {
                            true => (change, Outcome::Failed(why)),
                            false => continue,
                        }
                    }
                };
                if is_first_time && outcome == Outcome::Made {
                    room.take(known.cookie);
                }
                let netns = at.namespace.name.to_string();
                seen.told.push(tell(&change, None, netns, outcome));
            }
            if !meanwhile {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Where nothing was made of it before.
    fn would_set(&self, route: &Route) -> bool {
        let step = self.asked.step(route.metrics, &[]);
        matches!(step, Step::Set { .. }) && route.obstacle().is_none()
    }

    /// What is left alone, and why, is said once.
    fn is_new(
        &self,
        at: &At<'_>,
        known: &mut Known,
        name: Name,
        why: &str,
        seen: &mut Seen,
    ) -> bool {
        let of_all = || -> usize { self.known.values().map(|known| known.said.len()).sum() };
        let key = (name, why.to_owned());
        if known.said.contains(&key) {
            return false;
        }
        if known.said.len() >= SAID || !at.is_first && of_all() >= SAID_OF_ALL {
            known.say(Trouble::Untold, seen, || {
                format!(
                    "routes of namespace {}: more are left as they are than are told",
                    at.namespace.name
                )
            });
            return false;
        }
        known.said.insert(key)
    }

    /// What came of it, or why it is left alone; `None`: there is nothing to be done.
    fn make(
        &self,
        space: &mut Space,
        route: &Route,
        actuators: Option<&mut Actuators>,
    ) -> Option<(Change, Came)> {
        let name = route.name;
        let change = |to| Change::Route {
            name,
            from: route.metrics,
            to,
        };
        let made = actuators.as_deref().map(|of| of.made_of_route(space, name));
        let left = match (
            self.asked.step(route.metrics, &made.unwrap_or_default()),
            route.obstacle(),
        ) {
            (Step::Nothing, _) => return None,
            (Step::Others, _) => format!(
                "it has {} already, which somebody has chosen: it is left to him",
                route.metrics.among(self.asked)
            ),
            (_, Some(obstacle)) => format!("{obstacle}: it is left as it is"),
            (Step::Set { to, ours }, None) => {
                let outcome = match actuators.map(|of| of.route(space, route, to, ours)) {
                    None => Outcome::Advised,
                    Some(Ok(RouteMade::Set)) => Outcome::Made,
                    Some(Ok(RouteMade::Gone)) => Outcome::Gone,
                    Some(Ok(RouteMade::Meanwhile)) => return Some((change(to), Came::Meanwhile)),
                    Some(Ok(RouteMade::Refused(error))) => Outcome::Failed(error.to_string()),
                    Some(Err(error)) => Outcome::Failed(error.to_string()),
                };
                return Some((change(to), Came::Told(outcome)));
            }
        };
        Some((change(self.asked), Came::Left(left)))
    }
}

/// What came of a route.
enum Came {
    Told(Outcome),
    /// It is left alone: why.
    Left(String),
    /// Somebody else changes it just now.
    Meanwhile,
}

// === impl Known ===

impl Known {
    fn new(cookie: u64, due: u64) -> Self {
        Self {
            cookie,
            due,
            is_listed: false,
            said: HashSet::new(),
            troubles: HashSet::new(),
        }
    }

    fn say(&mut self, trouble: Trouble, seen: &mut Seen, text: impl FnOnce() -> String) {
        if self.troubles.insert(trouble) {
            seen.troubles.push(text());
        }
    }
}

// === impl Room ===

impl Room {
    /// Whether the journal may have another route of this namespace.
    fn has(&mut self, is_first: bool, actuators: &Actuators, cookie: u64) -> bool {
        let (counts, of_all) = self.0.get_or_insert_with(|| {
            let counts = actuators.routes();
            let of_all = counts.values().sum();
            (counts, of_all)
        });
        let of_it = counts.get(&cookie).copied().unwrap_or(0);
        of_it < ROUTES && (is_first || *of_all < ROUTES_OF_ALL)
    }

    fn take(&mut self, cookie: u64) {
        if let Some((counts, of_all)) = &mut self.0 {
            *counts.entry(cookie).or_default() += 1;
            *of_all += 1;
        }
    }
}

#[cfg(test)]
mod tests;
