//! Sysctls and limits, read only.

use std::{fs, io};

use rustix::process::{Resource, getrlimit};

/// A sysctl's value by its dotted name, blanks between fields made single. `None` when this kernel
/// has no such sysctl.
///
/// # Errors
/// The file's, except that it does not exist.
pub fn sysctl(name: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))) {
        Ok(text) => Ok(Some(text.split_whitespace().collect::<Vec<_>>().join(" "))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// How many descriptors this process may open at most: the hard limit, to which a process can raise
/// its own.
pub fn open_files_hard_limit() -> u64 {
    // No limit reads as none.
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Bytes in a page of memory.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}
