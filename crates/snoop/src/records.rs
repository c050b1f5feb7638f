//! On-disk records of changed tap settings. A record exists until its settings are restored: if a
//! process is killed, the next one restores them.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use taut_sys::file_lock;
use taut_sys::job_dir::JobDir;

use crate::device::Device;
use crate::qdisc::Qdisc;

/// The default folder of the records. It does not survive a reboot, and neither do taps.
pub const RECORDS: &str = "/run/taut/snoop";

/// Suffixes of the files beside a record: its lock, and a record that is being written.
const LOCK: &str = ".lock";
const BEGUN: &str = ".new";

/// The maximum size of a record in bytes; a longer file is not Taut's.
const LONGEST: u64 = 1 << 16;

/// A folder of records.
#[derive(Clone, Debug)]
pub struct Records(PathBuf);

/// The record of one tap: its original queueing discipline, or `None` for the kernel's default.
#[derive(Debug)]
pub(crate) struct Record {
    folder: JobDir,
    name: String,
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
        let folder = match JobDir::find(&self.0) {
            Ok(None) => return,
            Ok(Some(folder)) => folder,
            Err(error) => {
                tracing::warn!(%error, "records of removed taps cannot be looked for");
                return;
            }
        };
        let names = folder.names().unwrap_or_default();
        for name in names.iter().filter(|name| name.starts_with(&here)) {
            let of_one = |end| name.strip_suffix(end).is_some_and(|d| present.contains(d));
            if present.contains(name) || of_one(LOCK) || of_one(BEGUN) {
                continue;
            }
            // A tap that appeared or was renamed since the listing may be in use.
            let record = [LOCK, BEGUN].iter().find_map(|end| name.strip_suffix(end));
            let lock = format!("{}{LOCK}", record.unwrap_or(name));
            // Held until the record is removed, so that no other process takes it over meanwhile.
            let held = folder.open_existing(&lock).ok().flatten();
            let is_free = held
                .as_ref()
                .is_none_or(|lock| file_lock::try_lock(lock).is_ok());
            if is_free {
                // Another process may have removed it already.
                let _ = folder.remove(name);
            }
        }
    }

    /// Returns those of the devices of the calling thread's network namespace that have a record of a
    /// process that was killed.
    ///
    /// # Errors
    /// The folder, or the lock of a record, cannot be used.
    pub(crate) fn abandoned<'a>(&self, devices: &'a [Device]) -> io::Result<Vec<&'a Device>> {
        let netns = fs::metadata("/proc/thread-self/ns/net")?.ino();
        let Some(folder) = JobDir::find(&self.0).map_err(io::Error::other)? else {
            return Ok(Vec::new());
        };
        let names: HashSet<String> = folder.names()?.into_iter().collect();
        let mut abandoned = Vec::new();
        for device in devices {
            let name = name_of(netns, device);
            if names.contains(&name) && !folder.is_held(&format!("{name}{LOCK}"))? {
                abandoned.push(device);
            }
        }
        Ok(abandoned)
    }

    /// Opens and locks the record of a device of the calling thread's network namespace. (The index
    /// alone may recur in another namespace, and the name for another guest.)
    ///
    /// Fails with `WouldBlock` if another process holds the lock.
    pub(crate) fn of(&self, device: &Device) -> io::Result<Record> {
        let netns = fs::metadata("/proc/thread-self/ns/net")?.ino();
        let name = name_of(netns, device);
        let folder = JobDir::create(&self.0).map_err(io::Error::other)?;
        let held = folder.try_lock(&format!("{name}{LOCK}"))?;
        Ok(Record { folder, name, held })
    }
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
        let bytes = qdisc.map(Qdisc::encode).unwrap_or_default();
        self.folder.replace(&self.name, &bytes)
    }

    /// Returns the setting that a killed process recorded; `None` if there is no record.
    pub(crate) fn left(&self, device: &Device) -> Option<Option<Qdisc>> {
        let bytes = match self.folder.read(&self.name, LONGEST) {
            Ok(bytes) => bytes?,
            Err(error) => {
                tracing::warn!(record = %self.path().display(), %error, "cannot read a record");
                return None;
            }
        };
        Some(Qdisc::decode(&bytes, device.index.cast_signed()))
    }

    /// Removes the record once the setting is restored or the device is gone.
    pub(crate) fn remove(&self) {
        if let Err(error) = self.folder.remove(&self.name) {
            tracing::warn!(record = %self.path().display(), %error, "cannot remove a record");
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // Removed while locked: a process that locks it afterwards sees that it has no name any more,
        // and creates a new one.
        let _ = self.folder.remove(&format!("{}{LOCK}", self.name));
    }
}
