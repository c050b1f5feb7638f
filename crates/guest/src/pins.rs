//! The directory in bpffs, writable only by root, whose pins keep the programs loaded without a
//! process.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use rustix::fs::statfs;
use taut_bpf::read_prefix;

use crate::control::Control;
use crate::error::{LoadError, file, libbpf};

/// The file system of the pins.
pub const BPF_FS: &str = "/sys/fs/bpf";
const TAUT: &str = "/sys/fs/bpf/taut";
const DIRECTORY: &str = "/sys/fs/bpf/taut/guest";
/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// `BPF_STRUCT_OPS_STATE_INUSE` of the kernel: the struct_ops is registered by its map.
const IN_USE: u32 = 1;
/// The names of the registered congestion controls of all network namespaces.
const REGISTERED: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// The longest wait until the kernel has unregistered a congestion control.
const UNREGISTERED_WITHIN: Duration = Duration::from_secs(5);
/// The time between two reads of [`REGISTERED`].
const POLL: Duration = Duration::from_millis(2);

/// The directory of the pins.
#[derive(Debug)]
pub(crate) struct Pins(&'static Path);

// === impl Pins ===

impl Pins {
    /// Returns the directory, or `None` if it does not exist.
    ///
    /// # Errors
    /// [`LoadError::NotRoots`] or [`LoadError::File`].
    pub(crate) fn find() -> Result<Option<Self>, LoadError> {
        if !is_bpf_fs() {
            return Ok(None);
        }
        for directory in [TAUT, DIRECTORY] {
            if !exists(Path::new(directory))? {
                return Ok(None);
            }
        }
        Ok(Some(Self(Path::new(DIRECTORY))))
    }

    /// Creates the directory if it does not exist.
    ///
    /// # Errors
    /// [`LoadError::NoBpfFs`], [`LoadError::NotRoots`] or [`LoadError::File`].
    pub(crate) fn make() -> Result<Self, LoadError> {
        if !is_bpf_fs() {
            return Err(LoadError::NoBpfFs);
        }
        for directory in [TAUT, DIRECTORY].map(Path::new) {
            match DirBuilder::new().mode(0o700).create(directory) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(file("create", directory)(e));
                }
                // Checked afterwards: another process may have created it first.
                _ => exists(directory)?,
            };
        }
        Ok(Self(Path::new(DIRECTORY)))
    }

    /// Returns the path of the pin `name`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns whether the pins of the gap detector and of at least one congestion control are all
    /// there; a command that was killed leaves only some. The optional pin `tick` is not required.
    pub(crate) fn is_complete(&self) -> bool {
        let exists = |name| self.path(name).exists();
        let controls = self.controls();
        ["since", "gaps", "counts"].into_iter().all(exists)
            && !controls.is_empty()
            && (!controls.contains(&Control::Bbr) || exists("beats"))
    }

    /// Returns the congestion controls whose registrations are pinned.
    pub(crate) fn controls(&self) -> Vec<Control> {
        let is_pinned = |control: &Control| {
            [control.kernels().to_owned(), map_name(*control)]
                .iter()
                .any(|name| self.path(name).exists())
        };
        Control::ALL.into_iter().filter(is_pinned).collect()
    }

    /// Unregisters a congestion control and removes its pins. Returns whether it had any.
    ///
    /// # Errors
    /// [`LoadError`].
    pub(crate) fn unload(&self, control: Control) -> Result<bool, LoadError> {
        let path = self.path(&map_name(control));
        if path.exists() {
            unregister(&path)?;
        }
        let mut was_pinned = false;
        for path in [path, self.path(control.kernels())] {
            was_pinned |= remove(&path)?;
        }
        if was_pinned {
            wait_until_unregistered(control)?;
        }
        if control == Control::Bbr {
            // Only now: BBR uses its timers until it is unregistered.
            was_pinned |= remove(&self.path("beats"))?;
        }
        Ok(was_pinned)
    }

    /// Unregisters the congestion controls and removes every pin and the directory. Returns whether
    /// anything was loaded.
    ///
    /// # Errors
    /// [`LoadError`].
    pub(crate) fn clear(self) -> Result<bool, LoadError> {
        // Pinned last, so removed first: without this pin, the others count as leftovers.
        let mut was_up = remove(&self.path("since"))?;
        // The congestion controls use the other pins until they are unregistered.
        for control in Control::ALL {
            was_up |= self.unload(control)?;
        }
        let entries = fs::read_dir(self.0).map_err(file("list", self.0))?;
        for entry in entries {
            was_up |= remove(&entry.map_err(file("list", self.0))?.path())?;
        }
        fs::remove_dir(self.0).map_err(file("remove", self.0))?;
        // Fails if another taut command has pins below /sys/fs/bpf/taut.
        let _ = fs::remove_dir(TAUT);
        Ok(was_up)
    }
}

/// Returns the name of the pin of the map that registers a congestion control on kernels without
/// links (before Linux 6.4).
pub(crate) fn map_name(control: Control) -> String {
    format!("{}-map", control.kernels())
}

/// Unregisters a congestion control that is registered by its map.
fn unregister(path: &Path) -> Result<(), LoadError> {
    let refused = libbpf("a registered congestion control", "unregister it");
    let map = MapHandle::from_pinned_path(path).map_err(&refused)?;
    let key = 0_u32.to_ne_bytes();
    let value = map.lookup(&key, MapFlags::ANY).map_err(&refused)?;
    // The kernel's struct begins with a reference count and the state.
    let state = value.as_deref().and_then(read_prefix::<[u32; 2]>);
    match state {
        Some(([_, IN_USE], _)) => map.delete(&key).map_err(&refused),
        // Not registered: a command was killed between pinning and registering, or between
        // unregistering and unpinning.
        _ => Ok(()),
    }
}

/// Waits until the kernel has unregistered a congestion control whose pin was removed: it frees a
/// pinned link in a work queue, after an RCU grace period. A program registered before that would be
/// refused, because its name is taken.
///
/// # Errors
/// [`LoadError::StillRegistered`] or [`LoadError::File`].
pub(crate) fn wait_until_unregistered(control: Control) -> Result<(), LoadError> {
    let name = control.name();
    let start = Instant::now();
    loop {
        let registered = fs::read_to_string(REGISTERED);
        let registered = registered.map_err(file("read", Path::new(REGISTERED)))?;
        if !registered.split_whitespace().any(|other| other == name) {
            return Ok(());
        }
        if start.elapsed() > UNREGISTERED_WITHIN {
            return Err(LoadError::StillRegistered { name });
        }
        thread::sleep(POLL);
    }
}

fn is_bpf_fs() -> bool {
    statfs(BPF_FS).is_ok_and(|fs| fs.f_type as u64 == BPF_FS_MAGIC)
}

/// Returns whether the directory exists.
///
/// # Errors
/// [`LoadError::NotRoots`] if the directory does not belong to root or others can write to it:
/// bpffs mounted with `mount -t bpf` lets any user create directories, and such a user would choose
/// what root loads or removes.
fn exists(directory: &Path) -> Result<bool, LoadError> {
    match fs::symlink_metadata(directory) {
        Ok(found) if found.is_dir() && found.uid() == 0 && found.mode() & 0o022 == 0 => Ok(true),
        Ok(_) => Err(LoadError::NotRoots {
            path: directory.to_owned(),
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(file("inspect", directory)(e)),
    }
}

fn remove(path: &Path) -> Result<bool, LoadError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(file("remove", path)(e)),
    }
}
