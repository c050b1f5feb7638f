//! Namespaces that have ended: what the journal has of them says nothing, and leaves it, so that it does not grow where namespaces come and go.
//!
//! The kernel does not tell whether a namespace is there: one without a name and a process may live by a file that has it open, and be entered again. So
//! one is taken to have ended only after a long while, or when another has the place that it had.

use std::collections::{HashMap, HashSet};

use taut_observe::namespaces::Namespace;
use taut_sys::netns::{self, NetnsId};

use crate::actuate::Actuators;

/// Whole looks in which a namespace was missing before what the journal has of it is forgotten.
pub(crate) const GONE: u32 = 60;
/// Looks between two in which all namespaces are asked who they are: another may have come in the place of one.
const ANEW: u64 = 60;

/// The namespaces that were there, each with its cookie and the whole looks in which it was missing.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    spaces: HashMap<NetnsId, (u64, u32)>,
    look: u64,
}

// === impl Ended ===

impl Ended {
    /// To be called in each look, before something is changed. `is_whole`: there are no others than these.
    pub(crate) fn look(
        &mut self,
        namespaces: &[Namespace],
        is_whole: bool,
        actuators: &mut Actuators,
    ) {
        let mut gone = HashSet::new();
        let asks_all = self.look.is_multiple_of(ANEW);
        self.look += 1;
        for namespace in namespaces {
            let known = self.spaces.get_mut(&namespace.id);
            if let Some((_, missing)) = known {
                *missing = 0;
                if !asks_all {
                    continue;
                }
            }
            // One that cannot be entered is one in which nothing is changed.
            let Ok(Some(Ok(cookie))) = namespace.run(netns::cookie) else {
                continue;
            };
            let before = self.spaces.insert(namespace.id, (cookie, 0));
            gone.extend(before.map(|(before, _)| before).filter(|b| *b != cookie));
        }
        if is_whole {
            let there: HashSet<NetnsId> = namespaces.iter().map(|namespace| namespace.id).collect();
            let ended = self.spaces.extract_if(|id, (_, missing)| {
                *missing += u32::from(!there.contains(id));
                *missing >= GONE
            });
            gone.extend(ended.map(|(_, (cookie, _))| cookie));
        }
        if !gone.is_empty() {
            actuators.forget_namespaces(|cookie| gone.contains(&cookie));
        }
    }
}

#[cfg(test)]
mod tests {
    use taut_observe::namespaces;
    use taut_sys::netns::Netns;

    use super::*;
    use crate::journal::{Entry, Journal, Thing, Value};
    use crate::profile::settings::Setting;
    use crate::routes::message::Name;

    /// It goes with this.
    struct Host(Netns);

    impl Host {
        fn new(name: &str) -> Self {
            let name = format!("taut-tune-{}-ended-{name}", std::process::id());
            Self(Netns::create(&name).unwrap())
        }

        fn namespace(&self) -> Namespace {
            namespaces::named(self.0.name()).unwrap()
        }

        fn cookie(&self) -> u64 {
            self.0.run(netns::cookie).unwrap().unwrap()
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = Netns::delete(self.0.name());
        }
    }

    /// All that the journal can have of a namespace.
    fn things(netns: u64) -> [Thing; 5] {
        [
            Thing::SendMaximum(netns),
            Thing::ReceiveMaximum(netns),
            Thing::Setting(netns, Setting::SynCookies),
            Thing::Setting(netns, Setting::InterfaceRedirects(1)),
            route(netns),
        ]
    }

    fn route(netns: u64) -> Thing {
        let name = Name {
            destination: std::net::Ipv4Addr::UNSPECIFIED.into(),
            length: 0,
            tos: 0,
            priority: 0,
        };
        Thing::Route { netns, name }
    }

    fn actuators(of: &[u64]) -> (Actuators, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::free(&dir.path().join("journal")).unwrap();
        let buffer = Thing::SendBuffer(1);
        let things = of.iter().flat_map(|&netns| things(netns)).chain([buffer]);
        for thing in things {
            let entry = Entry {
                thing,
                before: Value::Text("1".to_owned()),
                after: Value::Text("0".to_owned()),
                earlier: None,
                largest: 0,
            };
            journal.note(entry).unwrap();
        }
        (Actuators::new(journal), dir)
    }

    /// Of how many things of this namespace the journal says something.
    fn has(actuators: &Actuators, netns: u64) -> usize {
        let entries = actuators.journal().entries();
        entries.filter(|e| e.thing.netns() == Some(netns)).count()
    }

    #[test]
    fn all_that_was_changed_in_a_namespace_that_has_ended_leaves_the_journal() {
        let (goes, stays) = (Host::new("goes"), Host::new("stays"));
        let (gone, kept) = (goes.cookie(), stays.cookie());
        let (mut actuators, _dir) = actuators(&[gone, kept]);
        let there = [stays.namespace()];
        let both = [goes.namespace(), stays.namespace()];
        drop(goes);
        let mut ended = Ended::default();
        let id = both[0].id;
        ended.spaces.insert(id, (gone, 0));
        for _ in 1..GONE {
            ended.look(&there, true, &mut actuators);
            // One that is missing in a list that is not whole may be there.
            ended.look(&there, false, &mut actuators);
        }
        assert_eq!((has(&actuators, gone), has(&actuators, kept)), (5, 5));
        ended.look(&there, true, &mut actuators);
        assert_eq!((has(&actuators, gone), has(&actuators, kept)), (0, 5));
        assert_eq!(ended.spaces.len(), 1);
        assert_eq!(actuators.journal().entries().count(), 6);
    }

    #[test]
    fn a_namespace_that_is_seen_again_has_not_ended() {
        let (host, other) = (Host::new("again"), Host::new("other"));
        let cookie = host.cookie();
        let (mut actuators, _dir) = actuators(&[cookie]);
        let (both, one) = ([host.namespace(), other.namespace()], [other.namespace()]);
        let mut ended = Ended::default();
        for _ in 0..3 {
            ended.look(&both, true, &mut actuators);
            for _ in 1..GONE {
                ended.look(&one, true, &mut actuators);
            }
        }
        assert_eq!(has(&actuators, cookie), 5);
    }

    #[test]
    fn a_namespace_in_whose_place_is_another_has_ended() {
        let host = Host::new("place");
        let (mut actuators, _dir) = actuators(&[u64::MAX, host.cookie()]);
        let mut ended = Ended::default();
        // The kernel gives the same number again.
        ended.spaces.insert(host.namespace().id, (u64::MAX, 0));
        ended.look(&[host.namespace()], false, &mut actuators);
        assert_eq!(has(&actuators, u64::MAX), 0);
        assert_eq!(has(&actuators, host.cookie()), 5);
    }

    #[test]
    fn a_full_journal_lets_go_of_all_that_is_gone() {
        let host = Host::new("full");
        let (mut actuators, _dir) = actuators(&[u64::MAX, host.cookie()]);
        actuators.forget_gone_namespaces();
        assert_eq!(has(&actuators, u64::MAX), 0);
        assert_eq!(has(&actuators, host.cookie()), 5);
    }
}
