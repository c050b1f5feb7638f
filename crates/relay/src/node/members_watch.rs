//! Adopts a list of members whose file has changed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::SystemTime;

use taut_mesh::members::ListRefusal;
use taut_sys::plural::counted;

use super::handle::SharedHandle;
use super::mesh::load_members;

/// What tells a version of the file from another. A file may also be replaced through a symbolic link,
/// which inotify(7) would not report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    path: PathBuf,
    device: u64,
    inode: u64,
    len: u64,
    modified: Option<SystemTime>,
    /// Differs after a change of mode or owner, too, which may be what a refused file needs.
    changed: (i64, i64),
}

/// The version of the file that was read last.
#[derive(Clone, Debug)]
pub(crate) struct KnownList {
    version: Version,
    /// Why the list could not be adopted. It is tried again, because the reason may pass: a name that
    /// cannot be resolved, or no descriptors.
    refused: Option<String>,
}

impl SharedHandle {
    /// Reads the list of members if its file is not the version in `known`, or could not be adopted, and
    /// adopts it if it differs from the present one. Returns what was read. Blocks for as long as the
    /// resolver takes.
    ///
    /// A list that has lost more than half of the members is not adopted, unless it is signed and its signer
    /// has said that this is intended: the operator may be writing it, or a tool may have failed. SIGHUP adopts
    /// it, if it has every relay that the configuration names. A signed list with a lower serial than the
    /// present one is not adopted either.
    pub(crate) fn look_at_members(&self, known: Option<KnownList>) -> Option<KnownList> {
        let config = {
            let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
            present.config.mesh.clone()?
        };
        let path = config.members_file.clone();
        // A file that is missing while it is replaced is looked at again.
        let Ok(meta) = fs::metadata(&path) else {
            return known;
        };
        let version = Version {
            device: meta.dev(),
            inode: meta.ino(),
            len: meta.len(),
            modified: meta.modified().ok(),
            changed: (meta.ctime(), meta.ctime_nsec()),
            path: path.clone(),
        };
        let known = known.filter(|list| list.version == version);
        let refused_before = match &known {
            Some(KnownList { refused: None, .. }) => return known,
            Some(list) => list.refused.clone(),
            None => None,
        };
        let mut refused = None;
        let setup = self.shared.setup();
        let Some(mesh) = setup.mesh.as_ref() else {
            return Some(KnownList { version, refused });
        };
        let (before, path) = (&mesh.local.members, path.display());
        let list = load_members(&config).map_err(|error| error.to_string());
        match list.map(|members| (members.may_replace(before), members)) {
            Ok((_, members)) if members == **before => {}
            Ok((Err(refusal), members)) => {
                self.list.refused_in_file(&refusal);
                match refusal {
                    ListRefusal::Smaller { offered, held } if members.statement().is_none() => {
                        tracing::warn!(
                            "{path} has {} and had {held}: keeping the former list; if that is intended, remove the \
                             others from the configuration, too, and send SIGHUP",
                            counted(offered, "member")
                        );
                    }
                    _ => tracing::warn!("{path}: {refusal}; keeping the former list"),
                }
            }
            Ok((Ok(()), members)) => match self.reload_members() {
                Ok(()) => {
                    tracing::info!(
                        "{path} has changed: {}",
                        counted(members.iter().len(), "member")
                    );
                }
                Err(error) => refused = Some(error.to_string()),
            },
            Err(error) => refused = Some(error),
        }
        if let Some(error) = refused
            .as_ref()
            .filter(|error| refused_before.as_ref() != Some(*error))
        {
            tracing::error!(
                "{error}; keeping the former list of members, and trying again each second"
            );
        }
        Some(KnownList { version, refused })
    }
}
