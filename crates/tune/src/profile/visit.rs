//! Examines the settings of a namespace and of its interfaces, and changes those that are too lax.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;

use taut_observe::namespaces::Namespace;
use taut_sys::interface::{self, InterfaceLookup};
use taut_sys::netns;
use taut_sys::route::Family;

use super::interface_name::InterfaceName;
use super::setting_file::{SettingFile, read_companion, value};
use super::settings::{Profile, Setting};
use super::undo::is_gone;
use crate::journal::{Entry, Journal, JournalWriteError, Target};
use crate::plan::Change;
use crate::sysctl::{SysctlError, file_error};

/// The maximum number of interfaces to examine in one namespace; further ones are left as they are.
pub(crate) const MAX_INTERFACES: usize = 1024;

/// The examined settings of a namespace. Each setting is examined once; a value that is set later
/// is left alone.
#[derive(Debug, Default)]
pub(crate) struct VisitedNamespace {
    cookie: u64,
    interfaces: HashSet<u32>,
    examined: HashSet<Setting>,
}

/// The remaining room for interfaces and changes.
#[derive(Debug)]
pub(crate) struct Room {
    /// The number of interfaces.
    pub(crate) interfaces: usize,
    /// The number of entries of the journal.
    pub(crate) entries: usize,
    /// Whether an interface or a setting did not fit.
    pub(crate) is_short: bool,
}

/// A setting that is too lax.
#[derive(Debug)]
pub(crate) struct LaxSetting {
    pub(crate) change: Change,
    /// The result of the change; `None` if it was only advised.
    pub(crate) result: Option<Result<(), SysctlError>>,
}

/// A visit of a namespace.
struct Visit<'a> {
    profile: Profile,
    visited: &'a mut VisitedNamespace,
    journal: Option<&'a mut Journal>,
    room: &'a mut Room,
    found: Vec<(Change, Option<Result<(), ChangeError>>)>,
}

/// The outcome of changing a setting.
enum SettingOutcome {
    Set {
        from: i64,
        to: i64,
    },
    /// Another program has just made the setting as strict.
    AlreadyStrict,
    /// The setting no longer exists, or its interface has another name.
    NotThere,
}

/// Why a setting was not changed.
enum ChangeError {
    Journal(JournalWriteError),
    File(io::Error),
}

// === impl VisitedNamespace ===

