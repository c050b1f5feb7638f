//! The settings of a profile, in a namespace and on its interfaces.
//!
//! An interface is known by its index: it may be called otherwise by now, and another may be called as it was. Whoever opens a file of
//! settings by an interface's name, and finds after that that the interface *still* has the name, has that interface's file: the kernel
//! takes the files of a name away when an interface gives the name up, before another can have it, and files that it has taken away can be
//! neither read nor written.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;

use taut_observe::namespaces::Namespace;
use taut_sys::interface::{self, InterfaceLookup};
use taut_sys::netns;
use taut_sys::route::Family;

use super::interface_name::InterfaceName;
use super::setting_file::{SettingFile, other, value};
use super::settings::{Profile, Setting};
use super::undo::is_gone;
use crate::actuate::undo::Spaces;
use crate::actuate::{ActuateError, Actuators};
use crate::journal::{Entry, Journal, Thing};
use crate::plan::Change;
use crate::sysctl::failed;

/// Interfaces of one namespace that are set; more are left as they are.
pub(crate) const INTERFACES: usize = 1024;
/// Of all namespaces together.
pub(crate) const INTERFACES_OF_ALL: usize = 16 * INTERFACES;
/// Settings of profiles in the journal at one time; with more nothing is set.
pub(crate) const JOURNALLED: usize = 1 << 16;
/// Of both, what no other namespace than one's own may have: interfaces,
pub(crate) const OWN_INTERFACES: usize = INTERFACES;
/// and settings, which are two for each of those, and some more.
pub(crate) const OWN_JOURNALLED: usize = 4 * INTERFACES;
/// What was looked at in a namespace. Once: what somebody sets after that is his.
#[derive(Debug, Default)]
pub(crate) struct Space {
    cookie: u64,
    interfaces: HashSet<u32>,
    looked: HashSet<Setting>,
}

/// How much more may be set.
#[derive(Debug)]
pub(crate) struct Room {
    /// Interfaces,
    pub(crate) interfaces: usize,
    /// and lines of the journal that stay.
    pub(crate) entries: usize,
    /// There was none for something.
    pub(crate) is_short: bool,
}

/// A setting that is laxer than it is to be.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) change: Change,
    /// What came of changing it; `None`: it was only looked at.
    pub(crate) made: Option<Result<(), ActuateError>>,
}

/// A visit of a namespace.
struct Visit<'a> {
    profile: Profile,
    space: &'a mut Space,
    journal: Option<&'a mut Journal>,
    room: &'a mut Room,
    found: Vec<(Change, Option<Result<(), Failed>>)>,
}

/// What came of setting it.
enum Made {
    Set {
        from: i64,
        to: i64,
    },
    /// Somebody else has just done it.
    Stays,
    /// Not any more, or its interface has another name.
    NotThere,
}

/// Why a setting was not made.
enum Failed {
    Journal(io::Error),
    Setting(io::Error),
}

// === impl Space ===

impl Space {
    /// Interfaces that are looked at in it.
    pub(crate) fn interfaces(&self) -> usize {
        self.interfaces.len()
    }

    #[cfg(test)]
    pub(crate) fn full(interfaces: usize) -> Self {
        Self {
            interfaces: (1..=u32::try_from(interfaces).unwrap()).collect(),
            ..Self::default()
        }
    }
}

/// Looks at what has not been looked at in this namespace, and, with a journal, sets what is too lax, each after it is written down. Nothing
/// if the namespace is gone.
///
/// # Errors
/// [`ActuateError`]: it cannot be looked at.
pub(crate) fn visit(
    namespace: &Namespace,
    profile: Profile,
    space: &mut Space,
    journal: Option<&mut Journal>,
    room: &mut Room,
) -> Result<Vec<Found>, ActuateError> {
    let mut visit = Visit {
        profile,
        space,
        journal,
        room,
        found: Vec::new(),
    };
    let done = namespace.run(|| visit.all())?;
    let found = std::mem::take(&mut visit.found).into_iter();
    if let Some(Err(error)) = done {
        // What was set before that is told.
        tracing::debug!(%error, netns = %namespace.name, "not all of its settings were looked at");
    }
    let told = |change: Change, made: Option<Result<(), Failed>>| {
        let made = made.map(|made| {
            made.map_err(|why| match why {
                Failed::Journal(error) => ActuateError::Journal(error),
                Failed::Setting(error) => failed(namespace, &name_of(&change), error),
            })
        });
        Found { change, made }
    };
    Ok(found.map(|(change, made)| told(change, made)).collect())
}

fn name_of(change: &Change) -> String {
    match change {
        Change::Setting {
            setting, interface, ..
        } => setting.name(*interface),
        _ => String::new(),
    }
}

