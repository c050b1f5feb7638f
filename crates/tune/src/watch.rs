//! Sees to the settings of a profile, in each look, where something is there that was not there before.

use std::collections::{HashMap, HashSet};

use taut_observe::namespaces::Namespace;
use taut_sys::netns::NetnsId;

use crate::actuate::Actuators;
use crate::actuate::profile::{Found, INTERFACES_OF_ALL, JOURNALLED, Room, Space, visit};
use crate::profile::Profile;

/// Looks after which a namespace that is not seen is taken to have ended.
const ENDED: u32 = 5;
/// Looks between two that go through the journal for what is gone, when it is full.
const SWEEP: u64 = 60;

/// What was looked at.
#[derive(Debug)]
pub(crate) struct Watch {
    profile: Profile,
    /// And in how many looks it was missing.
    spaces: HashMap<NetnsId, (Space, u32)>,
    /// When the journal is to be gone through again.
    sweep: u64,
    look: u64,
}

/// What a look came to.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Where, and what.
    pub(crate) found: Vec<(String, Found)>,
    /// There was no room for some.
    pub(crate) is_short: bool,
}

// === impl Watch ===

impl Watch {
    pub(crate) fn new(profile: Profile) -> Self {
        Self {
            profile,
            spaces: HashMap::new(),
            sweep: 0,
            look: 0,
        }
    }

    /// Looks at all that was not looked at; with actuators sets what is too lax.
    pub(crate) fn look(
        &mut self,
        namespaces: &[Namespace],
        mut actuators: Option<&mut Actuators>,
        ends: impl Fn() -> bool,
    ) -> Seen {
        self.look += 1;
        let there: HashSet<NetnsId> = namespaces.iter().map(|namespace| namespace.id).collect();
        self.spaces.retain(|id, (_, missing)| {
            *missing = if there.contains(id) { 0 } else { *missing + 1 };
            *missing < ENDED
        });
        let interfaces: usize = self.spaces.values().map(|(s, _)| s.interfaces()).sum();
        let mut room = Room {
            interfaces: INTERFACES_OF_ALL.saturating_sub(interfaces),
            entries: self.entries(actuators.as_deref_mut()),
            is_short: false,
        };
        let mut seen = Seen::default();
        for namespace in namespaces {
            if ends() {
                break;
            }
            let (space, _) = self.spaces.entry(namespace.id).or_default();
            let journal = actuators.as_deref_mut().map(Actuators::journal_mut);
            match visit(namespace, self.profile, space, journal, &mut room) {
                Ok(found) => {
                    let found = found.into_iter();
                    seen.found
                        .extend(found.map(|found| (namespace.name.to_string(), found)));
                }
                Err(error) => tracing::debug!(%error, "a namespace's settings are not known"),
            }
        }
        seen.is_short = room.is_short;
        seen
    }

    /// How many more the journal may have.
    fn entries(&mut self, actuators: Option<&mut Actuators>) -> usize {
        let Some(actuators) = actuators else { return 0 };
        let has_room = actuators.settings() < JOURNALLED;
        if !has_room && self.look >= self.sweep {
            self.sweep = self.look + SWEEP;
            actuators.forget_gone_namespaces();
        }
        JOURNALLED.saturating_sub(actuators.settings())
    }
}
