//! A namespace's routes: their two metrics are set, and set back.

use std::collections::HashSet;

use taut_observe::namespaces::Namespace;
use taut_sys::Errno;
use taut_sys::netns;
use taut_sys::route::{Family, Routes};

use super::undo::{Spaces, Undo};
use super::{ActuateError, Actuators};
use crate::journal::{Entry, Thing, Value};
use crate::route::{Metrics, Name, Route, choose};

/// How often a route that changes meanwhile is looked at anew.
const TRIES: usize = 3;

/// A namespace, whose routes can be listed and replaced as long as this lives.
#[derive(Debug)]
pub(crate) struct Space {
    cookie: u64,
    netns: String,
    routes: Routes,
    /// Routes that somebody else has changed since they were listed.
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
}

/// What was heard of since the last time.
#[derive(Debug, Default)]
struct Since {
    /// What others had made of routes before one was replaced here.
    before: Vec<Route>,
    /// What came of replacing.
    own: Vec<Route>,
}

// === impl Space ===

impl Space {
    /// `None`: it is gone.
    pub(crate) fn open(namespace: &Namespace) -> Result<Option<Self>, ActuateError> {
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
                changed: HashSet::new(),
                is_deaf: false,
            })),
            Some(Err(error)) => Err(ActuateError::Routes { netns, error }),
        }
    }

    fn failed(&self, error: Errno) -> ActuateError {
        ActuateError::Routes {
            netns: self.netns.clone(),
            error,
        }
    }

    /// Its routes of these destinations that lead somewhere.
    pub(crate) fn list(
        &mut self,
        takes: impl Fn(&Name) -> bool,
    ) -> Result<Vec<Route>, ActuateError> {
        for _ in 0..TRIES {
            // What has changed before that is in the list.
            self.hear()?;
            self.changed.clear();
            self.is_deaf = false;
            let mut found = Vec::new();
            let mut is_whole = true;
            for family in [Family::V4, Family::V6] {
                let listed = self.routes.list(family, |message| {
                    found.extend(Route::parse(message).filter(|route| takes(&route.name)));
                });
                is_whole &= listed.map_err(|error| self.failed(error))?;
            }
            if is_whole {
                return Ok(choose(found));
            }
        }
        // One that is missing could be taken for another.
        Err(self.failed(Errno::INTR))
    }

    /// What has been changed.
    fn hear(&mut self) -> Result<Since, ActuateError> {
        let mut since = Since::default();
        let changed = &mut self.changed;
        let heard = self.routes.heard(|heard| {
            let Some(route) = Route::parse(heard.route) else {
                return;
            };
            if heard.is_own {
                since.own.push(route);
                return;
            }
            changed.insert(route.name);
            if since.own.is_empty() && !heard.is_gone {
                since.before.push(route);
            }
        });
        self.is_deaf |= !heard.map_err(|error| self.failed(error))?;
        Ok(since)
    }

    /// Sets these metrics of a route that was listed just now, if nobody else has changed it since.
    fn set(&mut self, route: &Route, to: Metrics) -> Result<Made, ActuateError> {
        self.hear()?;
        match self.is_deaf || self.changed.contains(&route.name) {
            true => Ok(Made::Meanwhile),
            false => self.replace(route, to),
        }
    }

    /// Who changes it before the kernel has come to this has his route back.
    fn replace(&mut self, route: &Route, to: Metrics) -> Result<Made, ActuateError> {
        let failed = |error| ActuateError::Route {
            route: route.name,
            error,
        };
        match self.routes.replace(&route.with(to)) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::SRCH) => return Ok(Made::Gone),
            Err(error) => return Err(failed(error)),
        }
        let Since { before, own } = self.hear()?;
        let mut before = before.into_iter().rev();
        let Some(theirs) = before.find(|of| of.name == route.name) else {
            let is_set = |own: &Route| own.name == route.name && own.metrics == to;
            return match self.is_deaf || own.iter().any(is_set) {
                true => Ok(Made::Set),
                // It says yes, and has one like it that is another.
                false => Err(ActuateError::NotTaken { route: route.name }),
            };
        };
        let back = self.routes.replace(&theirs.with(theirs.metrics));
        back.map_err(failed)?;
        Ok(Made::Meanwhile)
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

    /// Sets these metrics of a route that was listed just now; of them `ours` are Taut's then.
    pub(crate) fn route(
        &mut self,
        space: &mut Space,
        route: &Route,
        to: Metrics,
        ours: Metrics,
    ) -> Result<Made, ActuateError> {
        let thing = thing(space.cookie, route.name);
        let before = Value::Route(route.metrics.among(ours));
        let is_first = self.journal.entry(&thing).is_none();
        self.note(thing.clone(), before, Value::Route(ours))?;
        let made = space.set(route, to)?;
        // What somebody makes it now is his, whatever it is.
        if is_first && made != Made::Set {
            self.journal.undone(&thing).map_err(ActuateError::Journal)?;
        }
        Ok(made)
    }
}

/// Undoes what was done to a route of the namespace with this cookie.
pub(super) fn undo_route(
    spaces: &Spaces,
    cookie: u64,
    name: &Name,
    entry: &Entry,
) -> Result<Undo, ActuateError> {
    let found = spaces.get(cookie);
    let Some(namespace) = found.map_err(|_| ActuateError::Elsewhere { cookie })? else {
        return Ok(Undo::Gone);
    };
    let (Value::Route(before), made) = (&entry.before, made(entry)) else {
        return Err(ActuateError::Route {
            route: *name,
            error: Errno::INVAL,
        });
    };
    let Some(mut space) = Space::open(namespace)? else {
        return Err(ActuateError::Elsewhere { cookie });
    };
    for _ in 0..TRIES {
        let routes = space.list(|of| of == name)?;
        if routes.is_empty() {
            return Ok(Undo::Gone);
        }
        let back = |route: &Route| before.back(route.metrics, &made);
        let undone = match routes.iter().any(|route| back(route).others) {
            true => Undo::Others,
            false => Undo::Restored,
        };
        let mut routes = routes.iter();
        let Some(route) = routes.find(|route| back(route).to != route.metrics) else {
            return Ok(undone);
        };
        if let Some(obstacle) = route.obstacle() {
            return Err(ActuateError::Left {
                route: *name,
                obstacle,
            });
        }
        match space.set(route, back(route).to)? {
            Made::Set => return Ok(undone),
            Made::Gone => return Ok(Undo::Gone),
            Made::Meanwhile => {}
        }
    }
    Err(ActuateError::Route {
        route: *name,
        error: Errno::BUSY,
    })
}

#[cfg(test)]
mod tests;
