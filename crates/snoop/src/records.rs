//! What was changed at taps, on disk until it has been put back: a process that is killed leaves it to
//! the next one.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::qdisc::Qdisc;
use crate::tap::Device;

/// Where records are, if nothing else is said. A folder that does not outlive the machine's start, as
/// taps do not.
pub const RECORDS: &str = "/run/taut/snoop";

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

    /// Where the record of a device of the calling thread's network namespace is, or would be. (Its
    /// number alone may come again in another namespace, and its name for another guest.)
    ///
    /// `WouldBlock`: another process has it.
    pub(crate) fn of(&self, device: &Device) -> io::Result<Record> {
        let netns = fs::metadata("/proc/thread-self/ns/net")?.ino();
        // No device's name has a slash in it.
        let name = format!("{netns}-{}-{}", device.index, device.name);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)?;
        let lock = self.0.join(format!("{name}.lock"));
        let held = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock)?;
        flock(&held, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Record {
            path: self.0.join(name),
            lock,
            held,
        })
    }
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
        let begun = self.path.with_extension("begun");
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
