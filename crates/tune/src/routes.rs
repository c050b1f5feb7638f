//! Which routes are looked at, and what is set on them or said of them.

use std::collections::{HashMap, HashSet};

use taut_observe::namespaces::Namespace;
use taut_sys::netns::NetnsId;

use crate::actuate::{ActuateError, Actuators, RouteMade, Space};
use crate::plan::Change;
use crate::route::{Chosen, Metrics, Name, Route, Step};
use crate::tuner::{AGAIN, Outcome, REMEMBERED, Told, tell};

/// How often routes that somebody else changes just now are looked at anew.
const TRIES: usize = 3;

/// Why one is changed.
pub(crate) const BECAUSE: &str = "it is asked for: the kernel begins each connection with 10 segments (RFC 6928), whatever its path takes";

/// Sets on the routes of all namespaces with how much a connection begins, or says what it would set.
#[derive(Debug)]
pub struct Routes {
    chosen: Vec<Chosen>,
    asked: Metrics,
    /// In which look a namespace's routes were looked at the last time.
    looked: HashMap<NetnsId, u64>,
    /// Routes of which it was said why they are left alone.
    said: HashSet<(NetnsId, Name, String)>,
    /// Which of `chosen` was found somewhere.
    found: Vec<bool>,
    /// It was said which was not.
    is_told: bool,
}

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
        Self {
            found: vec![false; chosen.len()],
            chosen,
            asked,
            looked: HashMap::new(),
            said: HashSet::new(),
            is_told: false,
        }
    }

    /// Looks at routes of namespaces that are new, or were looked at long ago: a route that was replaced has lost what was set.
    pub(crate) fn look(
        &mut self,
        look: u64,
        namespaces: &[Namespace],
        mut actuators: Option<&mut Actuators>,
    ) -> Vec<Told> {
        let there: HashSet<NetnsId> = namespaces.iter().map(|namespace| namespace.id).collect();
        self.looked.retain(|id, _| there.contains(id));
        self.said.retain(|(id, ..)| there.contains(id));
        let mut told = Vec::new();
        for namespace in namespaces {
            let last = self.looked.get(&namespace.id);
            if last.is_some_and(|last| look - last < AGAIN) {
                continue;
            }
            self.looked.insert(namespace.id, look);
            let looked = self.look_at(namespace, actuators.as_deref_mut(), &mut told);
            if let Err(error) = looked {
                tracing::debug!(%error, netns = %namespace.name, "its routes are not known, and left alone");
            }
        }
        told
    }

    /// What was chosen, and was not found when all namespaces were looked at the first time.
    pub(crate) fn unmatched(&mut self) -> Vec<String> {
        if self.looked.is_empty() || std::mem::replace(&mut self.is_told, true) {
            return Vec::new();
        }
        let missing = self.chosen.iter().zip(&self.found);
        missing
            .filter(|(_, found)| !**found)
            .map(|(chosen, _)| chosen.to_string())
            .collect()
    }

    fn look_at(
        &mut self,
        namespace: &Namespace,
        mut actuators: Option<&mut Actuators>,
        told: &mut Vec<Told>,
    ) -> Result<(), ActuateError> {
        // It has ended.
        let Some(mut space) = Space::open(namespace)? else {
            return Ok(());
        };
        for _ in 0..TRIES {
            let chosen = &self.chosen;
            let routes = space.list(|name| chosen.iter().any(|chosen| chosen.takes(name)))?;
            let mut meanwhile = false;
            for route in &routes {
                for (chosen, found) in self.chosen.iter().zip(&mut self.found) {
                    *found |= chosen.takes(&route.name);
                }
                let outcome = self.make(namespace, &mut space, route, actuators.as_deref_mut());
                match outcome {
                    None => {}
                    Some((_, Err(Meanwhile))) => meanwhile = true,
                    Some((change, Ok(outcome))) => {
                        told.push(tell(&change, None, namespace.name.to_string(), outcome));
                    }
                }
            }
            if !meanwhile {
                return Ok(());
            }
        }
        // Soon, and not after many looks.
        self.looked.remove(&namespace.id);
        Ok(())
    }

    fn make(
        &mut self,
        namespace: &Namespace,
        space: &mut Space,
        route: &Route,
        actuators: Option<&mut Actuators>,
    ) -> Option<(Change, Result<Outcome, Meanwhile>)> {
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
                    Some(Ok(RouteMade::Meanwhile)) => return Some((change(to), Err(Meanwhile))),
                    Some(Err(error)) => Outcome::Failed(error.to_string()),
                };
                return Some((change(to), Ok(outcome)));
            }
        };
        let is_new =
            self.said.len() < REMEMBERED && self.said.insert((namespace.id, name, left.clone()));
        is_new.then(|| (change(self.asked), Ok(Outcome::Failed(left))))
    }
}

/// Somebody else changes it just now.
struct Meanwhile;
