//! Restores the settings of a profile, unless they have been changed since.

use std::io;
use std::time::{Duration, Instant};

use taut_observe::namespaces::Namespace;
use taut_sys::{interface, netns};

use super::interface_name::InterfaceName;
use super::setting_file::{SettingFile, read_companion};
use super::settings::Setting;
use crate::journal::{Entry, Target, Value};
use crate::namespaces::index::NamespaceIndex;
use crate::sysctl::{SysctlError, is_same};
use crate::undo::UndoOutcome;

/// The pauses between attempts to open missing files of existing interfaces: an interface that is
/// being renamed has no files. They apply to all interfaces of a namespace together.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
    Duration::from_millis(16),
    Duration::from_millis(32),
];
/// The maximum time in a namespace that is not this program's own. Remaining entries stay in the
/// journal.
const MAX_VISIT: Duration = Duration::from_secs(1);
/// The maximum time in all such namespaces together, so that a service manager need not follow
/// SIGTERM with SIGKILL (systemd waits for 90 s).
const MAX_VISITS: Duration = Duration::from_secs(60);

/// Why a setting stays in the journal: its namespace took too long.
const LATE: &str =
    "there was no time for the other settings of this namespace: run `taut tune --undo` again";
/// Why a setting stays in the journal: its file does not exist.
const NO_FILES: &str =
    "its interface exists, but has no settings: it may be renamed over and over again";

/// The remaining time for namespaces that are not this program's own.
pub(crate) struct Deadline(Duration);

// === impl Deadline ===

impl Deadline {
    /// Returns the time for all namespaces.
    pub(crate) fn new() -> Self {
        Self(MAX_VISITS)
    }

    /// Returns the end of a visit that starts now; `None` for this program's own namespace, which
    /// has no limit.
    fn end_of_visit(&self, namespace: &Namespace, now: Instant) -> Option<Instant> {
        (!namespace.is_own()).then(|| now + MAX_VISIT.min(self.0))
    }
}

/// Restores settings of one namespace, in one visit. Returns the result for each entry.
pub(crate) fn undo(
    index: &NamespaceIndex,
    cookie: u64,
    entries: &[Entry],
    deadline: &mut Deadline,
) -> Vec<Result<UndoOutcome, SysctlError>> {
    let file_error = |entry: &Entry, error: io::Error| SysctlError::File {
        name: setting_of(entry).map_or_else(String::new, |setting| setting.name(None)),
        netns: format!("with cookie {cookie}"),
        error,
    };
    let all_failed = |error: &str| {
        let error = |entry| Err(file_error(entry, io::Error::other(error)));
        entries.iter().map(error).collect()
    };
    let all_gone = || entries.iter().map(|_| Ok(UndoOutcome::Gone)).collect();
    let namespace = match index.get(cookie) {
        Ok(Some(namespace)) => namespace,
        Ok(None) => return all_gone(),
        Err(error) => return all_failed(error),
    };
    let start = Instant::now();
    let until = deadline.end_of_visit(namespace, start);
    if until == Some(start) {
        return all_failed(LATE);
    }
    let visit = || -> io::Result<Option<Vec<_>>> {
        Ok((netns::cookie()? == cookie)
            .then(|| undo_all(entries, until, undo_once, std::thread::sleep)))
    };
    let ran = namespace.run(visit);
    if until.is_some() {
        deadline.0 = deadline.0.saturating_sub(start.elapsed());
    }
    match ran {
        Ok(Some(Ok(Some(undone)))) => {
            let result = |(entry, outcome): (&Entry, io::Result<UndoOutcome>)| {
                outcome.map_err(|e| file_error(entry, e))
            };
            entries.iter().zip(undone).map(result).collect()
        }
        Ok(Some(Ok(None))) => all_gone(),
        Ok(Some(Err(error))) => all_failed(&error.to_string()),
        Ok(None) => all_failed("the namespace cannot be entered any more"),
        Err(error) => all_failed(&error.to_string()),
    }
}

fn setting_of(entry: &Entry) -> Option<Setting> {
    match entry.target {
        Target::Setting(_, setting) => Some(setting),
        _ => None,
    }
}

/// Undoes each entry. Waits for all entries without a result together.
fn undo_all(
    entries: &[Entry],
    until: Option<Instant>,
    mut once: impl FnMut(&Entry) -> io::Result<Option<UndoOutcome>>,
    mut wait: impl FnMut(Duration),
) -> Vec<io::Result<UndoOutcome>> {
    let is_late = || until.is_some_and(|until| Instant::now() >= until);
    let mut undone: Vec<Option<io::Result<UndoOutcome>>> = entries.iter().map(|_| None).collect();
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
        .map(|outcome| outcome.unwrap_or_else(left))
        .collect()
}

/// Undoes an entry, in its namespace. Returns `None` if its interface is being renamed and has no
/// files now.
fn undo_once(entry: &Entry) -> io::Result<Option<UndoOutcome>> {
    let Some(setting) = setting_of(entry) else {
        return Err(io::Error::other("the entry is no setting"));
    };
    let interface = match setting.interface() {
        None => None,
        Some(index) => match interface::name(index)? {
            None => return Ok(Some(UndoOutcome::Gone)),
            Some(name) => Some(InterfaceName::new(name.as_bytes()).ok_or_else(|| {
                io::Error::other("its interface has a name for which the kernel has no settings")
            })?),
        },
    };
    if let Some(file) = SettingFile::open(setting, interface, true)?
        && let Some(outcome) = restore(&file, setting, entry)?
    {
        return Ok(Some(outcome));
    }
    Ok(is_gone(setting)?.then_some(UndoOutcome::Gone))
}

/// Whether a setting without a file no longer exists. The kernel removes the settings of an
/// interface whose MTU is too small for the protocol, and creates new ones later. An interface that
/// is being renamed has no files, but keeps its settings.
pub(super) fn is_gone(setting: Setting) -> io::Result<bool> {
    match (setting.interface(), setting.family()) {
        (Some(index), Some(family)) => Ok(!interface::has_family(index, family)?),
        _ => Ok(true),
    }
}

/// Restores a setting; `None` if the kernel has removed the file.
fn restore(file: &SettingFile, setting: Setting, entry: &Entry) -> io::Result<Option<UndoOutcome>> {
    let (Some((before, companion_before)), Some((after, _))) =
        (parse(&entry.before), parse(&entry.after))
    else {
        return Err(io::Error::other("the journal has no value from before"));
    };
    let Some(now) = file.number()? else {
        return Ok(None);
    };
    if now == before {
        // The writer ended between the line in the journal and the change.
        return Ok(Some(UndoOutcome::Restored));
    }
    let companion_now = read_companion(setting)?;
    let is_companion_unchanged = match (companion_before, &companion_now) {
        (Some(before), Some(now)) => is_same(before, now),
        (None, None) => true,
        _ => false,
    };
    // A change of the companion has also set this setting, whatever its value is.
    if now != after || !is_companion_unchanged {
        return Ok(Some(UndoOutcome::Foreign));
    }
    Ok(file
        .write(&before.to_string())?
        .then_some(UndoOutcome::Restored))
}

/// Returns the number and the companion's text.
fn parse(value: &Value) -> Option<(i64, Option<&str>)> {
    match value {
        Value::Text(text) => Some((text.trim().parse().ok()?, None)),
        Value::WithCompanion { text, companion } => {
            Some((text.trim().parse().ok()?, Some(companion)))
        }
        Value::Buffer { .. } | Value::Route(_) => None,
    }
}

#[cfg(test)]
mod tests;
