//! What was there before it was changed, written down before it is changed, so that anybody can undo it.
//!
//! The journal is a file that whoever tunes holds locked. One whose lock is free belongs to a process that is gone: whoever gets
//! the lock undoes what it says. Its first line says of which boot of the kernel it is: names of sockets and namespaces come again
//! after another. What is no journal, or could have been written by another user, is neither believed nor touched.

mod entry;

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use taut_sys::Errno;

pub use self::entry::{Entry, Thing, Value};
use crate::trusted_file::{boot, is_ours};

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
mod tests;
