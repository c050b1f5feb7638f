//! The last good list of members on disk.

use std::fs;
use std::path::Path;

use taut_mesh::identity::PublicKey;
use taut_mesh::members::{MAX_SIGNED, Members};

/// Returns the list in the file; `None` if the file does not exist or has no signed list.
pub(super) fn read(path: &Path, keys: &[PublicKey]) -> Option<Members> {
    let len = fs::metadata(path).ok()?.len();
    if len > MAX_SIGNED as u64 {
        return None;
    }
    Members::parse_signed(&fs::read_to_string(path).ok()?, keys).ok()
}
