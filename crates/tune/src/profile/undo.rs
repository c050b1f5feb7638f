//! Undoing the settings of a profile.

use std::io;
use std::time::{Duration, Instant};

use taut_observe::namespaces::Namespace;
use taut_sys::{interface, netns};

use super::interface_name::InterfaceName;
use super::setting_file::{SettingFile, other};
use super::settings::Setting;
use crate::actuate::ActuateError;
use crate::actuate::undo::{Spaces, Undo};
use crate::journal::{Entry, Thing, Value};
use crate::sysctl::same;

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
    if let Some(open) = SettingFile::open(setting, interface, true)?
        && let Some(undone) = put_back(&open, setting, entry)?
    {
        return Ok(Some(undone));
    }
    Ok(is_gone(setting)?.then_some(Undo::Gone))
}

/// Whether the setting, which has no file, is there no more. The kernel takes an interface's settings away when its MTU is too small for them, and it has
/// new ones after that; while it is being called otherwise it has no files, and keeps its settings.
pub(super) fn is_gone(setting: Setting) -> io::Result<bool> {
    match (setting.interface(), setting.family()) {
        (Some(index), Some(family)) => Ok(!interface::has_family(index, family)?),
        _ => Ok(true),
    }
}

/// `None`: the file is not there any more.
fn put_back(open: &SettingFile, setting: Setting, entry: &Entry) -> io::Result<Option<Undo>> {
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

#[cfg(test)]
mod tests;
