//! Visits all namespaces in each scan, and examines the settings of a profile that were not
//! examined before.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use taut_observe::namespaces::Namespace;
use taut_sys::netns::{self, NetnsId};

use super::settings::Profile;
use super::visit::{LaxSetting, MAX_INTERFACES, Room, VisitedNamespace, visit};
use crate::journal::{Journal, Target};
use crate::namespaces::ended::forget_ended_namespaces;

/// The maximum number of interfaces to examine in all namespaces.
const MAX_ALL_INTERFACES: usize = 16 * MAX_INTERFACES;
/// The maximum number of settings in the journal at one time; beyond it, no setting is changed.
const MAX_SETTINGS: usize = 1 << 16;
/// The number of interfaces that are reserved for this program's own namespace.
const OWN_INTERFACES: usize = MAX_INTERFACES;
/// The number of journal entries that are reserved for settings of this program's own namespace:
/// two for each interface, and some more.
const OWN_SETTINGS: usize = 4 * MAX_INTERFACES;
/// The number of scans after which a missing namespace is forgotten.
const MISSING_SCANS: u32 = 5;
/// The number of scans between two searches of a full journal for ended namespaces.
const SWEEP_SCANS: u64 = 60;

/// The examined settings of all namespaces.
#[derive(Debug)]
pub(crate) struct ProfileWatch {
    profile: Profile,
    /// The visited namespaces, and the number of scans that have missed each since.
    namespaces: HashMap<NetnsId, (VisitedNamespace, u32)>,
    /// The next scan that searches a full journal.
    next_sweep: u64,
    scans: u64,
}

/// The result of a scan.
#[derive(Debug, Default)]
pub(crate) struct ProfileScan {
    /// Settings that are too lax, with the name of their namespace.
    pub(crate) lax: Vec<(String, LaxSetting)>,
    /// Namespaces with settings that did not fit.
    pub(crate) short: Vec<Arc<str>>,
}

// === impl ProfileWatch ===

impl ProfileWatch {
    pub(crate) fn new(profile: Profile) -> Self {
        Self {
            profile,
            namespaces: HashMap::new(),
            next_sweep: 0,
            scans: 0,
        }
    }

    /// Examines all settings that were not examined before. With a journal, changes lax settings.
    pub(crate) fn scan(
        &mut self,
        namespaces: &[Namespace],
        mut journal: Option<&mut Journal>,
        ends: impl Fn() -> bool,
    ) -> ProfileScan {
        self.scans += 1;
        let there: HashSet<NetnsId> = namespaces.iter().map(|namespace| namespace.id).collect();
        self.namespaces.retain(|id, (_, missing)| {
            *missing = if there.contains(id) { 0 } else { *missing + 1 };
            *missing < MISSING_SCANS
        });
        let own = namespaces.iter().find(|namespace| namespace.is_own());
        let entries = self.room_in_journal(own, journal.as_deref_mut());
        // This program's own namespace has its own room; all others share another.
        let [mut room_of_own, mut room_of_others] =
            [(true, entries[0]), (false, entries[1])].map(|(is_own, entries)| {
                let visited = self.namespaces.iter();
                let of_kind =
                    visited.filter(|(id, _)| own.is_some_and(|own| own.id == **id) == is_own);
                let interfaces: usize = of_kind.map(|(_, (visited, _))| visited.interfaces()).sum();
                let limit = match is_own {
                    true => OWN_INTERFACES,
                    false => MAX_ALL_INTERFACES - OWN_INTERFACES,
                };
                Room {
                    interfaces: limit.saturating_sub(interfaces),
                    entries,
                    is_short: false,
                }
            });
        let mut scan = ProfileScan::default();
        for namespace in namespaces {
            if ends() {
                break;
            }
            let (visited, _) = self.namespaces.entry(namespace.id).or_default();
            let room = match namespace.is_own() {
                true => &mut room_of_own,
                false => &mut room_of_others,
            };
            room.is_short = false;
            match visit(
                namespace,
                self.profile,
                visited,
                journal.as_deref_mut(),
                room,
            ) {
                Ok(lax) => {
                    let lax = lax.into_iter();
                    scan.lax
                        .extend(lax.map(|lax| (namespace.name.to_string(), lax)));
                }
                Err(error) => tracing::debug!(%error, "a namespace's settings cannot be examined"),
            }
            if room.is_short {
                scan.short.push(Arc::clone(&namespace.name));
            }
        }
        scan
    }

