//! Tests that load programs for the whole kernel, one process at a time.

use std::fs::File;

use taut_netlab::world::keep_allowed_congestion_controls;

/// Waits until no other process of this kernel tests `taut guest`, and keeps others from it until the file
/// is dropped: two that load the same congestion controls disturb each other.
pub(crate) fn alone() -> File {
    // All processes of the kernel can open it, and nothing is left in the file system.
    let kernel = File::open("/sys/kernel/btf/vmlinux").unwrap();
    rustix::fs::flock(&kernel, rustix::fs::FlockOperation::LockExclusive).unwrap();
    kernel
}

/// Keeps the worlds of other tests from changing which congestion controls namespaces may choose, until
/// the file is dropped: while one is registered, and made the default of a namespace.
pub(crate) fn keep_allowed() -> File {
    keep_allowed_congestion_controls().unwrap()
}
