//! The errors of BPF programs and maps.

use std::io;

use taut_bpf::Error;
use taut_sys::Errno;

/// Why the programs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The kernel does not take them.
    #[error(
        "the kernel does not take the BPF programs: {0} (they need Linux 6.1 or newer with BTF, and CAP_BPF \
         with CAP_NET_ADMIN and CAP_PERFMON, or root)"
    )]
    Load(#[source] Error),
    /// They cannot be put at the tap.
    #[error(
        "the BPF programs cannot be attached to device {ifindex}: {source} (they need CAP_NET_ADMIN, and tcx \
         or clsact of the kernel)"
    )]
    Attach {
        /// The device's number.
        ifindex: u32,
        /// What the kernel says.
        source: io::Error,
    },
    /// The kernel does not say how long they have run.
    #[error("the running time of the BPF program {name} cannot be read: {source}")]
    RunTime {
        /// Which.
        name: &'static str,
        /// What the kernel says.
        source: Errno,
    },
    /// A map cannot be read or written.
    #[error("the BPF programs at a tap: {0}")]
    Map(#[source] Error),
}
