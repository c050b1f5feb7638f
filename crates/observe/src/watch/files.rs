//! Writes a sequence of files and deletes the oldest.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The beginning of each file's name.
const PREFIX: &str = "connections-";
/// The additional suffix of a file that becomes readable only when it is complete.
const PART: &str = ".part";

/// The format of a file.
pub trait Body: Sized {
    /// The unit of writing.
    type Entry<'a>;

    /// The suffix of the file's name.
    const SUFFIX: &'static str;
    /// Whether the file is readable while it is being written.
    const IS_READABLE_AT_ONCE: bool;

    /// Begins an empty file.
    ///
    /// # Errors
    /// The file cannot be written.
    fn begin(file: File) -> io::Result<Self>;

    /// Returns the length of the file in bytes, or an estimate.
    fn length(&self) -> u64;

    /// Returns how many bytes an entry would add, or an estimate.
    fn length_of(entry: &Self::Entry<'_>) -> u64;

    /// Returns the number of entries that would be lost if no more could be written to the file.
    fn at_stake(&self) -> u64;

    /// Adds an entry.
    ///
    /// # Errors
    /// The file cannot be written.
    fn write(&mut self, entry: Self::Entry<'_>) -> io::Result<()>;

    /// Writes buffered entries, if the format allows it.
    ///
    /// # Errors
    /// The file cannot be written.
    fn flush(&mut self) -> io::Result<()>;

    /// Completes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    fn close(self) -> io::Result<()>;

    /// Abandons the file after an error, without further writes.
    fn give_up(self);
}

/// Entries that were lost.
#[derive(Debug)]
pub struct Lost {
    /// Number of entries.
    pub entries: u64,
    /// The error that lost them.
    pub error: io::Error,
}

/// When to begin a new file, and how many files to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The largest size of a file, in bytes. A single entry may be larger.
    pub size: u64,
    /// The maximum time for which one file is written.
    pub time: Duration,
    /// The number of files to keep, including the current one and those of earlier runs.
    pub keep: usize,
}

/// A sequence of files in a directory. Other files there are left alone.
#[derive(Debug)]
pub struct Files<B> {
    dir: PathBuf,
    rotation: Rotation,
    current: Option<Current<B>>,
}

#[derive(Debug)]
struct Current<B> {
    body: B,
    path: PathBuf,
    began: SystemTime,
}

// === impl Files ===

impl<B: Body> Files<B> {
    /// Writes files into this directory, and creates it if it is missing.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn in_dir(dir: &Path, rotation: Rotation) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            rotation,
            current: None,
        })
    }

    /// Writes an entry, to a new file if the current one is full or old.
    ///
    /// # Errors
    /// The file cannot be written, for example because the disk is full. The entry is lost or half
    /// written; the next entry begins a new file.
    pub fn write(&mut self, now: SystemTime, entry: B::Entry<'_>) -> Result<(), Lost> {
        let length = B::length_of(&entry);
        let is_over = |current: &Current<B>| self.is_over(current, now, length);
        if self.current.as_ref().is_some_and(is_over) {
            self.close()?;
        }
        let current = match &mut self.current {
            Some(current) => current,
            none => {
                let begun = Self::begin(&self.dir, now, self.rotation.keep);
                none.insert(begun.map_err(|error| Lost { entries: 1, error })?)
            }
        };
        match current.body.write(entry) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.give_up(error)),
        }
    }

    fn is_over(&self, current: &Current<B>, now: SystemTime, more: u64) -> bool {
        let length = current.body.length();
        self.is_old(current, now) || length > 0 && length + more > self.rotation.size
    }

    fn is_old(&self, current: &Current<B>, now: SystemTime) -> bool {
        // After the clock was set back, the age counts as zero.
        let age = now.duration_since(current.began).unwrap_or_default();
        age >= self.rotation.time
    }

    /// Writes buffered entries, and completes the file if it is old.
    ///
    /// # Errors
    /// As [`Files::write`].
    pub fn flush(&mut self, now: SystemTime) -> Result<(), Lost> {
        let is_old = |current: &Current<B>| self.is_old(current, now);
        if self.current.as_ref().is_some_and(is_old) {
            return self.close();
        }
        match self.current.as_mut().map(|current| current.body.flush()) {
            Some(Err(error)) => Err(self.give_up(error)),
            _ => Ok(()),
        }
    }

    /// Completes the current file.
    ///
    /// # Errors
    /// As [`Files::write`].
    pub fn close(&mut self) -> Result<(), Lost> {
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        let entries = current.body.at_stake();
        let closed = current
            .body
            .close()
            .and_then(|()| match B::IS_READABLE_AT_ONCE {
                true => Ok(()),
                false => fs::rename(with_part(&current.path), &current.path),
            });
        closed.map_err(|error| {
            Self::remove_part(&current.path);
            Lost { entries, error }
        })
    }

    /// Abandons the current file.
    fn give_up(&mut self, error: io::Error) -> Lost {
        let mut entries = 1;
        if let Some(current) = self.current.take() {
            entries = entries.max(current.body.at_stake());
            current.body.give_up();
            Self::remove_part(&current.path);
        }
        Lost { entries, error }
    }

    /// Deletes an incomplete file, which is not readable.
    fn remove_part(path: &Path) {
        if !B::IS_READABLE_AT_ONCE {
            // If this fails, pruning deletes the file later as one of the oldest.
            let _ = fs::remove_file(with_part(path));
        }
    }

    fn begin(dir: &Path, now: SystemTime, keep: usize) -> io::Result<Current<B>> {
        // Some file systems and programs do not accept colons.
        let time = humantime::format_rfc3339_seconds(now)
            .to_string()
            .replace(':', "-");
        // Files that begin in the same second get a number.
        let names = (0..1000u32).map(|number| match number {
            0 => format!("{PREFIX}{time}{}", B::SUFFIX),
            number => format!("{PREFIX}{time}.{number:03}{}", B::SUFFIX),
        });
        for path in names.map(|name| dir.join(name)) {
            let (written, other) = match B::IS_READABLE_AT_ONCE {
                true => (path.clone(), None),
                false => (with_part(&path), Some(&path)),
            };
            if other.is_some_and(|other| other.exists()) {
                continue;
            }
            // Only the owner and the group may read who talks to whom.
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o640);
            match options.open(written) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                opened => {
                    let body = B::begin(opened?)?;
                    Self::prune(dir, keep)?;
                    return Ok(Current {
                        body,
                        path,
                        began: now,
                    });
                }
            }
        }
        Err(io::Error::other(
            "a thousand files were started in one second",
        ))
    }

    /// Deletes the oldest files.
    fn prune(dir: &Path, keep: usize) -> io::Result<()> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name();
            let ours = |name: &&str| {
                let whole = name.strip_suffix(PART).unwrap_or(name);
                name.starts_with(PREFIX) && whole.ends_with(B::SUFFIX)
            };
            if let Some(name) = name.to_str().filter(ours) {
                names.push(name.to_owned());
            }
        }
        // The names contain the time, so they sort by age.
        names.sort_unstable_by(|a, b| stem::<B>(a).cmp(stem::<B>(b)));
        let over = names.len().saturating_sub(keep.max(1));
        for name in &names[..over] {
            match fs::remove_file(dir.join(name)) {
                // Another process deleted it first.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        Ok(())
    }
}

