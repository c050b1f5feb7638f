//! What was there before it was changed, written down before it is changed, so that anybody can undo it.
//!
//! The journal is a file that whoever tunes holds locked. One whose lock is free belongs to a process that is gone: whoever gets
//! the lock undoes what it says. Its first line says of which boot of the kernel it is: names of sockets and namespaces come again
//! after another. What is no journal, or could have been written by another user, is neither believed nor touched.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use taut_sys::Errno;

use crate::profile::settings::Setting;
use crate::routes::message::Name;
use crate::routes::metrics::Metrics;

/// Where it is, if nothing else is said.
pub const PATH: &str = "/run/taut/tune.journal";
/// Things that may be changed at one time; more are left as they are.
const THINGS: usize = 1_000_000;
/// A longer one is not read: this program writes none, as it leaves three lines of 300 bytes for each thing, at most.
const LONGEST: u64 = 1 << 30;
/// Lines that say nothing any more are left in it up to so many, and as many again as say something.
const IDLE_LINES: usize = 1000;
/// Of what is written in it.
const VERSION: u32 = 1;
/// How its first line begins.
const BEGINS: &[u8] = b"{\"journal\"";

/// Something that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Thing {
    /// The most that the kernel gives a send buffer in a network namespace: the namespace's cookie.
    SendMaximum(u64),
    /// The same of a receive buffer.
    ReceiveMaximum(u64),
    /// A socket's send buffer: its cookie.
    SendBuffer(u64),
    /// A socket's receive buffer.
    ReceiveBuffer(u64),
    /// A setting of a profile: the namespace's cookie, and which.
    Setting(u64, Setting),
    /// The two metrics of a route that say with how much connections over it begin, and nothing else of it.
    Route {
        /// The namespace's cookie.
        netns: u64,
        /// Which of its main table.
        name: Name,
    },
}

/// As it was, and as it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What.
    pub thing: Thing,
    /// Before.
    pub before: Value,
    /// What it was made last. One that is another by now was changed by somebody else, and is left alone.
    pub after: Value,
    /// What it was made before that, and is, if its writer ended before it was made the last.
    #[serde(default)]
    pub earlier: Option<Value>,
    /// Of a buffer: the most bytes that it was ever made.
    #[serde(default)]
    pub largest: u32,
}

/// A value of a [`Thing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// Of a setting: as the kernel writes it.
    Text(String),
    /// Of one that the kernel sets with another: as it writes both.
    Beside {
        /// It.
        text: String,
        /// The other.
        other: String,
    },
    /// Of a route; those that are missing were not there, or are not made.
    Route(Metrics),
    /// Of a buffer.
    Buffer {
        /// Bytes with overhead.
        bytes: u32,
        /// Whether the kernel leaves it alone.
        is_fixed: bool,
        /// A process that has the socket, and the socket's inode.
        owner: (u32, u32),
    },
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    /// The first.
    Journal {
        version: u32,
        boot: String,
    },
    Changes(Entry),
    Undone(Thing),
}

/// The journal, locked.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    entries: HashMap<Thing, Entry>,
    lines: usize,
    /// A line may have been cut: the next begins a line of its own.
    is_cut: bool,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process tunes.
    #[error("{}: another process holds it: one `taut tune --apply` at a time", .0.display())]
    Held(PathBuf),
    /// What is there is something else.
    #[error("{}: this is no journal of taut tune, and is left as it is", .0.display())]
    Other(PathBuf),
    /// Another user could have written it.
    #[error(
        "{}: it belongs to another user, or others may write to it or to its directory, so that it is not believed: take it away, or \
         choose another --journal",
        .0.display()
    )]
    Untrusted(PathBuf),
    /// The system's.
    #[error("{}: {error}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What.
        error: io::Error,
    },
}

// === impl Thing ===

impl Thing {
    /// Whether it is a socket's.
    pub fn is_buffer(&self) -> bool {
        matches!(self, Self::SendBuffer(_) | Self::ReceiveBuffer(_))
    }

    /// The cookie of the namespace with which it ends; a socket may outlive its own.
    pub fn netns(&self) -> Option<u64> {
        match self {
            Self::SendMaximum(netns)
            | Self::ReceiveMaximum(netns)
            | Self::Setting(netns, _)
            | Self::Route { netns, .. } => Some(*netns),
            Self::SendBuffer(_) | Self::ReceiveBuffer(_) => None,
        }
    }