// === impl Visit ===

impl Visit<'_> {
    /// Called in the namespace.
    fn all(&mut self) -> io::Result<()> {
        let cookie = netns::cookie()?;
        // What the kernel calls namespaces may come again; cookies do not.
        if self.space.cookie != cookie {
            self.room.interfaces += self.space.interfaces.len();
            *self.space = Space {
                cookie,
                ..Space::default()
            };
        }
        for &setting in self.profile.of_namespace() {
            self.look_once(setting, None);
        }
        // A stranger's interfaces, for which there is no room, are not even listed.
        if self.space.interfaces.is_empty() && (self.room.interfaces == 0 || self.is_full()) {
            self.room.is_short = true;
            return Ok(());
        }
        let interfaces = interfaces()?;
        self.forget_gone(&interfaces);
        self.forget_made_anew(&interfaces);
        for (index, name) in interfaces {
            if self.is_full() {
                break;
            }
            if !self.admits(index) {
                self.room.is_short = true;
                continue;
            }
            for setting in self.profile.of_interface(index) {
                self.look_once(setting, Some(name));
            }
        }
        Ok(())
    }

    /// There was no room in the journal for something here: to look for more of it in each look would only cost.
    fn is_full(&self) -> bool {
        self.journal.is_some() && self.room.entries == 0 && self.room.is_short
    }

    fn admits(&mut self, index: u32) -> bool {
        if self.space.interfaces.contains(&index) {
            return true;
        }
        let has_room = self.space.interfaces.len() < INTERFACES && self.room.interfaces > 0;
        if has_room {
            self.room.interfaces -= 1;
            self.space.interfaces.insert(index);
        }
        has_room
    }

    /// Interfaces that are there no more: nothing of them is to be undone, and one that gets such an index later is another.
    fn forget_gone(&mut self, there: &[(u32, InterfaceName)]) {
        let there: HashSet<u32> = there.iter().map(|(index, _)| *index).collect();
        let missing = |index: &u32| !there.contains(index);
        // A list may miss one.
        let is_gone = |index: &u32| missing(index) && matches!(interface::name(*index), Ok(None));
        let gone: Vec<u32> = self.space.interfaces.extract_if(is_gone).collect();
        self.room.interfaces += gone.len();
        for index in gone {
            for setting in self.profile.of_interface(index) {
                self.forget(setting);
            }
        }
    }

    /// Settings that the kernel has taken away, while their interfaces stay (an MTU that is too small for them): those that it makes after that are others.
    fn forget_made_anew(&mut self, there: &[(u32, InterfaceName)]) {
        let names: HashMap<u32, InterfaceName> = there.iter().copied().collect();
        let has_file = |setting: Setting, index| {
            let path = setting.path(names.get(&index).copied());
            path.is_some_and(|path| path.exists())
        };
        let looked = self.space.interfaces.iter().flat_map(|&index| {
            let settings = self.profile.of_interface(index);
            settings.map(|setting| (setting, index))
        });
        let gone = looked.filter(|&(setting, index)| {
            // Of one that is listed the directory of IPv4 was there just now.
            let is_listed = setting.family() == Some(Family::V4) && names.contains_key(&index);
            self.space.looked.contains(&setting)
                && !is_listed
                && !has_file(setting, index)
                && matches!(is_gone(setting), Ok(true))
        });
        let gone: Vec<Setting> = gone.map(|(setting, _)| setting).collect();
        for setting in gone {
            self.forget(setting);
        }
    }

    /// Nothing of it is to be undone, and another in its place is looked at.
    fn forget(&mut self, setting: Setting) {
        self.space.looked.remove(&setting);
        let thing = Thing::Setting(self.space.cookie, setting);
        let undone = self.journal.as_mut().map(|journal| journal.undone(&thing));
        if let Some(Err(error)) = undone {
            tracing::warn!(%error, "the journal goes on about an interface's settings that are gone");
        }
    }

    fn look_once(&mut self, setting: Setting, interface: Option<InterfaceName>) {
        if self.space.looked.contains(&setting) {
            return;
        }
        match self.look(setting, interface) {
            // It is not there: a kernel without it, or an interface that is coming, going, or being called otherwise.
            Ok(false) => {}
            Ok(true) => {
                self.space.looked.insert(setting);
            }
            // Perhaps in the next look.
            Err(error) => {
                tracing::debug!(%error, setting = %setting.name(interface), "it cannot be looked at");
            }
        }
    }

    /// Whether it was there.
    fn look(&mut self, setting: Setting, interface: Option<InterfaceName>) -> io::Result<bool> {
        let Some(open) = SettingFile::open(setting, interface, false)? else {
            return Ok(false);
        };
        let Some(from) = open.number()? else {
            return Ok(false);
        };
        let Some(to) = setting.tightened(from) else {
            return Ok(true);
        };
        let change = |from, to| Change::Setting {
            setting,
            interface,
            from,
            to,
        };
        let Some(journal) = &mut self.journal else {
            self.found.push((change(from, to), None));
            return Ok(true);
        };
        let thing = Thing::Setting(self.space.cookie, setting);
        if journal.entry(&thing).is_some() {
            // It was looked at before: its namespace was not seen for a while. Or it could not be undone.
            return Ok(true);
        }
        if self.room.entries == 0 {
            self.room.is_short = true;
            return Ok(false);
        }
        match make(&thing, setting, interface, journal) {
            Ok(Made::Set { from, to }) => {
                self.room.entries -= 1;
                self.found.push((change(from, to), Some(Ok(()))));
            }
            Ok(Made::Stays) => {}
            Ok(Made::NotThere) => return Ok(false),
            Err(failed) => self.found.push((change(from, to), Some(Err(failed)))),
        }
        Ok(true)
    }
}

