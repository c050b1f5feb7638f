//! The settings of a profile, in a namespace and on its interfaces.
//!
//! An interface is known by its index: it may be called otherwise by now, and another may be called as it was. Whoever opens a file of
//! settings by an interface's name, and finds after that that the interface *still* has the name, has that interface's file: the kernel
//! takes the files of a name away when an interface gives the name up, before another can have it, and files that it has taken away can be
//! neither read nor written.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use taut_observe::namespaces::Namespace;
use taut_sys::interface::{self, InterfaceLookup};
use taut_sys::netns;
use taut_sys::route::Family;

use crate::actuate::undo::{Spaces, Undo};
use crate::actuate::{ActuateError, Actuators};
use crate::journal::{Entry, Journal, Thing, Value};
use crate::plan::Change;
use crate::profile::settings::{InterfaceName, Profile, Setting};
use crate::sysctl::{failed, same};

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
/// Between looks for interfaces' files, when they are not there while the interfaces are: while one is being called otherwise it has none. For
/// all interfaces of a namespace together.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
    Duration::from_millis(16),
    Duration::from_millis(32),
];
/// Undoing in a namespace that is not one's own takes no longer: what remains stays in the journal.
const VISIT_MAX: Duration = Duration::from_secs(1);
/// Nor does it in all of them together, so that whoever has sent SIGTERM need not send SIGKILL (systemd waits for 90 s).
const VISITS_MAX: Duration = Duration::from_secs(60);

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
        let Some(open) = Open::new(setting, interface, false)? else {
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
    let Some(open) = Open::new(setting, interface, true).map_err(Failed::Setting)? else {
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

fn value(number: i64, other: Option<&str>) -> Value {
    let text = number.to_string();
    match other {
        None => Value::Text(text),
        Some(other) => Value::Beside {
            text,
            other: other.to_owned(),
        },
    }
}

/// What the setting is with which the kernel changes this one.
fn other(setting: Setting) -> io::Result<Option<String>> {
    let text = setting.beside().map(fs::read_to_string).transpose()?;
    Ok(text.map(|text| text.trim_end().to_owned()))
}

/// A setting's file, which is of the interface that it should be of.
struct Open(File);

// === impl Open ===

impl Open {
    /// `None`: it is not there, or the interface has another name.
    fn new(
        setting: Setting,
        interface: Option<InterfaceName>,
        writes: bool,
    ) -> io::Result<Option<Self>> {
        let Some(path) = setting.path(interface) else {
            return Ok(None);
        };
        let Some(file) = there(OpenOptions::new().read(true).write(writes).open(path))? else {
            return Ok(None);
        };
        if let (Some(index), Some(name)) = (setting.interface(), interface)
            && interface::name(index)?.is_none_or(|now| now.as_bytes() != name.as_bytes())
        {
            return Ok(None);
        }
        Ok(Some(Self(file)))
    }

    /// What it is; `None`: it is not there any more.
    fn number(&self) -> io::Result<Option<i64>> {
        let mut text = [0; 64];
        let Some(length) = there(self.0.read_at(&mut text, 0))? else {
            return Ok(None);
        };
        let text = std::str::from_utf8(text.get(..length).unwrap_or_default());
        let number = text.ok().and_then(|text| text.trim().parse().ok());
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(io::Error::other("it is no number")),
        }
    }

    /// `false`: it is not there any more.
    fn write(&self, text: &str) -> io::Result<bool> {
        Ok(there(self.0.write_at(text.as_bytes(), 0))?.is_some())
    }
}

/// `None`: what it is about is not there.
fn there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(it) => Ok(Some(it)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
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

/// How long undoing in namespaces that are not one's own may still take.
pub(crate) struct Deadline(Duration);

// === impl Deadline ===

impl Deadline {
    /// Of all of them.
    pub(crate) fn new() -> Self {
        Self(VISITS_MAX)
    }

    /// Of this one, from now on; nothing: one's own is undone, however long it takes.
    fn of(&self, namespace: &Namespace, now: Instant) -> Option<Instant> {
        (!namespace.is_own()).then(|| now + VISIT_MAX.min(self.0))
    }
}

/// Undoes settings of one namespace, whatever has happened since, in one visit: one for each of `entries`.
pub(crate) fn undo(
    spaces: &Spaces,
    cookie: u64,
    entries: &[Entry],
    deadline: &mut Deadline,
) -> Vec<Result<Undo, ActuateError>> {
    let of = |entry: &Entry, error: io::Error| ActuateError::Setting {
        name: setting_of(entry).map_or_else(String::new, |setting| setting.name(None)),
        netns: format!("with cookie {cookie}"),
        error,
    };
    let all = |error: &str| {
        let error = |entry| Err(of(entry, io::Error::other(error)));
        entries.iter().map(error).collect()
    };
    let namespace = match spaces.get(cookie) {
        Ok(Some(namespace)) => namespace,
        Ok(None) => return entries.iter().map(|_| Ok(Undo::Gone)).collect(),
        Err(error) => return all(error),
    };
    let begins = Instant::now();
    let until = deadline.of(namespace, begins);
    if until == Some(begins) {
        return all(LATE);
    }
    let visit = || -> io::Result<Option<Vec<_>>> {
        Ok((netns::cookie()? == cookie)
            .then(|| together(entries, until, undo_once, std::thread::sleep)))
    };
    let ran = namespace.run(visit);
    if until.is_some() {
        deadline.0 = deadline.0.saturating_sub(begins.elapsed());
    }
    match ran {
        Ok(Some(Ok(Some(undone)))) => {
            let told = |(entry, undo): (&Entry, io::Result<Undo>)| undo.map_err(|e| of(entry, e));
            entries.iter().zip(undone).map(told).collect()
        }
        Ok(Some(Ok(None))) => entries.iter().map(|_| Ok(Undo::Gone)).collect(),
        Ok(Some(Err(error))) => all(&error.to_string()),
        Ok(None) => all("it cannot be entered any more"),
        Err(error) => all(&error.to_string()),
    }
}

/// Why something stays in the journal.
const LATE: &str = "there was no time for more of this namespace: run `taut tune --undo` again";

fn setting_of(entry: &Entry) -> Option<Setting> {
    match entry.thing {
        Thing::Setting(_, setting) => Some(setting),
        _ => None,
    }
}

/// Undoes each. Those of which nothing comes just now are waited for together.
fn together(
    entries: &[Entry],
    until: Option<Instant>,
    mut once: impl FnMut(&Entry) -> io::Result<Option<Undo>>,
    mut wait: impl FnMut(Duration),
) -> Vec<io::Result<Undo>> {
    let is_late = || until.is_some_and(|until| Instant::now() >= until);
    let mut undone: Vec<Option<io::Result<Undo>>> = entries.iter().map(|_| None).collect();
    let mut pauses = PAUSES.into_iter();
    loop {
        for (entry, undone) in entries.iter().zip(&mut undone) {
            if undone.is_none() && !is_late() {
                *undone = once(entry).transpose();
            }
        }
        if undone.iter().all(Option::is_some) || is_late() {
            break;
        }
        let Some(pause) = pauses.next() else { break };
        wait(pause);
    }
    let why = if is_late() { LATE } else { NO_FILES };
    let left = || Err(io::Error::other(why));
    undone
        .into_iter()
        .map(|undo| undo.unwrap_or_else(left))
        .collect()
}

/// Why something stays in the journal.
const NO_FILES: &str = "its interface is there, and its settings are not found: it may be called otherwise all the time";

/// Called in the namespace. `None`: its interface is being called otherwise, so that it has no file just now.
fn undo_once(entry: &Entry) -> io::Result<Option<Undo>> {
    let Some(setting) = setting_of(entry) else {
        return Err(io::Error::other("it is no setting"));
    };
    let interface = match setting.interface() {
        None => None,
        Some(index) => match interface::name(index)? {
            None => return Ok(Some(Undo::Gone)),
            Some(name) => Some(InterfaceName::new(name.as_bytes()).ok_or_else(|| {
                io::Error::other("its interface has a name under which the kernel has no settings")
            })?),
        },
    };
    if let Some(open) = Open::new(setting, interface, true)?
        && let Some(undone) = put_back(&open, setting, entry)?
    {
        return Ok(Some(undone));
    }
    Ok(is_gone(setting)?.then_some(Undo::Gone))
}

/// Whether the setting, which has no file, is there no more. The kernel takes an interface's settings away when its MTU is too small for them, and it has
/// new ones after that; while it is being called otherwise it has no files, and keeps its settings.
fn is_gone(setting: Setting) -> io::Result<bool> {
    match (setting.interface(), setting.family()) {
        (Some(index), Some(family)) => Ok(!interface::has_family(index, family)?),
        _ => Ok(true),
    }
}

/// `None`: the file is not there any more.
fn put_back(open: &Open, setting: Setting, entry: &Entry) -> io::Result<Option<Undo>> {
    let (Some((before, other_before)), Some((after, _))) =
        (parts(&entry.before), parts(&entry.after))
    else {
        return Err(io::Error::other("the journal does not say what it was"));
    };
    let Some(now) = open.number()? else {
        return Ok(None);
    };
    if now == before {
        // It was written down, and its writer ended before it was made.
        return Ok(Some(Undo::Restored));
    }
    let other_now = other(setting)?;
    let is_as_it_was = match (other_before, &other_now) {
        (Some(before), Some(now)) => same(before, now),
        (None, None) => true,
        _ => false,
    };
    // Whoever has changed the other one since has set this one by that, to whatever it is.
    if now != after || !is_as_it_was {
        return Ok(Some(Undo::Others));
    }
    Ok(open.write(&before.to_string())?.then_some(Undo::Restored))
}

/// The number, and what is beside it.
fn parts(value: &Value) -> Option<(i64, Option<&str>)> {
    match value {
        Value::Text(text) => Some((text.trim().parse().ok()?, None)),
        Value::Beside { text, other } => Some((text.trim().parse().ok()?, Some(other))),
        Value::Buffer { .. } | Value::Route(_) => None,
    }
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
