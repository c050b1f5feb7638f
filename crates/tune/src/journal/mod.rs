//! The journal: records the original value of each target before a change, so that the change can
//! be undone.
//!
//! The journal is a file that the tuning process keeps locked. A free lock means that the process
//! has ended; the next process that gets the lock undoes the entries. The first line contains the
//! kernel's boot id, because cookies of sockets and namespaces repeat after a reboot. A file that
//! is not a journal, or that another user could have written, is neither trusted nor changed.

mod entry;

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use taut_sys::file_lock;

pub use self::entry::{Entry, Target, Value};
use crate::trusted_file::{boot, is_ours, open_flags};

/// The default path.
pub const PATH: &str = "/run/taut/tune.journal";
/// The maximum number of changed targets at one time; further targets are left as they are.
const MAX_ENTRIES: usize = 1_000_000;
/// The maximum size of a file to read, in bytes. This program never writes a longer file: it writes
/// at most three lines of 300 bytes for each target.
const MAX_BYTES: u64 = 1 << 30;
/// The file is compacted when it has more obsolete lines than current ones plus this number.
const MAX_OBSOLETE: usize = 1000;
/// The version of the format.
const VERSION: u32 = 1;
/// The beginning of the first line.
const PREFIX: &[u8] = b"{\"journal\"";

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    /// The first line.
    Journal {
        version: u32,
        boot: String,
    },
    Changes(Entry),
    Undone(Target),
}

/// The journal, open and locked.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    entries: HashMap<Target, Entry>,
    lines: usize,
    /// Whether the last line may be incomplete, so that a newline must precede the next line.
    is_cut: bool,
}

/// Why the journal could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process holds the lock.
    #[error("{}: another process holds it: one `taut tune --apply` at a time", .0.display())]
    Held(PathBuf),
    /// The file is something else.
    #[error("{}: this is no journal of taut tune, and is left as it is", .0.display())]
    Other(PathBuf),
    /// Another user could have written the file.
    #[error(
        "{}: another user owns it, or can write to it or to its directory, so it is not trusted: remove it, or choose another --journal",
        .0.display()
    )]
    Untrusted(PathBuf),
    /// A system call failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// The journal.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
}