    /// Returns how many more settings the journal may contain: for this program's own namespace,
    /// and for others.
    fn room_in_journal(
        &mut self,
        own: Option<&Namespace>,
        journal: Option<&mut Journal>,
    ) -> [usize; 2] {
        let Some(journal) = journal else {
            return [0; 2];
        };
        let cookie = own.and_then(|own| own.run(netns::cookie).ok()??.ok());
        let room = |journal: &Journal| {
            let [of_own, of_others] = count_settings(journal, cookie);
            [
                OWN_SETTINGS.saturating_sub(of_own),
                (MAX_SETTINGS - OWN_SETTINGS).saturating_sub(of_others),
            ]
        };
        let now = room(journal);
        if !now.contains(&0) || self.scans < self.next_sweep {
            return now;
        }
        self.next_sweep = self.scans + SWEEP_SCANS;
        forget_ended_namespaces(journal);
        room(journal)
    }
}

/// Counts the settings in the journal, for the namespace with the cookie `own` and for all others.
pub(super) fn count_settings(journal: &Journal, own: Option<u64>) -> [usize; 2] {
    let namespaces = journal.entries().filter_map(|entry| match entry.target {
        Target::Setting(cookie, _) => Some(cookie),
        _ => None,
    });
    namespaces.fold([0, 0], |[of_own, of_others], netns| {
        match Some(netns) == own {
            true => [of_own + 1, of_others],
            false => [of_own, of_others + 1],
        }
    })
}

#[cfg(test)]
mod tests {
    use taut_observe::namespaces;

    use super::*;
    use crate::actuate::Actuators;
    use crate::journal::{Entry, Value};
    use crate::plan::Change;
    use crate::profile::settings::Setting;
    use crate::testing::TestNetns;

    fn redirects(cookie: u64, interface: u32) -> Entry {
        let target = Target::Setting(cookie, Setting::InterfaceRedirects(interface));
        let text = |text: &str| Value::Text(text.to_owned());
        Entry::new(target, text("1"), text("0"))
    }

    #[test]
    fn a_full_journal_forgets_namespaces_that_have_ended_and_no_others() {
        let host = TestNetns::new("full-journal");
        let name = host.name().to_owned();
        let here = host.cookie();
        let namespace = namespaces::named(&name).unwrap();
        for (cookie, is_short) in [(here, true), (u64::MAX, false)] {
            let dir = tempfile::tempdir().unwrap();
            let mut journal = Journal::free(&dir.path().join("journal")).unwrap();
            for index in 0..MAX_SETTINGS {
                let index = u32::try_from(index).unwrap();
                journal.note(redirects(cookie, 1000 + index)).unwrap();
            }
            let mut watch = ProfileWatch::new(Profile::Security);
            let scan = watch.scan(std::slice::from_ref(&namespace), Some(&mut journal), || {
                false
            });
            let short: &[&str] = if is_short { &[&name] } else { &[] };
            assert!(
                scan.short
                    .iter()
                    .map(|netns| &**netns)
                    .eq(short.iter().copied())
            );
            assert_eq!(scan.lax.is_empty(), is_short);
            let kept = if is_short { MAX_SETTINGS } else { 0 };
            assert_eq!(count_settings(&journal, None), [0, kept + scan.lax.len()]);
        }
    }

    #[test]
    fn other_namespaces_take_no_room_from_the_own_one() {
        let [own, stranger, full] = ["room-own", "room-stranger", "room-full"].map(TestNetns::new);
        let of_stranger = stranger.cookie();
        // The own namespace of a thread in it.
        let scan = own.run(|| {
            let dir = tempfile::tempdir().unwrap();
            let mut journal = Journal::free(&dir.path().join("journal")).unwrap();
            for index in 0..MAX_SETTINGS - OWN_SETTINGS {
                let index = u32::try_from(index).unwrap();
                journal.note(redirects(of_stranger, 1000 + index)).unwrap();
            }
            let mut watch = ProfileWatch::new(Profile::Security);
            let full = namespaces::named(full.name()).unwrap();
            let most = MAX_ALL_INTERFACES - OWN_INTERFACES;
            watch
                .namespaces
                .insert(full.id, (VisitedNamespace::full(most), 0));
            let namespaces = [
                namespaces::own().unwrap(),
                namespaces::named(stranger.name()).unwrap(),
            ];
            let scan = watch.scan(&namespaces, Some(&mut journal), || false);
            Actuators::new(journal, false).undo();
            scan
        });
        let scan = scan.unwrap();
        assert!(scan.lax.iter().all(|(netns, _)| netns == "-"));
        let is_of_interface = |lax: &LaxSetting| match lax.change {
            Change::Setting { setting, .. } => setting.interface().is_some(),
            _ => false,
        };
        assert!(scan.lax.iter().any(|(_, lax)| is_of_interface(lax)));
        assert!(
            scan.short
                .iter()
                .map(|netns| &**netns)
                .eq([stranger.name()])
        );
    }
}