    /// The cookie of the namespace and the name of the setting, if it is a maximum.
    pub fn setting(&self) -> Option<(u64, &'static str)> {
        match self {
            Self::SendMaximum(netns) => Some((*netns, "net/ipv4/tcp_wmem")),
            Self::ReceiveMaximum(netns) => Some((*netns, "net/ipv4/tcp_rmem")),
            Self::SendBuffer(_)
            | Self::ReceiveBuffer(_)
            | Self::Setting(..)
            | Self::Route { .. } => None,
        }
    }
}

// === impl Value ===

impl Value {
    /// Of a buffer; of another thing none.
    pub(crate) fn bytes(&self) -> u32 {
        match self {
            Self::Buffer { bytes, .. } => *bytes,
            Self::Text(_) | Self::Beside { .. } | Self::Route(_) => 0,
        }
    }
}

// === impl Journal ===

impl Journal {
    /// Opens and locks it; what a process that is gone has left in it is in [`Journal::entries`].
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let failed = |error: io::Error| JournalError::Io {
            path: path.to_owned(),
            error,
        };
        if let Some(dir) = path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(dir);
            made.map_err(failed)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        // Neither a link to a file nor a pipe, which would wait for a writer.
        let flags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK);
        options.custom_flags(flags.bits().cast_signed());
        let file = loop {
            let file = options.open(path).map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => return Err(JournalError::Held(path.to_owned())),
                other => other.map_err(|e| failed(e.into()))?,
            }
            // Between the two lines another may have taken its place, or taken it away.
            if file.metadata().map_err(failed)?.nlink() > 0 {
                break file;
            }
        };
        if !is_ours(path, &file).map_err(failed)? {
            return Err(JournalError::Untrusted(path.to_owned()));
        }
        let mut journal = Self {
            path: path.to_owned(),
            file,
            entries: HashMap::new(),
            lines: 0,
            is_cut: false,
        };
        journal.read(&boot().map_err(failed)?)?;
        Ok(journal)
    }

    fn read(&mut self, boot: &str) -> Result<(), JournalError> {
        let path = self.path.clone();
        let failed = |error: io::Error| JournalError::Io {
            path: path.clone(),
            error,
        };
        let mut text = Vec::new();
        (&self.file)
            .take(LONGEST + 1)
            .read_to_end(&mut text)
            .map_err(failed)?;
        if text.len() as u64 > LONGEST {
            return Err(JournalError::Other(path));
        }
        let mut lines = text.split_inclusive(|&byte| byte == b'\n');
        match lines.next().map(serde_json::from_slice) {
            Some(Ok(Line::Journal {
                version: VERSION,
                boot: of,
            })) if of == boot => {}
            // What it says was of a kernel that is gone, or its first line was being written.
            Some(Ok(Line::Journal { .. })) | None => return self.begin(boot).map_err(failed),
            Some(_) if !text.contains(&b'\n') && text.starts_with(BEGINS) => {
                return self.begin(boot).map_err(failed);
            }
            Some(_) => return Err(JournalError::Other(path)),
        }
        for line in lines.filter(|line| !line.trim_ascii().is_empty()) {
            self.lines += 1;
            // A line that was cut was being written when its writer ended, before it changed anything.
            match serde_json::from_slice(line) {
                Ok(Line::Changes(entry)) => self.take(entry),
                Ok(Line::Undone(thing)) => {
                    self.entries.remove(&thing);
                }
                Ok(Line::Journal { .. }) => {}
                Err(error) => tracing::warn!(%error, "a line of the journal says nothing"),
            }
        }
        self.is_cut = text.last().is_some_and(|&byte| byte != b'\n');
        Ok(())
    }

    /// A new one.
    fn begin(&mut self, boot: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.write(&Line::Journal {
            version: VERSION,
            boot: boot.to_owned(),
        })
    }

    /// What was there first stays.
    fn take(&mut self, entry: Entry) {
        match self.entries.get_mut(&entry.thing) {
            Some(first) => {
                first.largest = first.largest.max(entry.after.bytes());
                first.earlier = Some(std::mem::replace(&mut first.after, entry.after));
            }
            None => {
                let largest = entry.largest.max(entry.after.bytes());
                let entry = Entry { largest, ..entry };
                self.entries.insert(entry.thing.clone(), entry);
            }
        }
    }

    /// To be called before `entry.thing` is changed.
    ///
    /// # Errors
    /// It cannot be written, and nothing is to be changed.
    pub fn note(&mut self, entry: Entry) -> io::Result<()> {
        if self.entries.len() >= THINGS && !self.entries.contains_key(&entry.thing) {
            return Err(io::Error::other(format!(
                "{THINGS} things are in it, and no more may be"
            )));
        }
        self.write(&Line::Changes(entry.clone()))?;
        self.take(entry);
        self.compact_if_long()
    }

    /// It is as it was, or is not there any more.
    ///
    /// # Errors
    /// The system's.
    pub fn undone(&mut self, thing: &Thing) -> io::Result<()> {
        if self.entries.remove(thing).is_some() {
            self.write(&Line::Undone(thing.clone()))?;
        }
        self.compact_if_long()
    }

    fn compact_if_long(&mut self) -> io::Result<()> {
        match self.lines > IDLE_LINES + 2 * self.entries.len() {
            true => self.compact(),
            false => Ok(()),
        }
    }

    /// What was changed, and is to be undone.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// The entry of this, if it was changed.
    pub fn entry(&self, thing: &Thing) -> Option<&Entry> {
        self.entries.get(thing)
    }

    /// Takes the file away, if all is undone.
    ///
    /// # Errors
    /// The system's.
    pub fn close(self) -> io::Result<()> {
        match self.entries.is_empty() {
            true => fs::remove_file(&self.path),
            false => Ok(()),
        }
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        let mut text = Vec::new();
        if self.is_cut {
            text.push(b'\n');
        }
        serde_json::to_writer(&mut text, line)?;
        text.push(b'\n');
        self.lines += 1;
        self.is_cut = true;
        self.file.write_all(&text)?;
        self.is_cut = false;
        Ok(())
    }

    /// Only what says something, in a file that takes this one's place.
    fn compact(&mut self) -> io::Result<()> {
        let mut path = self.path.clone().into_os_string();
        path.push(".new");
        let path = PathBuf::from(path);
        // One that was left by a process that ended here.
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.read(true).append(true).create_new(true).mode(0o600);
        let mut file = options.open(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let mut text = serde_json::to_vec(&Line::Journal {
            version: VERSION,
            boot: boot()?,
        })?;
        text.push(b'\n');
        for entry in self.entries.values() {
            serde_json::to_writer(&mut text, &Line::Changes(entry.clone()))?;
            text.push(b'\n');
        }
        file.write_all(&text)?;
        fs::rename(&path, &self.path)?;
        (self.file, self.lines, self.is_cut) = (file, self.entries.len(), false);
        Ok(())
    }
}

