//! Sees to the settings of a profile, in each look, where something is there that was not there before.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use taut_observe::namespaces::Namespace;
use taut_sys::netns::{self, NetnsId};

use crate::actuate::Actuators;
use crate::profile::settings::Profile;
use crate::profile::visit::{
    Found, INTERFACES_OF_ALL, JOURNALLED, OWN_INTERFACES, OWN_JOURNALLED, Room, Space, visit,
};

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
    /// Where there was no room for some.
    pub(crate) short: Vec<Arc<str>>,
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
        let own = namespaces.iter().find(|namespace| namespace.is_own());
        let entries = self.entries(own, actuators.as_deref_mut());
        // What strangers have takes nothing from the own namespace, nor the other way round.
        let [mut room_of_own, mut room_of_others] =
            [(true, entries[0]), (false, entries[1])].map(|(is_own, entries)| {
                let spaces = self.spaces.iter();
                let those =
                    spaces.filter(|(id, _)| own.is_some_and(|own| own.id == **id) == is_own);
                let interfaces: usize = those.map(|(_, (space, _))| space.interfaces()).sum();
                let most = match is_own {
                    true => OWN_INTERFACES,
                    false => INTERFACES_OF_ALL - OWN_INTERFACES,
                };
                Room {
                    interfaces: most.saturating_sub(interfaces),
                    entries,
                    is_short: false,
                }
            });
        let mut seen = Seen::default();
        for namespace in namespaces {
            if ends() {
                break;
            }
            let (space, _) = self.spaces.entry(namespace.id).or_default();
            let journal = actuators.as_deref_mut().map(Actuators::journal_mut);
            let room = match namespace.is_own() {
                true => &mut room_of_own,
                false => &mut room_of_others,
            };
            room.is_short = false;
            match visit(namespace, self.profile, space, journal, room) {
                Ok(found) => {
                    let found = found.into_iter();
                    seen.found
                        .extend(found.map(|found| (namespace.name.to_string(), found)));
                }
                Err(error) => tracing::debug!(%error, "a namespace's settings are not known"),
            }
            if room.is_short {
                seen.short.push(Arc::clone(&namespace.name));
            }
        }
        seen
    }

    /// How many more the journal may have: of the own namespace, and of others.
    fn entries(
        &mut self,
        own: Option<&Namespace>,
        actuators: Option<&mut Actuators>,
    ) -> [usize; 2] {
        let Some(actuators) = actuators else {
            return [0; 2];
        };
        let cookie = own.and_then(|own| own.run(netns::cookie).ok()??.ok());
        let room = |actuators: &Actuators| {
            let [of_own, of_others] = actuators.settings(cookie);
            [
                OWN_JOURNALLED.saturating_sub(of_own),
                (JOURNALLED - OWN_JOURNALLED).saturating_sub(of_others),
            ]
        };
        let now = room(actuators);
        if !now.contains(&0) || self.look < self.sweep {
            return now;
        }
        self.sweep = self.look + SWEEP;
        actuators.forget_gone_namespaces();
        room(actuators)
    }
}

#[cfg(test)]
mod tests {
    use taut_observe::namespaces;
    use taut_sys::netns::{self, Netns};

    use super::*;
    use crate::journal::{Entry, Journal, Thing, Value};
    use crate::plan::Change;
    use crate::profile::settings::Setting;

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
            let short: &[&str] = if is_short { &[&name] } else { &[] };
            assert!(
                seen.short
                    .iter()
                    .map(|netns| &**netns)
                    .eq(short.iter().copied())
            );
            assert_eq!(seen.found.is_empty(), is_short);
            let kept = if is_short { JOURNALLED } else { 0 };
            assert_eq!(actuators.settings(None), [0, kept + seen.found.len()]);
        }
    }
    #[test]
    fn strangers_take_no_room_from_the_own_namespace() {
        let name = |which: &str| format!("taut-tune-{}-room-{which}", std::process::id());
        let [own, stranger, full] =
            ["own", "stranger", "full"].map(|which| Host(Netns::create(&name(which)).unwrap()));
        let of_stranger = stranger.0.run(netns::cookie).unwrap().unwrap();
        // There it is the own one.
        let seen = own.0.run(|| {
            let dir = tempfile::tempdir().unwrap();
            let mut journal = Journal::free(&dir.path().join("journal")).unwrap();
            for index in 0..JOURNALLED - OWN_JOURNALLED {
                let index = u32::try_from(index).unwrap();
                let entry = Entry {
                    thing: Thing::Setting(of_stranger, Setting::InterfaceRedirects(1000 + index)),
                    before: Value::Text("1".to_owned()),
                    after: Value::Text("0".to_owned()),
                    earlier: None,
                    largest: 0,
                };
                journal.note(entry).unwrap();
            }
            let mut actuators = Actuators::new(journal);
            let mut watch = Watch::new(Profile::Security);
            let full = namespaces::named(full.0.name()).unwrap();
            let most = INTERFACES_OF_ALL - OWN_INTERFACES;
            watch.spaces.insert(full.id, (Space::full(most), 0));
            let namespaces = [
                namespaces::own().unwrap(),
                namespaces::named(stranger.0.name()).unwrap(),
            ];
            let seen = watch.look(&namespaces, Some(&mut actuators), || false);
            actuators.undo();
            seen
        });
        let seen = seen.unwrap();
        assert!(seen.found.iter().all(|(netns, _)| netns == "-"));
        let is_of_interface = |found: &Found| match found.change {
            Change::Setting { setting, .. } => setting.interface().is_some(),
            _ => false,
        };
        assert!(seen.found.iter().any(|(_, found)| is_of_interface(found)));
        assert!(
            seen.short
                .iter()
                .map(|netns| &**netns)
                .eq([stranger.0.name()])
        );
    }
}
