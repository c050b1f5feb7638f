//! What was done, or only advised, for whoever asks later why a connection is as it is (`taut why`).
//!
//! Lines of JSON, in a file that begins with the kernel's boot, because names of sockets come again after another. It says nothing that
//! anybody has to believe: what undoes is the [journal](crate::journal).

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use taut_observe::sanitize;

use crate::trusted_file::{boot, is_ours};
use crate::tuner::{Outcome, Told};

/// Where it is, if nothing else is said.
pub const PATH: &str = "/run/taut/tune.log";
/// How every one begins.
const BEGINS: &[u8] = b"\n{\"log\"";
/// A file that is longer becomes the one before, and that one goes.
const LONGEST: u64 = 1 << 20;
/// Of what is written in it.
const VERSION: u32 = 1;
/// What is told of one connection, the last of it.
const OF_EACH: usize = 4;

/// A line of a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    /// The first.
    Log { version: u32, boot: String },
    /// A connection's buffer was changed.
    Made(Noted),
    /// It would have been.
    Advised(Noted),
}

/// What was done to a connection, or advised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// When, since 1970.
    pub at: Duration,
    /// The kernel's name of the socket.
    pub cookie: u64,
    /// What.
    pub change: String,
    /// It was only advised.
    #[serde(skip)]
    pub is_advice: bool,
}

/// Writes it.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: Option<File>,
    written: u64,
}

// === impl Log ===

impl Log {
    /// The one that belongs to this journal, which is to be held: two do not write at one time.
    pub fn of(journal: &Path) -> Self {
        Self {
            path: journal.with_extension("log"),
            file: None,
            written: 0,
        }
    }

    /// The one beside it for what is only advised, by whoever that is.
    pub fn of_advice(journal: &Path) -> Self {
        Self {
            path: advice(journal),
            file: None,
            written: 0,
        }
    }

    /// Notes what was done or advised, but to namespaces: nobody asks for those by their cookie.
    ///
    /// # Errors
    /// The system's; what was done is done.
    pub fn note(&mut self, told: &Told) -> io::Result<()> {
        let Some(connection) = &told.connection else {
            return Ok(());
        };
        let noted = |is_advice| Noted {
            at: now(),
            cookie: connection.cookie,
            change: told.change.clone(),
            is_advice,
        };
        match told.outcome {
            Outcome::Made => self.write(&Line::Made(noted(false))),
            Outcome::Advised => self.write(&Line::Advised(noted(true))),
            _ => Ok(()),
        }
    }

