//! The errors of BPF programs and maps.

use std::io;

use taut_bpf::Error;
use taut_sys::Errno;

/// The reason why the BPF programs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The kernel rejects the programs.
    #[error(
        "the kernel rejects the BPF programs: {0}; they need Linux 6.1 or newer with BTF, and CAP_BPF with CAP_NET_ADMIN and \
         CAP_PERFMON, or root"
    )]
    Load(#[source] Error),
    /// The programs cannot be attached to the tap.
    #[error(
        "cannot attach the BPF programs to device {ifindex}: {source}; they need CAP_NET_ADMIN, and tcx or clsact in the kernel"
    )]
    Attach {
        /// The tap's interface index.
        ifindex: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel's run-time statistics cannot be read.
    #[error("cannot read the run time of the BPF program {name}: {source}")]
    RunTime {
        /// The program's name.
        name: &'static str,
        /// The kernel's error.
        source: Errno,
    },
    /// A map cannot be read or written.
    #[error("a BPF map of a tap: {0}")]
    Map(#[source] Error),
}
