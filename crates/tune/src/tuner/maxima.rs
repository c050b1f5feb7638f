//! Sets the kernel's maxima for buffers in each namespace.

use std::collections::HashSet;
use std::sync::Arc;

use taut_observe::namespaces::Namespace;
use taut_observe::tcp_settings::TcpSettings;
use taut_sys::netns;

use super::{MAX_RAISED, Tuner, ids};
use crate::demand::Direction;
use crate::plan::{Change, raise_maximum};
use crate::pressure::of_machine;
use crate::report::{ChangeReport, Outcome};
use crate::sysctl::maxima;

impl Tuner {
    /// Raises the maxima of new namespaces.
    pub(super) fn raise_maxima(&mut self) -> Vec<ChangeReport> {
        let namespaces: Vec<Namespace> = self.observer.namespaces().to_vec();
        let there = ids(&namespaces);
        self.cookies.retain(|id, _| there.contains(id));
        self.originals.retain(|(id, _), _| there.contains(id));
        let mut reports = Vec::new();
        for namespace in &namespaces {
            let cookie = match namespace.run(netns::cookie) {
                Ok(Some(Ok(cookie))) => cookie,
                other => {
                    tracing::debug!(?other, netns = %namespace.name, "the cookie of a namespace cannot be read");
                    self.cookies.remove(&namespace.id);
                    continue;
                }
            };
            match self.cookies.insert(namespace.id, cookie) {
                Some(before) if before == cookie => continue,
                Some(_) => {
                    self.start_maxima.remove(&namespace.id);
                    self.originals.retain(|(id, _), _| *id != namespace.id);
                }
                None => {}
            }
            let Some(found) = read_maxima(namespace) else {
                continue;
            };
            let settings = namespace.run(TcpSettings::read).ok().flatten();
            let settings = settings.unwrap_or_default();
            for (direction, maximum) in found {
                self.adopt_maximum(namespace, direction, maximum);
                // Under a budget, set_start_maximum() sets this maximum.
                if direction == Direction::Send && self.budget.is_some() {
                    continue;
                }
                let Some(change @ Change::Maximum { to, .. }) =
                    raise_maximum(direction, maximum, self.cap, of_machine(), settings)
                else {
                    continue;
                };
                let outcome = self.set_maximum(namespace, direction, maximum, to);
                let netns = namespace.name.to_string();
                reports.push(ChangeReport::new(&change, None, netns, outcome));
            }
        }
        reports
    }

    /// Sets the maximum for send buffers of new connections to `to` in each namespace where it
    /// differs much.
    ///
    /// The maximum bounds all buffers that the kernel tunes. So in the `kernel_tuned` namespaces it
    /// does not fall below its original value.
    pub(super) fn set_start_maximum(
        &mut self,
        to: u64,
        kernel_tuned: &HashSet<Arc<str>>,
    ) -> Vec<ChangeReport> {
        let namespaces: Vec<Namespace> = self.observer.namespaces().to_vec();
        let there = ids(&namespaces);
        self.start_maxima.retain(|id, _| there.contains(id));
        let mut reports = Vec::new();
        for namespace in &namespaces {
            if self.is_foreign(&namespace.name) {
                continue;
            }
            let before = self.start_maxima.get(&namespace.id).copied();
            let to = match kernel_tuned.contains(&namespace.name) {
                true => {
                    let key = (namespace.id, Direction::Send);
                    // The maximum was never changed and stays as it is.
                    let Some(original) = self.originals.get(&key) else {
                        continue;
                    };
                    to.max(*original)
                }
                false => to,
            };
            let is_near = |now: u64| to >= now - now / 4 && to <= now.saturating_mul(2);
            match before {
                Some(None) => continue,
                Some(Some(now)) if is_near(now) => continue,
                _ => {}
            }
            let Some([(_, now), _]) = read_maxima(namespace) else {
                continue;
            };
            let change = Change::StartMaximum { from: now, to };
            let is_foreign =
                self.actuators.is_some() && before.flatten().is_some_and(|set| set != now);
            let outcome = match is_foreign {
                true => Outcome::Failed(
                    "another program has set it meanwhile, and it is left as it is".to_owned(),
                ),
                false => self.set_maximum(namespace, Direction::Send, now, to),
            };
            match outcome {
                Outcome::Applied | Outcome::Advised => {
                    self.start_maxima.insert(namespace.id, Some(to));
                }
                Outcome::Gone => continue,
                // The failure is reported once; the change is not tried again.
                _ => {
                    self.start_maxima.insert(namespace.id, None);
                }
            }
            let netns = namespace.name.to_string();
            reports.push(ChangeReport::new(&change, None, netns, outcome));
        }
        reports
    }

    /// Sets a maximum. Without actuators, or where another process tunes, only advises it.
    fn set_maximum(
        &mut self,
        namespace: &Namespace,
        direction: Direction,
        from: u64,
        to: u64,
    ) -> Outcome {
        let actuators = self.actuators.as_mut();
        let Some(actuators) = actuators.filter(|of| !of.is_foreign(&namespace.name)) else {
            return Outcome::Advised;
        };
        match actuators.set_maximum(namespace, direction, to) {
            Ok(true) => {}
            Ok(false) => return Outcome::Gone,
            Err(error) => return Outcome::Failed(error.to_string()),
        }
        let key = (namespace.id, direction);
        let original = *self.originals.entry(key).or_insert(from);
        if self.raised.len() == MAX_RAISED {
            self.raised.pop_front();
        }
        self.raised.push_back((direction, to, original));
        Outcome::Applied
    }

    /// Adopts a maximum that a new namespace has inherited from the first one, so that the original
    /// is restored at the end.
    fn adopt_maximum(&mut self, namespace: &Namespace, direction: Direction, found: u64) {
        let is_it = |raised: &&(Direction, u64, u64)| (raised.0, raised.1) == (direction, found);
        let (Some(actuators), Some((_, _, original))) =
            (&mut self.actuators, self.raised.iter().find(is_it).copied())
        else {
            return;
        };
        if self.scans == 1 || original == found || actuators.is_foreign(&namespace.name) {
            return;
        }
        self.originals.insert((namespace.id, direction), original);
        if let Err(error) = actuators.adopt_maximum(namespace, direction, original) {
            tracing::warn!(%error, "a new namespace keeps the maximum that it has inherited");
        }
    }
}

/// Reads the maxima of a namespace; `None` if it has ended, or they cannot be read.
fn read_maxima(namespace: &Namespace) -> Option<[(Direction, u64); 2]> {
    let found = maxima(namespace);
    found.unwrap_or_else(|error| {
        tracing::debug!(%error, "the maxima of a namespace cannot be read");
        None
    })
}
