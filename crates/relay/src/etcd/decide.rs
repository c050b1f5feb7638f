//! Whether a list that etcd offers takes the place of the present one.

use std::sync::Arc;
use std::time::SystemTime;

use taut_mesh::identity::PublicKey;
use taut_mesh::members::{ListRefusal, Members, SignedError};

use super::list_file;
use crate::config::MeshConfig;
use crate::kept_file::{self, NotReplaced};

/// The decision on a list.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// It has been written to `members_file`.
    Adopted(Arc<Members>),
    /// It is the present one.
    Unchanged,
    /// The present one stays.
    Refused(NotAdopted),
}

/// The reason why a list is refused.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum NotAdopted {
    /// The key does not exist.
    #[error(
        "etcd has no list under the relay's prefix; put it there, for example `etcdctl put /taut/members < FILE`"
    )]
    Missing,
    /// It is not signed by the key of the mesh.
    #[error("{0}")]
    Signature(Arc<SignedError>),
    /// It is signed and has a mistake.
    #[error("{0}")]
    Malformed(Arc<SignedError>),
    /// It must not replace the present one.
    #[error("{0}")]
    Present(ListRefusal),
    /// It has expired, and this relay has no other that would show that it is not an old one.
    #[error("it has expired, and this relay has no list to compare it with; sign the list again")]
    Expired,
    /// The file cannot be written.
    #[error("{0}")]
    NotWritten(String),
}

// === impl NotAdopted ===

impl NotAdopted {
    /// All labels, in an order that does not change.
    pub(super) const LABELS: [&'static str; 8] = [
        "missing",
        "signature",
        "malformed",
        "older",
        "same_serial",
        "smaller",
        "expired",
        "not_written",
    ];

    /// Returns the place of the label in [`Self::LABELS`].
    pub(super) fn index(&self) -> usize {
        match self {
            Self::Missing => 0,
            Self::Signature(_) => 1,
            Self::Malformed(_) => 2,
            Self::Present(refusal) => refusal_index(refusal),
            Self::Expired => 6,
            Self::NotWritten(_) => 7,
        }
    }
}

/// Returns the place of the label of a refusal in [`NotAdopted::LABELS`].
pub(super) fn refusal_index(refusal: &ListRefusal) -> usize {
    match refusal {
        ListRefusal::Older { .. } => 3,
        ListRefusal::SameSerial(_) => 4,
        ListRefusal::Smaller { .. } => 5,
    }
}

/// Returns the members of a list, if one of `keys` has signed it.
pub(super) fn verify(keys: &[PublicKey], list: Option<String>) -> Result<Arc<Members>, NotAdopted> {
    let list = list.ok_or(NotAdopted::Missing)?;
    let members = Members::parse_signed(&list, keys);
    members.map(Arc::new).map_err(|error| match error {
        SignedError::NotSigned | SignedError::Signature => NotAdopted::Signature(Arc::new(error)),
        _ => NotAdopted::Malformed(Arc::new(error)),
    })
}

/// Writes a list to `members_file` if it may take the place of the list there and of the running relay's,
/// which is `None` at the start. Blocks for the file.
pub(super) fn decide(
    mesh: &MeshConfig,
    running: Option<&Members>,
    list: Option<String>,
) -> Outcome {
    let text = list.clone().unwrap_or_default();
    let members = match verify(&mesh.members_key, list) {
        Ok(members) => members,
        Err(refusal) => return Outcome::Refused(refusal),
    };
    let in_file = list_file::read(&mesh.members_file, &mesh.members_key);
    if in_file.as_ref() == Some(&*members) {
        return Outcome::Unchanged;
    }
    let has_none = in_file.is_none() && running.is_none();
    if has_none && members.has_expired(SystemTime::now()) {
        return Outcome::Refused(NotAdopted::Expired);
    }
    // The file may be newer than what runs, if it has been refused or another process has just written it; or
    // it may be damaged.
    let may = || {
        let in_file = list_file::read(&mesh.members_file, &mesh.members_key);
        let mut present = in_file.iter().chain(running);
        present.try_for_each(|present| members.may_replace(present))
    };
    // Without the lock first: most refusals need no file.
    if let Err(refusal) = may() {
        return Outcome::Refused(NotAdopted::Present(refusal));
    }
    match kept_file::write(&mesh.members_file, &text, may) {
        Ok(()) => Outcome::Adopted(members),
        Err(NotReplaced::Refused(refusal)) => Outcome::Refused(NotAdopted::Present(refusal)),
        Err(NotReplaced::Failed(error)) => Outcome::Refused(NotAdopted::NotWritten(error)),
    }
}
