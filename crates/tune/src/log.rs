//! The log of changes made or advised. `taut why` uses it to explain the state of a connection.
//!
//! The log is a file of JSON lines. It begins with the kernel's boot id, because cookies of sockets
//! repeat after a reboot. No other function depends on it: changes are undone from the
//! [journal](crate::journal).

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use taut_observe::sanitize;

use crate::report::{ChangeReport, Outcome};
use crate::trusted_file::{boot, is_ours, open_flags};

/// The default path.
pub const PATH: &str = "/run/taut/tune.log";
/// The beginning of every log.
const PREFIX: &[u8] = b"\n{\"log\"";
/// The maximum size of a file, in bytes. A longer file is renamed and replaces the previous log.
const MAX_BYTES: u64 = 1 << 20;
/// The version of the format.
const VERSION: u32 = 1;
/// The maximum number of changes to read for one connection; the last ones are kept.
const MAX_PER_CONNECTION: usize = 4;

/// A line of a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    /// The first line of each writer.
    Log { version: u32, boot: String },
    /// A buffer was changed.
    Applied(LoggedChange),
    /// A change was advised.
    Advised(LoggedChange),
}

/// A change of a connection, made or advised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedChange {
    /// The time since 1970.
    pub at: Duration,
    /// The socket's cookie.
    pub cookie: u64,
    /// A description of the change.
    pub change: String,
    /// Whether it was only advised.
    #[serde(skip)]
    pub is_advice: bool,
}

/// A writer of the log.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: Option<File>,
    written: u64,
}

// === impl Log ===

impl Log {
    /// Returns the log of changes next to a journal. The caller must hold the journal's lock, so
    /// that the log has one writer at a time.
    pub fn of(journal: &Path) -> Self {
        Self::at(journal.with_extension("log"))
    }

    /// Returns the log of advice next to a journal.
    pub fn of_advice(journal: &Path) -> Self {
        Self::at(advice(journal))
    }

    fn at(path: PathBuf) -> Self {
        Self {
            path,
            file: None,
            written: 0,
        }
    }

    /// Logs a change that was made or advised. Does not log changes of namespaces, which have no
    /// socket cookie to look them up by.
    ///
    /// # Errors
    /// The log cannot be written. The change itself is not affected.
    pub fn note(&mut self, report: &ChangeReport) -> io::Result<()> {
        let Some(connection) = &report.connection else {
            return Ok(());
        };
        let logged = |is_advice| LoggedChange {
            at: now(),
            cookie: connection.cookie,
            change: report.change.clone(),
            is_advice,
        };
        match report.outcome {
            Outcome::Applied => self.write(&Line::Applied(logged(false))),
            Outcome::Advised => self.write(&Line::Advised(logged(true))),
            _ => Ok(()),
        }
    }

