//! What was changed at taps, on disk until it has been put back: a process that is killed leaves it to
//! the next one.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::device::Device;
use crate::qdisc::Qdisc;

/// Where records are, if nothing else is said. A folder that does not outlive the machine's start, as
/// taps do not.
pub const RECORDS: &str = "/run/taut/snoop";

/// How the names of files end that are beside a record: the lock, and the record that is being written.
const LOCK: &str = ".lock";
const BEGUN: &str = ".begun";

/// A folder of records.
#[derive(Clone, Debug)]
pub struct Records(PathBuf);

/// The record of one tap: its queueing discipline as it was. `None` is the kernel's choice.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    lock: PathBuf,
    /// Whoever holds it serves the tap.
    #[expect(dead_code, reason = "it is held, and let go when it is dropped")]
    held: File,
}

// === impl Records ===

impl Records {
    /// Those of this folder, which need not be there yet.
    pub fn at(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// Removes the records of devices that are no longer in the calling thread's network namespace: what a
    /// killed process has left of a guest that went before the next one came. What is there of other
    /// namespaces stays.
    pub fn sweep(&self, devices: &[Device]) {
        let Ok(netns) = fs::metadata("/proc/thread-self/ns/net") else {
            return;
        };
        let present: HashSet<String> = devices
            .iter()
            .map(|device| name_of(netns.ino(), device))
            .collect();
        let here = format!("{}-", netns.ino());
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| name.starts_with(&here)) else {
                continue;
            };
            let of_one = |end| name.strip_suffix(end).is_some_and(|d| present.contains(d));
            if present.contains(name) || of_one(LOCK) || of_one(BEGUN) {
                continue;
            }
            // A tap that has come since, or that has another name by now, is somebody's.
            let record = [LOCK, BEGUN].iter().find_map(|end| name.strip_suffix(end));
            let record = self.0.join(record.unwrap_or(name));
            let held = File::open(beside(&record, LOCK))
                .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err());
            if !held {
                // Another process may have done it.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Where the record of a device of the calling thread's network namespace is, or would be. (Its
    /// number alone may come again in another namespace, and its name for another guest.)
    ///
    /// `WouldBlock`: another process has it.
    pub(crate) fn of(&self, device: &Device) -> io::Result<Record> {
        let netns = fs::metadata("/proc/thread-self/ns/net")?.ino();
        let name = name_of(netns, device);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)?;
        let path = self.0.join(name);
        let lock = beside(&path, LOCK);
        let held = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock)?;
        flock(&held, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Record { path, lock, held })
    }
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(end);
    path.into()
}

/// No device's name has a slash in it.
fn name_of(netns: u64, device: &Device) -> String {
    format!("{netns}-{}-{}", device.index, device.name)
}

impl Default for Records {
    fn default() -> Self {
        Self::at(Path::new(RECORDS))
    }
}

// === impl Record ===

impl Record {
    pub(crate) fn save(&self, qdisc: Option<&Qdisc>) -> io::Result<()> {
        // Whole or not at all, also if this process is killed here.
        let begun = beside(&self.path, BEGUN);
        fs::write(&begun, qdisc.map(Qdisc::encode).unwrap_or_default())?;
        fs::rename(begun, &self.path)
    }

    /// What a process has left that was killed; `None` if none has.
    pub(crate) fn left(&self, device: &Device) -> Option<Option<Qdisc>> {
        let bytes = fs::read(&self.path).ok()?;
        Some(Qdisc::decode(&bytes, device.index.cast_signed()))
    }

    /// It has been put back, or its device is gone.
    pub(crate) fn remove(&self) {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(record = %self.path.display(), %error, "a record cannot be removed");
            }
            _ => {}
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // Before it is let go: nobody who has it open meanwhile serves, and the next one makes another.
        let _ = fs::remove_file(&self.lock);
    }
}
