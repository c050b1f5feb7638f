//! Limits of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Errno;

/// Raises the soft limit of open descriptors to the hard one and returns it.
///
/// # Errors
/// The kernel's error if the limit cannot be set; the soft limit is then unchanged.
pub fn raise_open_file_limit() -> Result<u64, Errno> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                maximum: limit.maximum,
            },
        )?;
    }
    // No limit at all reads as None.
    Ok(limit.maximum.unwrap_or(u64::MAX))
}