    /// All of it was undone, or is advised anew: it is taken away.
    ///
    /// # Errors
    /// The system's.
    pub fn undone(self) -> io::Result<()> {
        for path in [before(&self.path), self.path] {
            // Nothing that is not a log.
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(no_link());
            let mut file = match options.open(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            if is_ours(&path, &file)? && begins(&mut file)? {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        if self.written > LONGEST {
            fs::rename(&self.path, before(&self.path))?;
            self.file = None;
        }
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(open(&self.path)?),
        };
        // One that begins, or was cut.
        self.written = file.seek(SeekFrom::End(0))?;
        let result = file.write_all(&text);
        self.written += text.len() as u64;
        result
    }
}

/// What was last done to each connection, or advised, oldest first, as far as it was not undone since. Nothing where there is no log, or
/// another user could have written it.
///
/// # Errors
/// The system's.
pub fn read(path: &Path) -> io::Result<HashMap<u64, Vec<Noted>>> {
    let mut all: HashMap<u64, Vec<Noted>> = HashMap::new();
    let advice = advice(path);
    for path in [before(&advice), advice, before(path), path.to_owned()] {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(no_link());
        let file = match options.open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        if !is_ours(&path, &file)? {
            tracing::warn!(path = %path.display(), "another user could have written this: it is not believed");
            continue;
        }
        let mut text = Vec::new();
        // One line may go beyond.
        file.take(2 * LONGEST).read_to_end(&mut text)?;
        let mut last = HashMap::new();
        take(&text, &boot()?, &mut last);
        for (cookie, of) in last {
            all.entry(cookie).or_default().extend(of);
        }
    }
    for of in all.values_mut() {
        of.sort_by_key(|noted| noted.at);
        of.drain(..of.len().saturating_sub(OF_EACH));
    }
    Ok(all)
}

fn take(text: &[u8], of: &str, all: &mut HashMap<u64, Vec<Noted>>) {
    let lines = text.split(|&byte| byte == b'\n');
    let mut is_of_this_boot = false;
    // A line that was cut says nothing.
    for line in lines.filter_map(|line| serde_json::from_slice(line).ok()) {
        match line {
            Line::Log { version, boot } => is_of_this_boot = version == VERSION && boot == of,
            _ if !is_of_this_boot => {}
            Line::Made(noted) => keep(noted, all),
            Line::Advised(noted) => keep(
                Noted {
                    is_advice: true,
                    ..noted
                },
                all,
            ),
        }
    }
}

/// The last of each.
fn keep(noted: Noted, all: &mut HashMap<u64, Vec<Noted>>) {
    let of = all.entry(noted.cookie).or_default();
    if of.len() == OF_EACH {
        of.remove(0);
    }
    of.push(noted);
}

/// With a first line that says of which boot what follows is.
fn open(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    }
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    let mut file = options.custom_flags(no_link()).open(path)?;
    if !is_ours(path, &file)? {
        let what = format!("{}: another user could have written it", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    if file.metadata()?.len() > 0 && !begins(&mut file)? {
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

/// Whether it is one.
fn begins(file: &mut File) -> io::Result<bool> {
    let mut first = [0; BEGINS.len()];
    let mut read = 0;
    while read < first.len() {
        match file.read(&mut first[read..])? {
            0 => break,
            more => read += more,
        }
    }
    Ok(first == BEGINS)
}

/// Neither a link to a file nor a pipe, which would wait for a writer.
fn no_link() -> i32 {
    OFlags::NOFOLLOW
        .union(OFlags::NONBLOCK)
        .bits()
        .cast_signed()
}

/// The one for advice that belongs to this log or journal.
fn advice(path: &Path) -> PathBuf {
    path.with_extension("advice.log")
}

/// The file before this one.
fn before(path: &Path) -> PathBuf {
    let mut before = path.as_os_str().to_owned();
    before.push(".1");
    before.into()
}

fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

// === impl Noted ===

impl Noted {
    /// In a sentence: how long ago, and what.
    pub fn sentence(&self) -> String {
        let ago = now().saturating_sub(self.at).as_secs();
        let ago = humantime::format_duration(Duration::from_secs(ago));
        let what = if self.is_advice { "advised" } else { "tuned" };
        // Its writer is root, and a terminal's characters are none of a log's.
        format!(
            "{what} {ago} ago: {}",
            sanitize::text(self.change.as_bytes())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuner::Connection;

    fn told(cookie: Option<u64>, change: &str) -> Told {
        Told {
            connection: cookie.map(|cookie| Connection {
                cookie,
                local: "192.0.2.1:1".parse().unwrap(),
                remote: "192.0.2.2:2".parse().unwrap(),
                process: None,
            }),
            netns: "-".into(),
            change: change.into(),
            because: String::new(),
            expected: String::new(),
            outcome: Outcome::Made,
        }
    }

    fn changes(path: &Path, cookie: u64) -> Vec<String> {
        let of = read(path).unwrap().remove(&cookie).unwrap_or_default();
        of.into_iter().map(|noted| noted.change).collect()
    }

    #[test]
    fn what_was_done_last_is_known_until_it_is_undone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tune.log");
        assert!(read(&path).unwrap().is_empty());
        let mut log = Log::of(&path);
        log.note(&told(None, "a maximum")).unwrap();
        for change in ["one", "two", "three", "four", "five"] {
            log.note(&told(Some(7), change)).unwrap();
        }
        log.note(&told(Some(8), "other")).unwrap();
        assert_eq!(changes(&path, 7), ["two", "three", "four", "five"]);
        assert_eq!(changes(&path, 8), ["other"]);
        // Another goes on with it.
        let mut log = Log::of(&path);
        log.note(&told(Some(8), "again")).unwrap();
        assert_eq!(changes(&path, 8), ["other", "again"]);
        // What was not made changes nothing.
        let mut failed = told(Some(8), "failed");
        failed.outcome = Outcome::NoOwner;
        log.note(&failed).unwrap();
        assert_eq!(changes(&path, 8), ["other", "again"]);
        log.undone().unwrap();
        assert!(!path.exists());
        assert!(read(&path).unwrap().is_empty());
        Log::of(&path).undone().unwrap();
    }

    #[test]
    fn what_was_advised_is_told_with_what_was_done_until_it_is_advised_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/tune.log");
        let advised = Told {
            outcome: Outcome::Advised,
            ..told(Some(7), "to be")
        };
        Log::of_advice(&path).note(&advised).unwrap();
        let mut log = Log::of(&path);
        for change in ["one", "two"] {
            log.note(&told(Some(7), change)).unwrap();
        }
        assert_eq!(changes(&path, 7), ["to be", "one", "two"]);
        let all = read(&path).unwrap();
        assert!(all[&7][0].is_advice && !all[&7][1].is_advice);
        // The last, of whichever file.
        for change in ["three", "four"] {
            log.note(&told(Some(7), change)).unwrap();
        }
        assert_eq!(changes(&path, 7), ["one", "two", "three", "four"]);
        log.undone().unwrap();
        assert_eq!(changes(&path, 7), ["to be"]);
        Log::of_advice(&path).undone().unwrap();
        assert!(read(&path).unwrap().is_empty());
    }

    #[test]
    fn it_is_as_long_as_it_may_be_and_the_one_before_is_read_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tune.log");
        let mut log = Log::of(&path);
        let long = "x".repeat(200_000);
        log.note(&told(Some(1), "first")).unwrap();
        for cookie in 2..9 {
            log.note(&told(Some(cookie), &long)).unwrap();
        }
        assert_eq!(changes(&path, 1), ["first"]);
        for cookie in 9..30 {
            log.note(&told(Some(cookie), &long)).unwrap();
        }
        assert_eq!(changes(&path, 1), Vec::<String>::new());
        assert_eq!(changes(&path, 29), [long]);
        for path in [before(&path), path] {
            assert!(fs::metadata(path).unwrap().len() < LONGEST + 300_000);
        }
    }

    #[test]
    fn what_is_cut_or_of_another_boot_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tune.log");
        let mut log = Log::of(&path);
        log.note(&told(Some(1), "kept")).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            let mut all = HashMap::new();
            take(&whole[..length], &boot().unwrap(), &mut all);
            assert!(all.is_empty() || length + 1 == whole.len());
        }
        let mut all = HashMap::new();
        take(&whole, "another boot", &mut all);
        assert!(all.is_empty());
        // What was cut is ended by the next.
        fs::write(&path, [&whole[..], b"{\"made\":{\"at\""].concat()).unwrap();
        Log::of(&path).note(&told(Some(1), "next")).unwrap();
        assert_eq!(changes(&path, 1), ["kept", "next"]);
    }

    #[test]
    fn one_that_others_may_write_is_neither_believed_nor_written() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tune.log");
        Log::of(&path).note(&told(Some(1), "forged")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(read(&path).unwrap().is_empty());
        let refused = Log::of(&path).note(&told(Some(1), "more")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn what_is_no_log_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tune.log");
        fs::write(&path, "somebody's\n").unwrap();
        assert!(Log::of(&path).note(&told(Some(1), "one")).is_err());
        Log::of(&path).undone().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's\n");
    }

    #[test]
    fn a_sentence_says_when_and_what() {
        let noted = Noted {
            at: now() - Duration::from_secs(63),
            cookie: 1,
            is_advice: false,
            change: "receive buffer \x1b[31m128.0 KiB -> 1.0 MiB".into(),
        };
        let sentence = noted.sentence();
        assert!(sentence.starts_with("tuned 1m "), "{sentence}");
        assert!(sentence.ends_with("128.0 KiB -> 1.0 MiB"), "{sentence}");
        assert!(!sentence.contains('\x1b'), "{sentence}");
        let noted = Noted {
            is_advice: true,
            ..noted
        };
        assert!(noted.sentence().starts_with("advised 1m "));
    }
}