/// Returns the sort key of a name. It sorts a file without a number before numbered files of the
/// same second.
fn stem<B: Body>(name: &str) -> &str {
    let whole = name.strip_suffix(PART).unwrap_or(name);
    whole.strip_suffix(B::SUFFIX).unwrap_or(whole)
}

fn with_part(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(PART);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::line::Lines;

    const ROTATION: Rotation = Rotation {
        size: 100,
        time: Duration::from_secs(60),
        keep: 3,
    };

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable_by(|a, b| stem::<Lines>(a).cmp(stem::<Lines>(b)));
        names
    }

    fn lengths(dir: &Path) -> Vec<u64> {
        let length = |name: &String| fs::metadata(dir.join(name)).unwrap().len();
        names(dir).iter().map(length).collect()
    }

    #[test]
    fn a_file_is_as_long_and_as_old_as_it_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::<Lines>::in_dir(dir.path(), ROTATION).unwrap();
        for second in [0, 0, 1] {
            files.write(at(second), &[b'x'; 40]).unwrap();
        }
        // With this entry the file would have 120 bytes.
        assert_eq!(names(dir.path()).len(), 2);
        files.write(at(60), &[b'x'; 10]).unwrap();
        assert_eq!(
            names(dir.path()).len(),
            2,
            "of the second file 59 s are over"
        );
        files.write(at(61), &[b'x'; 10]).unwrap();
        files.close().unwrap();
        assert_eq!(lengths(dir.path()), [80, 50, 10]);
        assert_eq!(
            names(dir.path())[1],
            "connections-1970-01-01T00-00-01Z.jsonl"
        );
    }

    #[test]
    fn a_line_that_is_longer_than_a_file_has_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::<Lines>::in_dir(dir.path(), ROTATION).unwrap();
        for length in [10, 500, 10] {
            files.write(at(0), &vec![b'x'; length]).unwrap();
        }
        files.close().unwrap();
        assert_eq!(lengths(dir.path()), [10, 500, 10]);
    }

    #[test]
    fn the_oldest_go_and_other_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("connections-and-more.txt"), "").unwrap();
        for run in 0..2 {
            let mut files = Files::<Lines>::in_dir(dir.path(), ROTATION).unwrap();
            for second in 0..4 {
                files.write(at(run * 1000 + second), &[b'x'; 90]).unwrap();
            }
            files.close().unwrap();
        }
        assert_eq!(
            names(dir.path()),
            [
                "connections-1970-01-01T00-16-41Z.jsonl",
                "connections-1970-01-01T00-16-42Z.jsonl",
                "connections-1970-01-01T00-16-43Z.jsonl",
                "connections-and-more.txt",
            ]
        );
    }

    #[test]
    fn files_of_one_second_have_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::<Lines>::in_dir(dir.path(), ROTATION).unwrap();
        for length in [91, 92, 93, 94] {
            files.write(at(5), &vec![b'x'; length]).unwrap();
        }
        files.close().unwrap();
        assert_eq!(lengths(dir.path()), [92, 93, 94]);
    }

    #[test]
    fn after_a_fault_the_next_line_begins_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let within = dir.path().join("within");
        let mut files = Files::<Lines>::in_dir(&within, ROTATION).unwrap();
        fs::remove_dir(&within).unwrap();
        assert!(files.write(at(0), b"lost\n").is_err());
        fs::create_dir(&within).unwrap();
        files.write(at(0), b"kept\n").unwrap();
        files.flush(at(0)).unwrap();
        assert_eq!(lengths(&within), [5]);
    }
}
