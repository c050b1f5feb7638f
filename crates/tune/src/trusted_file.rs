//! Checks for files below /run, which are trusted only if no other user can have written them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Returns the kernel's boot id. Cookies of sockets and namespaces repeat after a reboot.
pub(crate) fn boot() -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(boot.trim_end().to_owned())
}

/// Returns the flags for opening a file that another user may have replaced by a symbolic link, or
/// by a pipe, which would block.
pub(crate) fn open_flags() -> i32 {
    let flags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK);
    flags.bits().cast_signed()
}

/// Whether only this user or root can have written the file or placed it in its directory.
pub(crate) fn is_ours(path: &Path, file: &File) -> io::Result<bool> {
    let me = rustix::process::geteuid().as_raw();
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => fs::metadata(parent)?,
        _ => fs::metadata(".")?,
    };
    let file = file.metadata()?;
    let writable_by_others = 0o022;
    let is_trusted = |owner: u32| owner == me || owner == 0;
    Ok(file.is_file()
        && is_trusted(file.uid())
        && is_trusted(directory.uid())
        && (file.mode() | directory.mode()) & writable_by_others == 0)
}
