//! The errors of BPF programs and maps.

use std::io;

use taut_bpf::Error;
use taut_sys::Errno;
use taut_sys::privileges::{self, Capability};

/// The reason why the BPF programs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The kernel rejects the programs.
    #[error("the kernel rejects the BPF programs: {0}{hint}", hint = load_hint(.0))]
    Load(#[source] Error),
    /// The programs cannot be attached to the tap.
    #[error(
        "cannot attach the BPF programs to device {ifindex}: {source}{}",
        attach_hint(.source)
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

fn load_hint(source: &Error) -> String {
    let needed = [Capability::Bpf, Capability::NetAdmin, Capability::Perfmon];
    let is_denied = source.kind() == libbpf_rs::ErrorKind::PermissionDenied;
    privileges::program_hint(
        is_denied,
        &needed,
        "they need Linux 6.1 or newer with BTF; `taut doctor` shows what this kernel has",
    )
}

fn attach_hint(source: &io::Error) -> String {
    let is_denied = source.kind() == io::ErrorKind::PermissionDenied;
    privileges::program_hint(
        is_denied,
        &[Capability::NetAdmin],
        "they need tcx or clsact in the kernel",
    )
}
