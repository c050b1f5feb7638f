//! BPF programs at the kernel's hooks, where libbpf-rs has no call for it.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys as sys;

use crate::Errno;

/// Attaches `program`, of type SCHED_CLS, to what device `ifindex` of the calling thread's network
/// namespace receives, after the programs that are there already (tcx, Linux 6.6).
///
/// The link is the descriptor: the program is detached when the last copy of it is closed, however
/// the process ends.
///
/// # Errors
/// `EINVAL` where the kernel has no tcx; `ENODEV` when there is no such device; `EPERM` without
/// CAP_NET_ADMIN and CAP_BPF.
pub fn attach_tcx_ingress(program: BorrowedFd<'_>, ifindex: u32) -> Result<OwnedFd, Errno> {
    let ifindex = i32::try_from(ifindex).map_err(|_| Errno::NODEV)?;
    // SAFETY: the program's descriptor is open for the length of the call; no options are passed.
    let link = unsafe {
        sys::bpf_link_create(
            program.as_raw_fd(),
            ifindex,
            sys::BPF_TCX_INGRESS,
            std::ptr::null(),
        )
    };
    if link < 0 {
        // libbpf gives the error as a negative number.
        return Err(Errno::from_raw_os_error(-link));
    }
    // SAFETY: the call has made this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}
