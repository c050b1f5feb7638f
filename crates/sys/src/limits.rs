//! Resource limits of this process (getrlimit(2)).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Errno;

/// Raises the soft limit of open descriptors (RLIMIT_NOFILE) to the hard limit and returns it.
///
/// # Errors
/// Those of setrlimit(2); the soft limit is unchanged then.
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
    // `None` means RLIM_INFINITY.
    Ok(limit.maximum.unwrap_or(u64::MAX))
}