impl VisitedNamespace {
    /// Returns the number of its interfaces that are examined.
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

/// Examines the settings of this namespace that were not examined before. With a journal, changes
/// lax settings and writes each change to the journal first. Returns an empty list if the namespace
/// has ended.
///
/// # Errors
/// [`SysctlError`]: the namespace cannot be entered.
pub(crate) fn visit(
    namespace: &Namespace,
    profile: Profile,
    visited: &mut VisitedNamespace,
    journal: Option<&mut Journal>,
    room: &mut Room,
) -> Result<Vec<LaxSetting>, SysctlError> {
    let mut visit = Visit {
        profile,
        visited,
        journal,
        room,
        found: Vec::new(),
    };
    let done = namespace.run(|| visit.all())?;
    let found = std::mem::take(&mut visit.found).into_iter();
    if let Some(Err(error)) = done {
        // Changes made before the error are still reported.
        tracing::debug!(%error, netns = %namespace.name, "not all settings were examined");
    }
    let lax = |change: Change, result: Option<Result<(), ChangeError>>| {
        let result = result.map(|result| {
            result.map_err(|why| match why {
                ChangeError::Journal(error) => error.into(),
                ChangeError::File(error) => file_error(namespace, &name_of(&change), error),
            })
        });
        LaxSetting { change, result }
    };
    Ok(found.map(|(change, result)| lax(change, result)).collect())
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
    /// Examines all settings. Call this in the namespace.
    fn all(&mut self) -> io::Result<()> {
        let cookie = netns::cookie()?;
        // The kernel reuses inodes of namespaces, but not cookies.
        if self.visited.cookie != cookie {
            self.room.interfaces += self.visited.interfaces.len();
            *self.visited = VisitedNamespace {
                cookie,
                ..VisitedNamespace::default()
            };
        }
        for &setting in self.profile.of_namespace() {
            self.examine_once(setting, None);
        }
        // If there is no room for a container's interfaces, they are not even listed.
        if self.visited.interfaces.is_empty() && (self.room.interfaces == 0 || self.is_full()) {
            self.room.is_short = true;
            return Ok(());
        }
        let interfaces = interfaces()?;
        self.forget_removed_interfaces(&interfaces);
        for (index, name) in interfaces {
            if self.is_full() {
                break;
            }
            if !self.admits(index) {
                self.room.is_short = true;
                continue;
            }
            for setting in self.profile.of_interface(index) {
                // The kernel removes the settings of IPv6 if the MTU is too small for it, and makes others later.
                if setting.family() == Some(Family::V6)
                    && self.visited.examined.contains(&setting)
                    && setting.path(Some(name)).is_some_and(|path| !path.exists())
                    && matches!(is_gone(setting), Ok(true))
                {
                    self.forget(setting);
                }
                self.examine_once(setting, Some(name));
            }
        }
        Ok(())
    }

    /// Whether the journal had no room for a setting of this namespace. Further attempts in each
    /// scan would only cost time.
    fn is_full(&self) -> bool {
        self.journal.is_some() && self.room.entries == 0 && self.room.is_short
    }

    fn admits(&mut self, index: u32) -> bool {
        if self.visited.interfaces.contains(&index) {
            return true;
        }
        let has_room = self.visited.interfaces.len() < MAX_INTERFACES && self.room.interfaces > 0;
        if has_room {
            self.room.interfaces -= 1;
            self.visited.interfaces.insert(index);
        }
        has_room
    }

    /// Forgets interfaces that no longer exist: they leave nothing to undo, and a later interface
    /// with the same index is a different one.
    fn forget_removed_interfaces(&mut self, there: &[(u32, InterfaceName)]) {
        let there: HashSet<u32> = there.iter().map(|(index, _)| *index).collect();
        let is_missing = |index: &u32| !there.contains(index);
        // A list may miss an interface.
        let is_removed =
            |index: &u32| is_missing(index) && matches!(interface::name(*index), Ok(None));
        let removed: Vec<u32> = self.visited.interfaces.extract_if(is_removed).collect();
        self.room.interfaces += removed.len();
        for index in removed {
            for setting in self.profile.of_interface(index) {
                self.forget(setting);
            }
        }
    }

    /// Forgets a setting that no longer exists, so that a new setting in its place is examined.
    fn forget(&mut self, setting: Setting) {
        self.visited.examined.remove(&setting);
        let target = Target::Setting(self.visited.cookie, setting);
        let undone = self.journal.as_mut().map(|journal| journal.undone(&target));
        if let Some(Err(error)) = undone {
            tracing::warn!(%error, "the journal keeps an entry of a setting that does not exist any more");
        }
    }

    fn examine_once(&mut self, setting: Setting, interface: Option<InterfaceName>) {
        if self.visited.examined.contains(&setting) {
            return;
        }
        match self.examine(setting, interface) {
            // The kernel lacks the setting, or the interface is being created, removed or renamed.
            Ok(false) => {}
            Ok(true) => {
                self.visited.examined.insert(setting);
            }
            // The next scan tries again.
            Err(error) => {
                tracing::debug!(%error, setting = %setting.name(interface), "a setting cannot be examined");
            }
        }
    }

    /// Examines a setting. Returns whether the examination is complete.
    fn examine(&mut self, setting: Setting, interface: Option<InterfaceName>) -> io::Result<bool> {
        let Some(file) = SettingFile::open(setting, interface, false)? else {
            return Ok(false);
        };
        let Some(from) = file.number()? else {
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
        let target = Target::Setting(self.visited.cookie, setting);
        if journal.entry(&target).is_some() {
            // The setting was examined before its namespace was missing for a while, or it could
            // not be undone.
            return Ok(true);
        }
        if self.room.entries == 0 {
            self.room.is_short = true;
            return Ok(false);
        }
        match tighten(&target, setting, interface, journal) {
            Ok(SettingOutcome::Set { from, to }) => {
                self.room.entries -= 1;
                self.found.push((change(from, to), Some(Ok(()))));
            }
            Ok(SettingOutcome::AlreadyStrict) => {}
            Ok(SettingOutcome::NotThere) => return Ok(false),
            Err(failed) => self.found.push((change(from, to), Some(Err(failed)))),
        }
        Ok(true)
    }
}

/// Writes the change to the journal and makes it.
fn tighten(
    target: &Target,
    setting: Setting,
    interface: Option<InterfaceName>,
    journal: &mut Journal,
) -> Result<SettingOutcome, ChangeError> {
    let Some(file) = SettingFile::open(setting, interface, true).map_err(ChangeError::File)? else {
        return Ok(SettingOutcome::NotThere);
    };
    // The companion is read first. If the companion changes between the two reads, its value
    // differs at the end, and the setting is then left alone.
    let companion = read_companion(setting).map_err(ChangeError::File)?;
    let Some(from) = file.number().map_err(ChangeError::File)? else {
        return Ok(SettingOutcome::NotThere);
    };
    let Some(to) = setting.tightened(from) else {
        return Ok(SettingOutcome::AlreadyStrict);
    };
    let (before, after) = (
        value(from, companion.as_deref()),
        value(to, companion.as_deref()),
    );
    let entry = Entry::new(target.clone(), before, after);
    journal.note(entry).map_err(ChangeError::Journal)?;
    let written = file.write(&to.to_string());
    if !matches!(written, Ok(true)) {
        // The setting was not changed, so there is nothing to undo.
        journal.undone(target).map_err(ChangeError::Journal)?;
    }
    match written {
        Ok(true) => Ok(SettingOutcome::Set { from, to }),
        Ok(false) => Ok(SettingOutcome::NotThere),
        Err(error) => Err(ChangeError::File(error)),
    }
}

/// Lists the interfaces of the calling thread's namespace that have settings. Stops one beyond the
/// number that may be examined.
fn interfaces() -> io::Result<Vec<(u32, InterfaceName)>> {
    let lookup = InterfaceLookup::open()?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/sys/net/ipv4/conf")? {
        let Some(name) = InterfaceName::new(entry?.file_name().as_bytes()) else {
            continue;
        };
        // An interface without an index has been removed since.
        if let Some(index) = lookup.index(&CString::new(name.as_bytes())?)? {
            found.push((index, name));
        }
        if found.len() > MAX_INTERFACES {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