#[cfg(test)]
impl Journal {
    /// One to which nothing can be written any more.
    pub(crate) fn full() -> Self {
        Self {
            path: PathBuf::from("/dev/full"),
            file: OpenOptions::new().append(true).open("/dev/full").unwrap(),
            entries: HashMap::new(),
            lines: 0,
            is_cut: false,
        }
    }
}

/// Which boot of the kernel this is.
pub(crate) fn boot() -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(boot.trim_end().to_owned())
}

/// Whether nobody else can have written it: who may write to its directory could have put it there.
pub(crate) fn is_ours(path: &Path, file: &File) -> io::Result<bool> {
    let me = rustix::process::geteuid().as_raw();
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => fs::metadata(parent)?,
        _ => fs::metadata(".")?,
    };
    let file = file.metadata()?;
    let others = 0o022;
    // Who is root may do all of that.
    let of_us = |owner: u32| owner == me || owner == 0;
    Ok(file.is_file()
        && of_us(file.uid())
        && of_us(directory.uid())
        && (file.mode() | directory.mode()) & others == 0)
}

#[cfg(test)]
impl Journal {
    /// The same, also while a program that another test just starts has all files of this process.
    pub(crate) fn free(path: &Path) -> Result<Self, JournalError> {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            match Self::open(path) {
                Err(JournalError::Held(_)) if std::time::Instant::now() < until => {
                    std::thread::yield_now();
                }
                other => return other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(thing: Thing, before: &str, after: &str) -> Entry {
        let text = |text: &str| Value::Text(text.to_owned());
        Entry {
            thing,
            before: text(before),
            after: text(after),
            earlier: None,
            largest: 0,
        }
    }

    #[test]
    fn what_was_there_first_is_what_is_undone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/journal");
        let mut journal = Journal::free(&path).unwrap();
        journal
            .note(entry(Thing::SendMaximum(1), "1", "2"))
            .unwrap();
        journal
            .note(entry(Thing::SendMaximum(1), "2", "3"))
            .unwrap();
        journal
            .note(entry(Thing::ReceiveMaximum(1), "8", "9"))
            .unwrap();
        journal.undone(&Thing::ReceiveMaximum(1)).unwrap();
        // As by kill -9.
        drop(journal);
        let journal = Journal::free(&path).unwrap();
        let left: Vec<_> = journal.entries().cloned().collect();
        let earlier = Some(Value::Text("2".to_owned()));
        let expected = Entry {
            earlier,
            ..entry(Thing::SendMaximum(1), "1", "3")
        };
        assert_eq!(left, [expected]);
        journal.close().unwrap();
        assert!(path.exists());
    }

    #[test]
    fn a_journal_is_gone_when_all_is_undone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::free(&path).unwrap();
        journal
            .note(entry(Thing::SendMaximum(1), "1", "2"))
            .unwrap();
        journal.undone(&Thing::SendMaximum(1)).unwrap();
        journal.close().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn one_at_a_time_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let held = Journal::free(&path).unwrap();
        let second = Journal::open(&path).unwrap_err();
        assert!(matches!(second, JournalError::Held(_)), "{second}");
        assert!(
            second
                .to_string()
                .contains("one `taut tune --apply` at a time")
        );
        drop(held);
        Journal::free(&path).unwrap();
    }

