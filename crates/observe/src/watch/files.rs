//! Files that are written one after the other, and of which the oldest go.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// What a file's name begins with, and ends with.
const PREFIX: &str = "connections-";
const SUFFIX: &str = ".jsonl";

/// When the next file begins, and how many are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// With the line that would make a file longer than this, in bytes. One that is longer by itself has a file of
    /// its own.
    pub size: u64,
    /// When a file is so old.
    pub time: Duration,
    /// Files, the one that is written included; those of earlier runs count.
    pub keep: usize,
}

/// The files in a directory. Others in it are left alone.
#[derive(Debug)]
pub struct Files {
    dir: PathBuf,
    rotation: Rotation,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    file: BufWriter<File>,
    length: u64,
    began: SystemTime,
}

// === impl Files ===

impl Files {
    /// In this directory, which is made if it is not there.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn in_dir(dir: &Path, rotation: Rotation) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            rotation,
            current: None,
        })
    }

    /// Writes a line, into the next file if it is time for that.
    ///
    /// # Errors
    /// The system's, such as a full disk. The line is lost, or half written; the next one begins a new file.
    pub fn write(&mut self, now: SystemTime, line: &[u8]) -> io::Result<()> {
        let written = self.try_write(now, line);
        if written.is_err() {
            // What is buffered would fail again when it is dropped.
            if let Some(current) = self.current.take() {
                let _ = current.file.into_parts();
            }
        }
        written
    }

    fn try_write(&mut self, now: SystemTime, line: &[u8]) -> io::Result<()> {
        let length = line.len() as u64;
        if self
            .current
            .as_ref()
            .is_some_and(|current| self.is_over(current, now, length))
        {
            self.close()?;
        }
        let current = match &mut self.current {
            Some(current) => current,
            none => none.insert(Self::begin(&self.dir, now)?),
        };
        if current.length == 0 {
            Self::prune(&self.dir, self.rotation.keep)?;
        }
        current.file.write_all(line)?;
        current.length += length;
        Ok(())
    }

    fn is_over(&self, current: &Current, now: SystemTime, more: u64) -> bool {
        // A clock that was set back does not begin a file.
        let age = now.duration_since(current.began).unwrap_or_default();
        age >= self.rotation.time
            || current.length > 0 && current.length + more > self.rotation.size
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// The system's.
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.current {
            Some(current) => current.file.flush(),
            None => Ok(()),
        }
    }

    /// Ends the file that is written.
    ///
    /// # Errors
    /// The system's.
    pub fn close(&mut self) -> io::Result<()> {
        match self.current.take() {
            Some(mut current) => current.file.flush(),
            None => Ok(()),
        }
    }

    fn begin(dir: &Path, now: SystemTime) -> io::Result<Current> {
        // No colons: not every file system and program takes them.
        let time = humantime::format_rfc3339_seconds(now)
            .to_string()
            .replace(':', "-");
        // Another of the same second.
        let names = (0..1000u32).map(|number| match number {
            0 => format!("{PREFIX}{time}{SUFFIX}"),
            number => format!("{PREFIX}{time}.{number:03}{SUFFIX}"),
        });
        for name in names {
            // Who talks to whom is not everybody's business.
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o640);
            match options.open(dir.join(name)) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                opened => {
                    return Ok(Current {
                        file: BufWriter::new(opened?),
                        length: 0,
                        began: now,
                    });
                }
            }
        }
        Err(io::Error::other("a thousand files begin in one second"))
    }

    /// Takes the oldest away.
    fn prune(dir: &Path, keep: usize) -> io::Result<()> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name();
            let ours = |name: &&str| name.starts_with(PREFIX) && name.ends_with(SUFFIX);
            if let Some(name) = name.to_str().filter(ours) {
                names.push(name.to_owned());
            }
        }
        // Their names are their times.
        names.sort_unstable_by(|a, b| stem(a).cmp(stem(b)));
        let over = names.len().saturating_sub(keep.max(1));
        for name in &names[..over] {
            match fs::remove_file(dir.join(name)) {
                // Somebody else was faster.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        Ok(())
    }
}

/// By which a name sorts: the second of a time comes after the first, which has no number.
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
        // It would be 120 bytes.
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
    fn after_a_fault_the_next_line_begins_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let within = dir.path().join("within");
        let mut files = Files::in_dir(&within, ROTATION).unwrap();
        fs::remove_dir(&within).unwrap();
        assert!(files.write(at(0), b"lost\n").is_err());
        fs::create_dir(&within).unwrap();
        files.write(at(0), b"kept\n").unwrap();
        files.flush().unwrap();
        assert_eq!(lengths(&within), [5]);
    }
}
