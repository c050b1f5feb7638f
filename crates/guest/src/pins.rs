//! Where the programs are kept while no process has them: pins, in a folder that is root's alone.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use rustix::fs::statfs;

use crate::control::Control;
use crate::load::{LoadError, failed, refused};

pub(crate) const BPF_FS: &str = "/sys/fs/bpf";
const TAUTS: &str = "/sys/fs/bpf/taut";
const FOLDER: &str = "/sys/fs/bpf/taut/guest";
/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// `BPF_STRUCT_OPS_STATE_INUSE` of the kernel: registered by its map.
const IN_USE: u32 = 1;

/// The folder of the pins, which nobody but root can change.
#[derive(Debug)]
pub(crate) struct Pins(&'static Path);

// === impl Pins ===

impl Pins {
    /// `None`: nothing was ever pinned.
    ///
    /// # Errors
    /// [`LoadError::NotRoots`], or a file's.
    pub(crate) fn find() -> Result<Option<Self>, LoadError> {
        if !is_bpf_fs() {
            return Ok(None);
        }
        for folder in [TAUTS, FOLDER] {
            if !is_there(Path::new(folder))? {
                return Ok(None);
            }
        }
        Ok(Some(Self(Path::new(FOLDER))))
    }

    /// Makes it, if it is not there.
    ///
    /// # Errors
    /// [`LoadError::NoBpfFs`], [`LoadError::NotRoots`], or a file's.
    pub(crate) fn make() -> Result<Self, LoadError> {
        if !is_bpf_fs() {
            return Err(LoadError::NoBpfFs);
        }
        for folder in [TAUTS, FOLDER].map(Path::new) {
            match DirBuilder::new().mode(0o700).create(folder) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed("make", folder)(e));
                }
                // Looked at afterwards: somebody else may have been there first.
                _ => is_there(folder)?,
            };
        }
        Ok(Self(Path::new(FOLDER)))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Whether all of it is there, and not what is left of a command that was killed.
    pub(crate) fn is_complete(&self) -> bool {
        ["since", "gaps", "counts", "beats"]
            .iter()
            .all(|name| self.path(name).exists())
            && Control::ALL.iter().all(|control| {
                self.path(control.kernels()).exists() || self.path(&map_name(*control)).exists()
            })
    }

    /// Removes all of it; whether there was anything.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn clear(self) -> Result<bool, LoadError> {
        // It was pinned last: without it the rest is what is left.
        let mut was_up = remove(&self.path("since"))?;
        // The rest is theirs, and stays while they are registered.
        for control in Control::ALL {
            let path = self.path(&map_name(control));
            if path.exists() {
                unregister(&path)?;
            }
            for path in [path, self.path(control.kernels())] {
                was_up |= remove(&path)?;
            }
        }
        let entries = fs::read_dir(self.0).map_err(failed("list", self.0))?;
        for entry in entries {
            was_up |= remove(&entry.map_err(failed("list", self.0))?.path())?;
        }
        fs::remove_dir(self.0).map_err(failed("remove", self.0))?;
        // Others of Taut's may have something there.
        let _ = fs::remove_dir(TAUTS);
        Ok(was_up)
    }
}

/// The pin of the map by which it is registered where there are no links (before Linux 6.4).
pub(crate) fn map_name(control: Control) -> String {
    format!("{}-map", control.kernels())
}

/// What is registered by its map.
fn unregister(path: &Path) -> Result<(), LoadError> {
    let refused = refused("to let go of it");
    let map = MapHandle::from_pinned_path(path).map_err(&refused)?;
    let key = 0_u32.to_ne_bytes();
    // It begins with a count of references and the state.
    let value = map.lookup(&key, MapFlags::ANY).map_err(&refused)?;
    let state = value
        .as_deref()
        .and_then(|value| value.get(4..8)?.try_into().ok());
    match state.map(u32::from_ne_bytes) {
        Some(IN_USE) => map.delete(&key).map_err(&refused),
        // Whoever was to register it, or has let go of it already, was killed.
        _ => Ok(()),
    }
}

fn is_bpf_fs() -> bool {
    statfs(BPF_FS).is_ok_and(|fs| fs.f_type as u64 == BPF_FS_MAGIC)
}

/// Others could have root load or remove what they choose. (`mount -t bpf` lets everybody make folders.)
fn is_there(folder: &Path) -> Result<bool, LoadError> {
    match fs::symlink_metadata(folder) {
        Ok(found) if found.is_dir() && found.uid() == 0 && found.mode() & 0o022 == 0 => Ok(true),
        Ok(_) => Err(LoadError::NotRoots {
            path: folder.to_owned(),
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(failed("look at", folder)(e)),
    }
}

fn remove(path: &Path) -> Result<bool, LoadError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(failed("remove", path)(e)),
    }
}