/// Writes it down, and sets it.
fn make(
    thing: &Thing,
    setting: Setting,
    interface: Option<InterfaceName>,
    journal: &mut Journal,
) -> Result<Made, Failed> {
    let Some(open) = SettingFile::open(setting, interface, true).map_err(Failed::Setting)? else {
        return Ok(Made::NotThere);
    };
    // The other one first: if it is changed between the two, it has another value in the end, and this is left to whoever has changed it.
    let other = other(setting).map_err(Failed::Setting)?;
    let Some(from) = open.number().map_err(Failed::Setting)? else {
        return Ok(Made::NotThere);
    };
    let Some(to) = setting.tightened(from) else {
        return Ok(Made::Stays);
    };
    let entry = Entry {
        thing: thing.clone(),
        before: value(from, other.as_deref()),
        after: value(to, other.as_deref()),
        earlier: None,
        largest: 0,
    };
    journal.note(entry).map_err(Failed::Journal)?;
    let written = open.write(&to.to_string());
    if !matches!(written, Ok(true)) {
        // It is not ours to undo.
        journal.undone(thing).map_err(Failed::Journal)?;
    }
    match written {
        Ok(true) => Ok(Made::Set { from, to }),
        Ok(false) => Ok(Made::NotThere),
        Err(error) => Err(Failed::Setting(error)),
    }
}

/// The interfaces of the calling thread's namespace that have settings, one more than may be set at most.
fn interfaces() -> io::Result<Vec<(u32, InterfaceName)>> {
    let asks = InterfaceLookup::open()?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/sys/net/ipv4/conf")? {
        let Some(name) = InterfaceName::new(entry?.file_name().as_bytes()) else {
            continue;
        };
        // One that has gone since is none.
        if let Some(index) = asks.index(&CString::new(name.as_bytes())?)? {
            found.push((index, name));
        }
        if found.len() > INTERFACES {
            break;
        }
    }
    Ok(found)
}

// === impl Actuators ===

impl Actuators {
    /// How many settings of profiles the journal has: of the namespace with this cookie, and of others.
    pub(crate) fn settings(&self, own: Option<u64>) -> [usize; 2] {
        let entries = self.journal().entries();
        let netns = entries.filter_map(|entry| settings_of(&entry.thing));
        netns.fold([0, 0], |[of_own, of_others], netns| {
            match Some(netns) == own {
                true => [of_own + 1, of_others],
                false => [of_own, of_others + 1],
            }
        })
    }

    /// What the journal has of namespaces that are gone says nothing.
    pub(crate) fn forget_gone_namespaces(&mut self) {
        let spaces = Spaces::now();
        self.forget_namespaces(|cookie| matches!(spaces.get(cookie), Ok(None)));
    }

    /// The same of those that are known to be gone.
    pub(crate) fn forget_namespaces(&mut self, is_gone: impl Fn(u64) -> bool) {
        let entries = self.journal().entries();
        let gone = entries.filter(|entry| entry.thing.netns().is_some_and(&is_gone));
        let gone: Vec<Thing> = gone.map(|entry| entry.thing.clone()).collect();
        for thing in gone {
            if let Err(error) = self.journal_mut().undone(&thing) {
                tracing::warn!(%error, "the journal goes on about a namespace that is gone");
            }
        }
    }
}

/// The namespace of which this is a profile's setting.
fn settings_of(thing: &Thing) -> Option<u64> {
    match thing {
        Thing::Setting(cookie, _) => Some(*cookie),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
