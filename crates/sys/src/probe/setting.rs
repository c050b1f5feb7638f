//! Reads sysctls and limits.

use std::{fs, io};

use rustix::process::{Resource, getrlimit};

/// Returns the value of the sysctl with this dotted name, with single blanks between fields.
/// Returns `None` if this kernel has no such sysctl.
///
/// # Errors
/// Those of reading the file, except `NotFound`.
pub fn sysctl(name: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))) {
        Ok(text) => Ok(Some(text.split_whitespace().collect::<Vec<_>>().join(" "))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Returns the hard limit of open descriptors, up to which this process can raise its soft limit.
pub fn open_files_hard_limit() -> u64 {
    // `None` means RLIM_INFINITY.
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Returns the size of a memory page in bytes.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}
