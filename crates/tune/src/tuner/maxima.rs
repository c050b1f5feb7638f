//! What the kernel may give a buffer of a namespace.

use std::collections::HashSet;
use std::sync::Arc;

use taut_observe::namespaces::Namespace;
use taut_sys::netns::{self, NetnsId};

use super::{MADE, Outcome, Told, Tuner, tell};
use crate::actuate::maxima;
use crate::demand::Direction;
use crate::plan::{Change, maximum};

impl Tuner {
    /// Of namespaces that were not there before.
    pub(super) fn maxima(&mut self) -> Vec<Told> {
        let namespaces: Vec<Namespace> = self.observer.namespaces().to_vec();
        let there: HashSet<NetnsId> = namespaces.iter().map(|namespace| namespace.id).collect();
        self.known.retain(|id, _| there.contains(id));
        self.originals.retain(|(id, _), _| there.contains(id));
        let mut told = Vec::new();
        for namespace in &namespaces {
            let cookie = match namespace.run(netns::cookie) {
                Ok(Some(Ok(cookie))) => cookie,
                other => {
                    tracing::debug!(?other, netns = %namespace.name, "a namespace's cookie is not known");
                    self.known.remove(&namespace.id);
                    continue;
                }
            };
            match self.known.insert(namespace.id, cookie) {
                Some(before) if before == cookie => continue,
                Some(_) => {
                    self.starts.remove(&namespace.id);
                    self.originals.retain(|(id, _), _| *id != namespace.id);
                }
                None => {}
            }
            let found = match maxima(namespace) {
                Ok(Some(found)) => found,
                // It has ended.
                Ok(None) => continue,
                Err(error) => {
                    tracing::debug!(%error, "a namespace's maxima are not known");
                    continue;
                }
            };
            for (direction, most) in found {
                self.adopt(namespace, direction, most);
                // With a budget it is what is left.
                if direction == Direction::Send && self.budget.is_some() {
                    continue;
                }
                let Some(change @ Change::Maximum { to, .. }) = maximum(direction, most, self.cap)
                else {
                    continue;
                };
                let outcome = self.set_maximum(namespace, direction, most, to);
                told.push(tell(&change, None, namespace.name.to_string(), outcome));
            }
        }
        told
    }

    /// Sets what send buffers may have before they are looked at, where it is far from what it should be.
    /// Not less than it was where somebody is left `alone`: it bounds whoever the kernel sizes.
    pub(super) fn start(&mut self, to: u64, alone: &HashSet<Arc<str>>) -> Vec<Told> {
        let namespaces: Vec<Namespace> = self.observer.namespaces().to_vec();
        let there: HashSet<NetnsId> = namespaces.iter().map(|namespace| namespace.id).collect();
        self.starts.retain(|id, _| there.contains(id));
        let mut told = Vec::new();
        for namespace in &namespaces {
            let before = self.starts.get(&namespace.id).copied();
            let to = match alone.contains(&namespace.name) {
                true => {
                    let key = (namespace.id, Direction::Send);
                    // It was never set: it stays.
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
            let now = match maxima(namespace) {
                Ok(Some([(_, now), _])) => now,
                // It has ended.
                Ok(None) => continue,
                Err(error) => {
                    tracing::debug!(%error, "a namespace's maxima are not known");
                    continue;
                }
            };
            let change = Change::Start { from: now, to };
            let is_others =
                self.actuators.is_some() && before.flatten().is_some_and(|set| set != now);
            let outcome = match is_others {
                true => Outcome::Failed(
                    "somebody else has set it meanwhile, and it is left to him".to_owned(),
                ),
                false => self.set_maximum(namespace, Direction::Send, now, to),
            };
            match outcome {
                Outcome::Made | Outcome::Advised => {
                    self.starts.insert(namespace.id, Some(to));
                }
                Outcome::Gone => continue,
                // It is said once, and not tried again.
                _ => {
                    self.starts.insert(namespace.id, None);
                }
            }
            told.push(tell(&change, None, namespace.name.to_string(), outcome));
        }
        told
    }

    /// Sets it; without actuators it is only said.
    fn set_maximum(
        &mut self,
        namespace: &Namespace,
        direction: Direction,
        from: u64,
        to: u64,
    ) -> Outcome {
        let Some(actuators) = &mut self.actuators else {
            return Outcome::Advised;
        };
        match actuators.maximum(namespace, direction, to) {
            Ok(true) => {}
            Ok(false) => return Outcome::Gone,
            Err(error) => return Outcome::Failed(error.to_string()),
        }
        let key = (namespace.id, direction);
        let original = *self.originals.entry(key).or_insert(from);
        if self.made.len() == MADE {
            self.made.pop_front();
        }
        self.made.push_back((direction, to, original));
        Outcome::Made
    }

    /// A namespace that came later begins with what the first one was made: at the end it has what that had.
    fn adopt(&mut self, namespace: &Namespace, direction: Direction, found: u64) {
        let is_it = |made: &&(Direction, u64, u64)| (made.0, made.1) == (direction, found);
        let (Some(actuators), Some((_, _, original))) =
            (&mut self.actuators, self.made.iter().find(is_it).copied())
        else {
            return;
        };
        if self.look == 1 || original == found {
            return;
        }
        self.originals.insert((namespace.id, direction), original);
        if let Err(error) = actuators.adopt(namespace, direction, original) {
            tracing::warn!(%error, "what a new namespace began with stays at the end");
        }
    }
}
