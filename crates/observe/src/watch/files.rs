//! Writes a sequence of files of lines and deletes the oldest.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The beginning of each file's name.
const PREFIX: &str = "connections-";
/// The suffix of each file's name.
const SUFFIX: &str = ".jsonl";

/// When to begin a new file, and how many files to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The largest size of a file, in bytes. A single line may be longer.
    pub size: u64,
    /// The maximum time for which one file is written.
    pub time: Duration,
    /// The number of files to keep, including the current one and those of earlier runs.
    pub keep: usize,
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// The directory above it does not exist, so its path may be mistyped.
    #[error(
        "{dir}: {parent} does not exist, and only the last directory of a path is created: correct the path, or run \
         `mkdir -p {parent}`",
        dir = dir.display(), parent = parent.display()
    )]
    NoParent {
        /// The directory.
        dir: PathBuf,
        /// The one above it.
        parent: PathBuf,
    },
    /// It is a file, for example.
    #[error("{dir}: this is not a directory: name one in which to write files", dir = _0.display())]
    NotADirectory(PathBuf),
    /// It cannot be created.
    #[error("cannot create the directory {dir}: {source}", dir = dir.display())]
    Create {
        /// The directory.
        dir: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Records that were lost, and why.
#[derive(Debug)]
pub struct Lost {
    /// Number of records.
    pub records: u64,
    /// The error that lost them.
    pub error: io::Error,
}

/// The size of the buffer of lines from which on it is written.
const BUFFER: usize = 64 << 10;

/// A sequence of files in a directory. Other files there are left alone.
#[derive(Debug)]
pub struct Files {
    dir: PathBuf,
    rotation: Rotation,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    path: PathBuf,
    file: File,
    /// Lines that have not been written yet, and their number.
    buffer: Vec<u8>,
    buffered: u64,
    /// The length of the file with these lines.
    length: u64,
    /// Whether a line is in the file.
    is_used: bool,
    began: SystemTime,
}

// === impl Files ===

impl Files {
    /// Writes files into this directory, and creates it if it is missing. Does not create those above
    /// it: a mistyped path would fill the disk where nobody looks.
    ///
    /// # Errors
    /// [`DirError`].
    pub fn in_dir(dir: &Path, rotation: Rotation) -> Result<Self, DirError> {
        if let Err(source) = fs::create_dir(dir)
            && !dir.is_dir()
        {
            let dir = dir.to_owned();
            return Err(match (source.kind(), dir.parent()) {
                (io::ErrorKind::NotFound, Some(parent)) => DirError::NoParent {
                    parent: parent.to_owned(),
                    dir,
                },
                (io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory, _) => {
                    DirError::NotADirectory(dir)
                }
                _ => DirError::Create { dir, source },
            });
        }
        Ok(Self {
            dir: dir.to_owned(),
            rotation,
            current: None,
        })
    }

    /// Adds a line, to a new file if the current one is full or old.
    ///
    /// # Errors
    /// The file cannot be written, for example because the disk is full. The next line begins a new
    /// file.
    pub fn write(&mut self, now: SystemTime, line: &[u8]) -> Result<(), Lost> {
        let length = line.len() as u64;
        let is_over = |current: &Current| {
            self.is_old(current, now)
                || current.length > 0 && current.length + length > self.rotation.size
        };
        let ended = match self.current.as_ref().is_some_and(is_over) {
            true => self.close(),
            false => Ok(()),
        };
        match (ended, self.add(now, line)) {
            (Err(ended), Err(added)) => Err(Lost {
                records: ended.records + added.records,
                error: added.error,
            }),
            (ended, added) => ended.and(added),
        }
    }

    /// Adds a line to the current file, or to a new one if there is none.
    fn add(&mut self, now: SystemTime, line: &[u8]) -> Result<(), Lost> {
        let current = match &mut self.current {
            Some(current) => current,
            none => {
                let lost = |error| Lost { records: 1, error };
                none.insert(Self::begin(&self.dir, now).map_err(lost)?)
            }
        };
        current.buffer.extend_from_slice(line);
        current.buffered += 1;
        current.length += line.len() as u64;
        match current.buffer.len() < BUFFER {
            true => Ok(()),
            false => self.write_out(),
        }
    }

    fn is_old(&self, current: &Current, now: SystemTime) -> bool {
        // After the clock was set back, the age counts as zero.
        let age = now.duration_since(current.began).unwrap_or_default();
        age >= self.rotation.time
    }

    /// Writes buffered lines, and ends the file if it is old.
    ///
    /// # Errors
    /// As [`Files::write`].
    pub fn flush(&mut self, now: SystemTime) -> Result<(), Lost> {
        let is_old = |current: &Current| self.is_old(current, now);
        match self.current.as_ref().is_some_and(is_old) {
            true => self.close(),
            false => self.write_out(),
        }
    }

    /// Ends the current file.
    ///
    /// # Errors
    /// As [`Files::write`].
    pub fn close(&mut self) -> Result<(), Lost> {
        let written = self.write_out();
        self.current = None;
        written
    }

    /// Writes the buffered lines. After an error the file is ended, and removed if it has no line.
    /// Older files are deleted only for one that has a line: files that cannot be written replace none.
    fn write_out(&mut self) -> Result<(), Lost> {
        let Some(current) = self.current.as_mut().filter(|of| of.buffered > 0) else {
            return Ok(());
        };
        let written = current.file.write_all(&current.buffer);
        let records = std::mem::take(&mut current.buffered);
        current.buffer.clear();
        if let Err(error) = written {
            if !current.is_used {
                let _ = fs::remove_file(&current.path);
            }
            self.current = None;
            return Err(Lost { records, error });
        }
        if !std::mem::replace(&mut current.is_used, true) {
            let pruned = Self::prune(&self.dir, self.rotation.keep);
            return pruned.map_err(|error| Lost { records: 0, error });
        }
        Ok(())
    }

    fn begin(dir: &Path, now: SystemTime) -> io::Result<Current> {
        // Some file systems and programs do not accept colons.
        let time = humantime::format_rfc3339_seconds(now)
            .to_string()
            .replace(':', "-");
        // Files that begin in the same second get a number.
        let names = (0..1000u32).map(|number| match number {
            0 => format!("{PREFIX}{time}{SUFFIX}"),
            number => format!("{PREFIX}{time}.{number:03}{SUFFIX}"),
        });
        for path in names.map(|name| dir.join(name)) {
            // Only the owner and the group may read who talks to whom.
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o640);
            match options.open(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                opened => {
                    return Ok(Current {
                        path,
                        file: opened?,
                        buffer: Vec::new(),
                        buffered: 0,
                        length: 0,
                        is_used: false,
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
            let ours = |name: &&str| name.starts_with(PREFIX) && name.ends_with(SUFFIX);
            if let Some(name) = name.to_str().filter(ours) {
                names.push(name.to_owned());
            }
        }
        // The names contain the time, so they sort by age.
        names.sort_unstable_by(|a, b| stem(a).cmp(stem(b)));
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
fn stem(name: &str) -> &str {
    name.strip_suffix(SUFFIX).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        names.sort_unstable_by(|a, b| stem(a).cmp(stem(b)));
        names
    }

    fn lengths(dir: &Path) -> Vec<u64> {
        let length = |name: &String| fs::metadata(dir.join(name)).unwrap().len();
        names(dir).iter().map(length).collect()
    }

    #[test]
    fn a_file_is_as_long_and_as_old_as_it_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::in_dir(dir.path(), ROTATION).unwrap();
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
    fn only_the_last_directory_of_a_path_is_created() {
        let dir = tempfile::tempdir().unwrap();
        let within = dir.path().join("within");
        for _ in 0..2 {
            Files::in_dir(&within, ROTATION).unwrap();
        }
        let parent = dir.path().join("typo");
        let error = Files::in_dir(&parent.join("taut"), ROTATION).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains(&format!("mkdir -p {}`", parent.display())),
            "{said}"
        );
        assert_eq!(names(dir.path()), ["within"]);
        let file = within.join("file");
        fs::write(&file, "").unwrap();
        for not in [file.clone(), file.join("below")] {
            let error = Files::in_dir(&not, ROTATION).unwrap_err();
            assert!(matches!(error, DirError::NotADirectory(_)), "{error}");
        }
    }

    #[test]
    fn a_line_that_is_longer_than_a_file_has_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::in_dir(dir.path(), ROTATION).unwrap();
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
            let mut files = Files::in_dir(dir.path(), ROTATION).unwrap();
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
        let mut files = Files::in_dir(dir.path(), ROTATION).unwrap();
        for length in [91, 92, 93, 94] {
            files.write(at(5), &vec![b'x'; length]).unwrap();
        }
        files.close().unwrap();
        assert_eq!(lengths(dir.path()), [92, 93, 94]);
    }

    #[test]
    fn what_an_ended_file_and_the_next_one_lose_is_counted_together() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::in_dir(dir.path(), ROTATION).unwrap();
        files.write(at(1), b"lost\n").unwrap();
        let current = files.current.as_mut().unwrap();
        current.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        fs::remove_dir_all(dir.path()).unwrap();
        let later = at(1) + ROTATION.time;
        assert_eq!(files.write(later, b"lost\n").unwrap_err().records, 2);
    }

    #[test]
    fn a_file_that_cannot_be_written_replaces_none() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("connections-1970-01-01T00-00-00Z.jsonl");
        fs::write(&kept, "kept\n").unwrap();
        let rotation = Rotation {
            keep: 1,
            ..ROTATION
        };
        let mut files = Files::in_dir(dir.path(), rotation).unwrap();
        for second in 1..4 {
            files.write(at(second), b"lost\n").unwrap();
            files.write(at(second), b"lost\n").unwrap();
            // As on a full disk.
            let current = files.current.as_mut().unwrap();
            current.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
            assert_eq!(files.flush(at(second)).unwrap_err().records, 2);
        }
        assert_eq!(lengths(dir.path()), [5]);
        files.write(at(9), b"later\n").unwrap();
        files.close().unwrap();
        assert_eq!(lengths(dir.path()), [6]);
    }

    #[test]
    fn after_a_fault_the_next_line_begins_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let within = dir.path().join("within");
        let mut files = Files::in_dir(&within, ROTATION).unwrap();
        fs::remove_dir(&within).unwrap();
        assert!(files.write(at(0), b"lost\n").is_err());
        fs::create_dir(&within).unwrap();
        files.write(at(0), b"kept\n").unwrap();
        files.flush(at(0)).unwrap();
        assert_eq!(lengths(&within), [5]);
    }
}
