//! On-disk records of changed tap settings. A record exists until its settings are restored: if a
//! process is killed, the next one restores them.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::device::Device;
use crate::qdisc::Qdisc;

/// The default folder of the records. It does not survive a reboot, and neither do taps.
pub const RECORDS: &str = "/run/taut/snoop";

/// Suffixes of the files beside a record: its lock, and a record that is being written.
const LOCK: &str = ".lock";
const BEGUN: &str = ".begun";

/// A folder of records.
#[derive(Clone, Debug)]
pub struct Records(PathBuf);

/// The record of one tap: its original queueing discipline, or `None` for the kernel's default.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    lock: PathBuf,
    /// The lock. The process that holds it serves the tap.
    #[expect(dead_code, reason = "it is held, and let go when it is dropped")]
    held: File,
}

// === impl Records ===

impl Records {
    /// Uses this folder, which need not exist yet.
    pub fn at(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// Removes records left by killed processes for devices that no longer exist in the calling
    /// thread's network namespace. Records of other namespaces stay.
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
            // A tap that appeared or was renamed since the listing may be in use.
            let record = [LOCK, BEGUN].iter().find_map(|end| name.strip_suffix(end));
            let record = self.0.join(record.unwrap_or(name));
            let held = File::open(beside(&record, LOCK))
                .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err());
            if !held {
                // Another process may have removed it already.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Opens and locks the record of a device of the calling thread's network namespace. (The index
    /// alone may recur in another namespace, and the name for another guest.)
    ///
    /// Fails with `WouldBlock` if another process holds the lock.
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

/// Returns the file name of a device's record. (Device names contain no slash.)
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
        // The rename is atomic, even if this process is killed here.
        let begun = beside(&self.path, BEGUN);
        fs::write(&begun, qdisc.map(Qdisc::encode).unwrap_or_default())?;
        fs::rename(begun, &self.path)
    }

    /// Returns the setting that a killed process recorded; `None` if there is no record.
    pub(crate) fn left(&self, device: &Device) -> Option<Option<Qdisc>> {
        let bytes = fs::read(&self.path).ok()?;
        Some(Qdisc::decode(&bytes, device.index.cast_signed()))
    }

    /// Removes the record once the setting is restored or the device is gone.
    pub(crate) fn remove(&self) {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(record = %self.path.display(), %error, "cannot remove a record");
            }
            _ => {}
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // Removed while locked: a process that has the file open meanwhile cannot lock it, and the
        // next process creates a new one.
        let _ = fs::remove_file(&self.lock);
    }
}