    /// Removes the log and the previous log. Call this when all changes are undone, or will be
    /// advised again.
    ///
    /// # Errors
    /// A file cannot be read or removed.
    pub fn remove(self) -> io::Result<()> {
        for path in [previous(&self.path), self.path] {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(open_flags());
            let mut file = match options.open(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            if is_ours(&path, &file)? && is_log(&mut file)? {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        if self.written > MAX_BYTES {
            fs::rename(&self.path, previous(&self.path))?;
            self.file = None;
        }
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(open(&self.path)?),
        };
        self.written = file.seek(SeekFrom::End(0))?;
        let result = file.write_all(&text);
        self.written += text.len() as u64;
        result
    }
}

/// Reads the last changes of each connection, oldest first, from the logs next to `path`. Skips a
/// log that another user could have written.
///
/// # Errors
/// A log cannot be read.
pub fn read(path: &Path) -> io::Result<HashMap<u64, Vec<LoggedChange>>> {
    let mut all: HashMap<u64, Vec<LoggedChange>> = HashMap::new();
    let advice = advice(path);
    for path in [previous(&advice), advice, previous(path), path.to_owned()] {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(open_flags());
        let file = match options.open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        if !is_ours(&path, &file)? {
            tracing::warn!(path = %path.display(), "another user could have written this log: it is ignored");
            continue;
        }
        let mut text = Vec::new();
        // The last line may exceed MAX_BYTES.
        file.take(2 * MAX_BYTES).read_to_end(&mut text)?;
        let mut last = HashMap::new();
        parse(&text, &boot()?, &mut last);
        for (cookie, changes) in last {
            all.entry(cookie).or_default().extend(changes);
        }
    }
    for changes in all.values_mut() {
        changes.sort_by_key(|change| change.at);
        changes.drain(..changes.len().saturating_sub(MAX_PER_CONNECTION));
    }
    Ok(all)
}

fn parse(text: &[u8], this_boot: &str, all: &mut HashMap<u64, Vec<LoggedChange>>) {
    let lines = text.split(|&byte| byte == b'\n');
    let mut is_of_this_boot = false;
    // An incomplete line is skipped.
    for line in lines.filter_map(|line| serde_json::from_slice(line).ok()) {
        match line {
            Line::Log { version, boot } => {
                is_of_this_boot = version == VERSION && boot == this_boot;
            }
            _ if !is_of_this_boot => {}
            Line::Applied(change) => keep(change, all),
            Line::Advised(change) => keep(
                LoggedChange {
                    is_advice: true,
                    ..change
                },
                all,
            ),
        }
    }
}

/// Adds a change, and drops the oldest change of its connection if there are too many.
fn keep(change: LoggedChange, all: &mut HashMap<u64, Vec<LoggedChange>>) {
    let of = all.entry(change.cookie).or_default();
    if of.len() == MAX_PER_CONNECTION {
        of.remove(0);
    }
    of.push(change);
}

/// Opens a log for appending, and writes a first line.
fn open(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    }
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    let mut file = options.custom_flags(open_flags()).open(path)?;
    if !is_ours(path, &file)? {
        let what = format!("{}: another user could have written it", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    if file.metadata()?.len() > 0 && !is_log(&mut file)? {
        let what = format!(
            "{}: this is no log of taut tune, and is left as it is",
            path.display()
        );
        return Err(io::Error::other(what));
    }
    let mut text = vec![b'\n'];
    serde_json::to_writer(
        &mut text,
        &Line::Log {
            version: VERSION,
            boot: boot()?,
        },
    )?;
    text.push(b'\n');
    file.write_all(&text)?;
    Ok(file)
}

/// Whether the file begins like a log.
fn is_log(file: &mut File) -> io::Result<bool> {
    let mut first = [0; PREFIX.len()];
    let mut read = 0;
    while read < first.len() {
        match file.read(&mut first[read..])? {
            0 => break,
            more => read += more,
        }
    }
    Ok(first == PREFIX)
}

/// Returns the path of the log of advice next to a log or a journal.
fn advice(path: &Path) -> PathBuf {
    path.with_extension("advice.log")
}

/// Returns the path of the previous log.
fn previous(path: &Path) -> PathBuf {
    let mut previous = path.as_os_str().to_owned();
    previous.push(".1");
    previous.into()
}

fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

// === impl LoggedChange ===

impl LoggedChange {
    /// Returns a sentence that says how long ago the change was made, and what it was.
    pub fn sentence(&self) -> String {
        let ago = now().saturating_sub(self.at).as_secs();
        let ago = humantime::format_duration(Duration::from_secs(ago));
        let what = if self.is_advice { "advised" } else { "tuned" };
        // Even a log written by root may contain terminal control characters.
        format!(
            "{what} {ago} ago: {}",
            sanitize::text(self.change.as_bytes())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Connection;

    fn report(cookie: Option<u64>, change: &str) -> ChangeReport {
        ChangeReport {
            connection: cookie.map(|cookie| Connection {
                cookie,
                local: "192.0.2.1:1".parse().unwrap(),
                remote: "192.0.2.2:2".parse().unwrap(),
                process: None,
            }),
            netns: "-".into(),
            change: change.into(),
            reason: String::new(),
            expected: String::new(),
            outcome: Outcome::Applied,
        }
    }

    fn changes(path: &Path, cookie: u64) -> Vec<String> {
        let of = read(path).unwrap().remove(&cookie).unwrap_or_default();
        of.into_iter().map(|change| change.change).collect()
    }

    #[test]
    fn the_last_changes_are_known_until_they_are_undone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tune.log");
        assert!(read(&path).unwrap().is_empty());
        let mut log = Log::of(&path);
        log.note(&report(None, "a maximum")).unwrap();
        for change in ["one", "two", "three", "four", "five"] {
            log.note(&report(Some(7), change)).unwrap();
        }
        log.note(&report(Some(8), "other")).unwrap();
        assert_eq!(changes(&path, 7), ["two", "three", "four", "five"]);
        assert_eq!(changes(&path, 8), ["other"]);
        // Another writer continues the log.
        let mut log = Log::of(&path);
        log.note(&report(Some(8), "again")).unwrap();
        assert_eq!(changes(&path, 8), ["other", "again"]);
        // A change that was not made is not logged.
        let mut failed = report(Some(8), "failed");
        failed.outcome = Outcome::NoOwner;
        log.note(&failed).unwrap();
        assert_eq!(changes(&path, 8), ["other", "again"]);
        log.remove().unwrap();
        assert!(!path.exists());
        assert!(read(&path).unwrap().is_empty());
        Log::of(&path).remove().unwrap();
    }

    #[test]
    fn advice_is_read_with_changes_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/tune.log");
        let advised = ChangeReport {
            outcome: Outcome::Advised,
            ..report(Some(7), "to be")
        };
        Log::of_advice(&path).note(&advised).unwrap();
        let mut log = Log::of(&path);
        for change in ["one", "two"] {
            log.note(&report(Some(7), change)).unwrap();
        }
        assert_eq!(changes(&path, 7), ["to be", "one", "two"]);
        let all = read(&path).unwrap();
        assert!(all[&7][0].is_advice && !all[&7][1].is_advice);
        // The last changes come from both files.
        for change in ["three", "four"] {
            log.note(&report(Some(7), change)).unwrap();
        }
        assert_eq!(changes(&path, 7), ["one", "two", "three", "four"]);
        log.remove().unwrap();
        assert_eq!(changes(&path, 7), ["to be"]);
        Log::of_advice(&path).remove().unwrap();
        assert!(read(&path).unwrap().is_empty());
    }

    #[test]
    fn a_log_has_a_bounded_length_and_the_previous_one_is_read_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tune.log");
        let mut log = Log::of(&path);
        let long = "x".repeat(200_000);
        log.note(&report(Some(1), "first")).unwrap();
        for cookie in 2..9 {
            log.note(&report(Some(cookie), &long)).unwrap();
        }
        assert_eq!(changes(&path, 1), ["first"]);
        for cookie in 9..30 {
            log.note(&report(Some(cookie), &long)).unwrap();
        }
        assert_eq!(changes(&path, 1), Vec::<String>::new());
        assert_eq!(changes(&path, 29), [long]);
        for path in [previous(&path), path] {
            assert!(fs::metadata(path).unwrap().len() < MAX_BYTES + 300_000);
        }
    }

    #[test]
    fn incomplete_lines_and_logs_of_another_boot_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tune.log");
        let mut log = Log::of(&path);
        log.note(&report(Some(1), "kept")).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            let mut all = HashMap::new();
            parse(&whole[..length], &boot().unwrap(), &mut all);
            assert!(all.is_empty() || length + 1 == whole.len());
        }
        let mut all = HashMap::new();
        parse(&whole, "another boot", &mut all);
        assert!(all.is_empty());
        // The next writer terminates an incomplete line.
        fs::write(&path, [&whole[..], b"{\"applied\":{\"at\""].concat()).unwrap();
        Log::of(&path).note(&report(Some(1), "next")).unwrap();
        assert_eq!(changes(&path, 1), ["kept", "next"]);
    }

    #[test]
    fn a_log_that_others_may_write_is_neither_read_nor_written() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tune.log");
        Log::of(&path).note(&report(Some(1), "forged")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(read(&path).unwrap().is_empty());
        let refused = Log::of(&path).note(&report(Some(1), "more")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_file_that_is_no_log_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tune.log");
        fs::write(&path, "somebody's\n").unwrap();
        assert!(Log::of(&path).note(&report(Some(1), "one")).is_err());
        Log::of(&path).remove().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's\n");
    }

    #[test]
    fn a_sentence_has_the_time_and_the_change() {
        let logged = LoggedChange {
            at: now() - Duration::from_secs(63),
            cookie: 1,
            is_advice: false,
            change: "receive buffer \x1b[31m128.0 KiB -> 1.0 MiB".into(),
        };
        let sentence = logged.sentence();
        assert!(sentence.starts_with("tuned 1m "), "{sentence}");
        assert!(sentence.ends_with("128.0 KiB -> 1.0 MiB"), "{sentence}");
        assert!(!sentence.contains('\x1b'), "{sentence}");
        let logged = LoggedChange {
            is_advice: true,
            ..logged
        };
        assert!(logged.sentence().starts_with("advised 1m "));
    }
}
