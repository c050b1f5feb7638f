//! Files that are believed only if no other user can have written them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Which boot of the kernel this is.
pub(crate) fn boot() -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(boot.trim_end().to_owned())
}

/// Whether nobody else can have written it: who may write to its directory could have put it there.
pub(crate) fn is_ours(path: &Path, file: &File) -> io::Result<bool> {
    let me = rustix::process::geteuid().as_raw();
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => fs::metadata(parent)?,
        _ => fs::metadata(".")?,
    };
    let file = file.metadata()?;
    let others = 0o022;
    // Who is root may do all of that.
    let of_us = |owner: u32| owner == me || owner == 0;
    Ok(file.is_file()
        && of_us(file.uid())
        && of_us(directory.uid())
        && (file.mode() | directory.mode()) & others == 0)
}
