//! The part of the relay that following the list in etcd needs.

use std::path::PathBuf;
use std::sync::Arc;

use taut_mesh::identity::PublicKey;
use taut_mesh::members::{MemberName, Members};

use super::status::ListStatus;
use crate::config::{EtcdConfig, MeshConfig};

/// A relay that follows the list of members in etcd.
pub(crate) trait Host: Send + Sync + 'static {
    /// Returns where the list comes from; `None`: not from etcd.
    fn etcd_settings(&self) -> Option<Settings>;
    /// Returns the members that the relay knows.
    fn members(&self) -> Option<Arc<Members>>;
    /// Returns whether the relay accepts sessions. Otherwise it is not announced.
    fn accepts(&self) -> bool;
    /// Returns where the state of the list is kept.
    fn list(&self) -> &ListStatus;
}

/// The configuration that the follower needs, and this relay's name.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) mesh: MeshConfig,
    pub(crate) etcd: EtcdConfig,
    pub(crate) name: MemberName,
}

impl PartialEq for Settings {
    fn eq(&self, other: &Self) -> bool {
        let of = |s: &Self| -> (PathBuf, Vec<PublicKey>) {
            (s.mesh.members_file.clone(), s.mesh.members_key.clone())
        };
        self.etcd == other.etcd && self.name == other.name && of(self) == of(other)
    }
}