    #[test]
    fn a_line_that_was_cut_and_lines_of_others_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::free(&path).unwrap();
        journal
            .note(entry(Thing::SendMaximum(1), "1", "2"))
            .unwrap();
        drop(journal);
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, [&whole[..], b"\xff{}\n", &whole[..cut]].concat()).unwrap();
            let mut journal = Journal::free(&path).unwrap();
            journal
                .note(entry(Thing::ReceiveMaximum(1), "8", "9"))
                .unwrap();
            drop(journal);
            assert_eq!(Journal::free(&path).unwrap().entries().count(), 2, "{cut}");
        }
    }

    #[test]
    fn it_grows_with_what_is_to_be_undone_and_not_with_what_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::free(&path).unwrap();
        journal
            .note(entry(Thing::SendMaximum(1), "1", "2"))
            .unwrap();
        for cookie in 0..3000 {
            let thing = Thing::SendBuffer(cookie);
            journal.note(entry(thing.clone(), "1", "2")).unwrap();
            journal.undone(&thing).unwrap();
        }
        assert!(fs::read_to_string(&path).unwrap().lines().count() < 1100);
        // It is still locked, and still goes on.
        assert!(matches!(Journal::open(&path), Err(JournalError::Held(_))));
        journal
            .note(entry(Thing::ReceiveMaximum(1), "1", "2"))
            .unwrap();
        drop(journal);
        assert_eq!(Journal::free(&path).unwrap().entries().count(), 2);
    }

    #[test]
    fn a_journal_of_another_boot_says_nothing_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::free(&path).unwrap();
        journal
            .note(entry(Thing::SendMaximum(1), "1", "2"))
            .unwrap();
        drop(journal);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace(&boot().unwrap(), "another")).unwrap();
        assert_eq!(Journal::free(&path).unwrap().entries().count(), 0);
    }

    #[test]
    fn what_is_no_journal_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        for text in [
            "127.0.0.1 localhost\n",
            "{}\n",
            "x",
            "{\"undone\":{\"send-buffer\":1}}\n",
        ] {
            fs::write(&path, text).unwrap();
            assert!(
                matches!(Journal::free(&path), Err(JournalError::Other(_))),
                "{text}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn what_another_user_could_have_written_is_not_believed() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        drop(Journal::free(&path).unwrap());
        for (of, open, closed) in [(&*path, 0o622, 0o600), (dir.path(), 0o777, 0o700)] {
            fs::set_permissions(of, fs::Permissions::from_mode(open)).unwrap();
            assert!(
                matches!(Journal::free(&path), Err(JournalError::Untrusted(_))),
                "{of:?}"
            );
            fs::set_permissions(of, fs::Permissions::from_mode(closed)).unwrap();
            Journal::free(&path).unwrap();
        }
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(matches!(Journal::free(&path), Err(JournalError::Io { .. })));
    }
}