/// A line of the journal could not be written.
#[derive(Debug, thiserror::Error)]
#[error("the journal cannot be written, and nothing is changed without it: {0}")]
pub struct JournalWriteError(#[from] io::Error);

// === impl Journal ===

impl Journal {
    /// Opens and locks the journal. [`Journal::entries`] then returns the entries that an ended
    /// process has left.
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
        options.custom_flags(open_flags());
        let file = loop {
            let file = options.open(path).map_err(failed)?;
            match file_lock::try_lock(&file) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(JournalError::Held(path.to_owned()));
                }
                other => other.map_err(failed)?,
            }
            // Between open and lock another process may have replaced or removed the file.
            if file.metadata().map_err(failed)?.nlink() > 0 {
                break file;
            }
        };
        let mut journal = Self::of(path, file)?;
        let boot = boot().map_err(failed)?;
        if !journal.read(&boot)? {
            journal.begin(&boot).map_err(failed)?;
        }
        Ok(journal)
    }

    /// Returns the number of changes that a killed process has left; 0 while a process holds the
    /// journal. Changes nothing.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn abandoned(path: &Path) -> Result<usize, JournalError> {
        let failed = |error: io::Error| JournalError::Io {
            path: path.to_owned(),
            error,
        };
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(open_flags());
        let file = match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            other => other.map_err(failed)?,
        };
        let is_locked = |file: &File| file_lock::is_locked(file).map_err(failed);
        if is_locked(&file)? {
            return Ok(0);
        }
        let mut journal = Self::of(path, file)?;
        let read = journal.read(&boot().map_err(failed)?);
        // A process may have started meanwhile; then the file is its own.
        if is_locked(&journal.file)? {
            return Ok(0);
        }
        read?;
        Ok(journal.entries.len())
    }

    /// Returns a journal without entries, of a file that no other process has locked.
    fn of(path: &Path, file: File) -> Result<Self, JournalError> {
        let is_ours = is_ours(path, &file).map_err(|error| JournalError::Io {
            path: path.to_owned(),
            error,
        })?;
        if !is_ours {
            return Err(JournalError::Untrusted(path.to_owned()));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            entries: HashMap::new(),
            lines: 0,
            is_cut: false,
        })
    }

    /// Reads the entries. Returns whether the file is a journal of this boot; otherwise it has to
    /// begin again.
    fn read(&mut self, boot: &str) -> Result<bool, JournalError> {
        let path = self.path.clone();
        let failed = |error: io::Error| JournalError::Io {
            path: path.clone(),
            error,
        };
        let mut text = Vec::new();
        (&self.file)
            .take(MAX_BYTES + 1)
            .read_to_end(&mut text)
            .map_err(failed)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(JournalError::Other(path));
        }
        let mut lines = text.split_inclusive(|&byte| byte == b'\n');
        match lines.next().map(serde_json::from_slice) {
            Some(Ok(Line::Journal {
                version: VERSION,
                boot: of,
            })) if of == boot => {}
            // The entries are from an earlier boot, or the file is empty.
            Some(Ok(Line::Journal { .. })) | None => return Ok(false),
            // The writer ended while writing the first line.
            Some(_) if !text.contains(&b'\n') && text.starts_with(PREFIX) => {
                return Ok(false);
            }
            Some(_) => return Err(JournalError::Other(path)),
        }
        for line in lines.filter(|line| !line.trim_ascii().is_empty()) {
            self.lines += 1;
            match serde_json::from_slice(line) {
                Ok(Line::Changes(entry)) => self.take(entry),
                Ok(Line::Undone(target)) => {
                    self.entries.remove(&target);
                }
                Ok(Line::Journal { .. }) => {}
                // The writer of an incomplete line ended before making that change.
                Err(error) => tracing::warn!(%error, "a line of the journal cannot be read"),
            }
        }
        self.is_cut = text.last().is_some_and(|&byte| byte != b'\n');
        Ok(true)
    }

    /// Truncates the file and writes the first line.
    fn begin(&mut self, boot: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.write(&Line::Journal {
            version: VERSION,
            boot: boot.to_owned(),
        })
    }

    /// Adds an entry in memory. Keeps the original value of an earlier entry.
    fn take(&mut self, entry: Entry) {
        match self.entries.get_mut(&entry.target) {
            Some(first) => {
                first.largest = first.largest.max(entry.after.bytes());
                first.earlier = Some(std::mem::replace(&mut first.after, entry.after));
            }
            None => {
                let largest = entry.largest.max(entry.after.bytes());
                let entry = Entry { largest, ..entry };
                self.entries.insert(entry.target.clone(), entry);
            }
        }
    }

    /// Writes an entry to the journal. Call this before changing `entry.target`.
    ///
    /// # Errors
    /// The entry cannot be written; the caller must not make the change.
    pub fn note(&mut self, entry: Entry) -> Result<(), JournalWriteError> {
        if self.entries.len() >= MAX_ENTRIES && !self.entries.contains_key(&entry.target) {
            let full = format!("it has {MAX_ENTRIES} entries, which is the most");
            return Err(io::Error::other(full).into());
        }
        self.write(&Line::Changes(entry.clone()))?;
        self.take(entry);
        self.compact_if_long()
    }

    /// Removes the entry of a target that has its original value, or no longer exists.
    ///
    /// # Errors
    /// The line cannot be written.
    pub fn undone(&mut self, target: &Target) -> Result<(), JournalWriteError> {
        if self.entries.remove(target).is_some() {
            self.write(&Line::Undone(target.clone()))?;
        }
        self.compact_if_long()
    }

    /// Removes the entries of namespaces that have ended, by their cookies.
    pub(crate) fn forget_namespaces(&mut self, has_ended: impl Fn(u64) -> bool) {
        let is_obsolete = |entry: &&Entry| entry.target.netns().is_some_and(&has_ended);
        let obsolete = self.entries.values().filter(is_obsolete);
        let obsolete: Vec<Target> = obsolete.map(|entry| entry.target.clone()).collect();
        for target in obsolete {
            if let Err(error) = self.undone(&target) {
                tracing::warn!(%error, "the journal keeps entries of a namespace that has ended");
            }
        }
    }

    /// Iterates over the changes to undo.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Returns the entry of this target, if it was changed.
    pub fn entry(&self, target: &Target) -> Option<&Entry> {
        self.entries.get(target)
    }

    /// Removes the file if all changes are undone, and unlocks it.
    ///
    /// # Errors
    /// The file cannot be removed.
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

    fn compact_if_long(&mut self) -> Result<(), JournalWriteError> {
        match self.lines > MAX_OBSOLETE + 2 * self.entries.len() {
            true => Ok(self.compact()?),
            false => Ok(()),
        }
    }

    /// Replaces the file with one without obsolete lines.
    fn compact(&mut self) -> io::Result<()> {
        let mut path = self.path.clone().into_os_string();
        path.push(".new");
        let path = PathBuf::from(path);
        // A process that ended while compacting may have left a temporary file.
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.read(true).append(true).create_new(true).mode(0o600);
        let mut file = options.open(&path)?;
        file_lock::try_lock(&file)?;
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
    /// Returns a journal that cannot be written.
    pub(crate) fn full() -> Self {
        Self {
            path: PathBuf::from("/dev/full"),
            file: OpenOptions::new().append(true).open("/dev/full").unwrap(),
            entries: HashMap::new(),
            lines: 0,
            is_cut: false,
        }
    }

    /// Opens a journal. Waits while a program that another test has just started still has the
    /// inherited descriptors of this process.
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
