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

#[cfg(test)]
mod tests {
    use taut_observe::namespaces;
    use taut_sys::netns::{self, Netns};

    use super::*;
    use crate::journal::{Entry, Journal, Thing, Value};
    use crate::profile::Setting;

    /// It goes with this.
    struct Host(Netns);

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = Netns::delete(self.0.name());
        }
    }

    #[test]
    fn a_full_journal_lets_go_of_what_is_gone_and_of_nothing_else() {
        let name = format!("taut-tune-{}-full-journal", std::process::id());
        let host = Host(Netns::create(&name).unwrap());
        let here = host.0.run(netns::cookie).unwrap().unwrap();
        let namespace = namespaces::named(&name).unwrap();
        for (cookie, is_short) in [(here, true), (u64::MAX, false)] {
            let dir = tempfile::tempdir().unwrap();
            let journal = Journal::free(&dir.path().join("journal")).unwrap();
            let mut actuators = Actuators::new(journal);
            for index in 0..JOURNALLED {
                let index = u32::try_from(index).unwrap();
                let entry = Entry {
                    thing: Thing::Setting(cookie, Setting::InterfaceRedirects(1000 + index)),
                    before: Value::Text("1".to_owned()),
                    after: Value::Text("0".to_owned()),
                    earlier: None,
                    largest: 0,
                };
                actuators.journal_mut().note(entry).unwrap();
            }
            let mut watch = Watch::new(Profile::Security);
            let seen = watch.look(
                std::slice::from_ref(&namespace),
                Some(&mut actuators),
                || false,
            );
            assert_eq!(seen.is_short, is_short);
            assert_eq!(seen.found.is_empty(), is_short);
            let kept = if is_short { JOURNALLED } else { 0 };
            assert_eq!(actuators.settings(), kept + seen.found.len());
        }
    }
}
