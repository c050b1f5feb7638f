//! Lists the selected routes in the main routing table of one network namespace, and replaces one
//! route at a time.

use std::collections::HashSet;

use taut_observe::namespaces::Namespace;
use taut_sys::Errno;
use taut_sys::netns;
use taut_sys::route::{Family, Routes};

use super::error::RouteError;
use super::message::{Route, RouteKey, unicast};
use super::metrics::Metrics;
use super::selection::Destinations;

/// The maximum number of routes to change in one namespace. If more routes match, all are left
/// alone.
pub(crate) const MAX_ROUTES: usize = 4096;

/// The maximum number of dumps for a list. A dump is repeated if it may have missed routes, because
/// other routes were added or removed meanwhile.
pub(crate) const LIST_TRIES: usize = 3;

/// The selected routes of a namespace. Lists and replaces them.
#[derive(Debug)]
pub(crate) struct RouteTable {
    cookie: u64,
    netns: String,
    routes: Routes,
    destinations: Destinations,
    /// The selected routes that other programs have changed since the last list.
    changed: HashSet<RouteKey>,
    /// Whether notifications were lost since the last list.
    has_lost_notifications: bool,
}

/// The outcome of changing a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteOutcome {
    /// The route has the new metrics.
    Set,
    /// The route no longer exists.
    Gone,
    /// Another program changed the route meanwhile. That change stays, and the route must be listed
    /// again.
    ChangedMeanwhile,
    /// The kernel refused the new route; the old one stays.
    Refused(Errno),
}

/// The notifications of one read.
#[derive(Debug, Default)]
struct Notifications {
    /// The requested route as another program made it, before this program replaced it.
    theirs: Option<Route>,
    /// The requested route as this program made it.
    own: Option<Route>,
    /// Whether a list that was read meanwhile may miss routes.
    may_miss: bool,
}

// === impl RouteTable ===

impl RouteTable {
    /// Opens the table of a namespace; `None` if the namespace has ended.
    pub(crate) fn open(
        namespace: &Namespace,
        destinations: Destinations,
    ) -> Result<Option<Self>, RouteError> {
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
                has_lost_notifications: false,
            })),
            Some(Err(error)) => Err(RouteError::List { netns, error }),
        }
    }

    /// Returns the cookie of the namespace, which the kernel never reuses.
    pub(crate) fn cookie(&self) -> u64 {
        self.cookie
    }

    fn list_error(&self, error: Errno) -> RouteError {
        RouteError::List {
            netns: self.netns.clone(),
            error,
        }
    }

    /// Lists all selected unicast routes, while `goes_on`.
    ///
    /// # Errors
    /// [`RouteError::Unsteady`]: other routes were added or removed during each of `tries` dumps,
    /// so a selected route may be missing. The caller could mistake a missing route for a removed
    /// one, and another route with its key for the only one.
    pub(crate) fn list(
        &mut self,
        tries: usize,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Vec<Route>, RouteError> {
        for _ in 0..tries {
            // The dump includes earlier changes.
            self.read_notifications(None)?;
            self.changed.clear();
            self.has_lost_notifications = false;
            let mut found = Vec::new();
            let mut is_whole = true;
            let [has_v4, has_v6] = self.destinations.families();
            for (family, has_any) in [(Family::V4, has_v4), (Family::V6, has_v6)] {
                if !has_any {
                    continue;
                }
                let destinations = &self.destinations;
                let listed = self.routes.list(family, goes_on, |message| {
                    if found.len() <= MAX_ROUTES {
                        let route = Route::parse(message);
                        found.extend(route.filter(|route| destinations.contains(&route.key)));
                    }
                });
                is_whole &= listed.map_err(|error| self.list_error(error))?;
            }
            if found.len() > MAX_ROUTES {
                return Err(RouteError::TooMany {
                    netns: self.netns.clone(),
                    limit: MAX_ROUTES,
                });
            }
            let may_miss = self.read_notifications(None)?.may_miss;
            if is_whole && !may_miss && !self.has_lost_notifications {
                return Ok(unicast(found));
            }
        }
        Err(RouteError::Unsteady {
            netns: self.netns.clone(),
        })
    }

    /// Reads the kernel's notifications, and returns what they say about the route `key`.
    fn read_notifications(&mut self, key: Option<RouteKey>) -> Result<Notifications, RouteError> {
        let mut read = Notifications::default();
        let (changed, destinations) = (&mut self.changed, &self.destinations);
        let is_whole = self.routes.changes(|change| {
            read.may_miss |= !change.is_own && destinations.may_miss(change.route);
            let Some(route) = Route::parse(change.route) else {
                return;
            };
            // A namespace may change routes without end, so only selected routes are remembered.
            if !destinations.contains(&route.key) {
                return;
            }
            let is_requested = key == Some(route.key);
            match change.is_own {
                true if is_requested => read.own = Some(route),
                true => {}
                false => {
                    changed.insert(route.key);
                    if is_requested && read.own.is_none() && !change.is_gone {
                        read.theirs = Some(route);
                    }
                }
            }
        });
        self.has_lost_notifications |= !is_whole.map_err(|error| self.list_error(error))?;
        Ok(read)
    }

    /// Whether another program may have changed the route since it was listed.
    pub(super) fn has_changed(&mut self, key: &RouteKey) -> Result<bool, RouteError> {
        self.read_notifications(None)?;
        Ok(self.has_lost_notifications || self.changed.contains(key))
    }

    /// Sets the metrics of a route of the last list, unless another program has changed it since.
    pub(super) fn set(&mut self, route: &Route, to: Metrics) -> Result<RouteOutcome, RouteError> {
        match self.has_changed(&route.key)? {
            true => Ok(RouteOutcome::ChangedMeanwhile),
            false => self.replace(route, to),
        }
    }

    /// Replaces a route. If another program turns out to have changed it before the kernel handled
    /// the request, its route is put back.
    fn replace(&mut self, route: &Route, to: Metrics) -> Result<RouteOutcome, RouteError> {
        let key = route.key;
        match self.routes.replace(&route.with(to)) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::SRCH) => return Ok(RouteOutcome::Gone),
            // The answer was lost, but the kernel may have handled the request.
            Err(error @ (Errno::AGAIN | Errno::NOBUFS | Errno::MSGSIZE | Errno::BADMSG)) => {
                return Err(RouteError::Replace { route: key, error });
            }
            Err(error) => return Ok(RouteOutcome::Refused(error)),
        }
        let Notifications { theirs, own, .. } = self.read_notifications(Some(key))?;
        let Some(theirs) = theirs else {
            return match self.has_lost_notifications || own.is_some_and(|own| own.metrics == to) {
                true => Ok(RouteOutcome::Set),
                // The kernel confused this route with another one.
                false => Err(RouteError::NotApplied { route: key }),
            };
        };
        let not_restored = |why: String| RouteError::NotRestored { route: key, why };
        match (
            self.routes.replace(&theirs.with(theirs.metrics)),
            theirs.obstacle(),
        ) {
            (Ok(()), None) => Ok(RouteOutcome::ChangedMeanwhile),
            (Ok(()), Some(obstacle)) => Err(not_restored(obstacle.to_string())),
            (Err(error), _) => Err(not_restored(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests;
