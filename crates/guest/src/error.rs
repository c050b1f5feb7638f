//! The errors of loading the congestion controls.

use std::io;
use std::path::{Path, PathBuf};

use taut_sys::Errno;
use taut_sys::job_dir::JobDirError;

use crate::control::Control;

/// The reason why the BPF programs cannot be loaded, read or unloaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The directory of the lock cannot be used.
    #[error(transparent)]
    Directory(#[from] JobDirError),
    /// The process has no privileges.
    #[error("`taut guest` must run as root: it loads, reads and unloads BPF programs")]
    NotRoot,
    /// The kernel does not export its types.
    #[error(transparent)]
    NoBtf(taut_bpf::Error),
    /// There is no BPF file system to pin the programs in.
    #[error(
        "/sys/fs/bpf: no BPF file system is mounted there, and the programs are pinned in it. Mount it:\n  mount -t bpf bpf /sys/fs/bpf"
    )]
    NoBpfFs,
    /// Users other than root could replace the pins in this directory.
    #[error(
        "{path}: not a directory that only root can write to; another user could choose what is loaded. Inspect and remove it:\n  \
         ls -ld {path}"
    )]
    NotRoots {
        /// The directory.
        path: PathBuf,
    },
    /// The kernel lacks the congestion control that Taut's control calls.
    #[error(
        "{name}: the kernel lacks this congestion control ({config}): {source}. To see why:\n  modprobe tcp_{name}"
    )]
    NoKernelControl {
        /// `bbr` or `cubic`.
        name: &'static str,
        /// The kernel configuration option that builds it.
        config: &'static str,
        /// The kernel's error.
        source: Errno,
    },
    /// The kernel's congestion control lacks a function that Taut's calls, or its types.
    #[error(
        "the kernel's {kernels} has no {function}() that BPF can call, neither in the kernel's BTF nor in /sys/kernel/btf/tcp_{kernels}: \
         the kernel was built without these types, or has another version of {kernels}, such as BBRv3",
        kernels = control.kernels()
    )]
    NotCallable {
        /// Taut's congestion control.
        control: Control,
        /// The missing function.
        function: &'static str,
    },
    /// Another process or pin keeps the registration of a congestion control of Taut.
    #[error(
        "{name}: still registered, but not by a pin of taut guest. Find and remove the owner, then run this again:\n  \
         bpftool struct_ops show; bpftool link show"
    )]
    StillRegistered {
        /// `taut_bbr` or `taut_cubic`.
        name: &'static str,
    },
    /// The kernel rejects a BPF program or map, or the object lacks one.
    #[error("{what}: {source}; TAUT_LOG=libbpf=debug shows why")]
    Bpf {
        /// The part that failed.
        what: &'static str,
        /// The reason.
        source: taut_bpf::Error,
    },
    /// A file or directory cannot be used.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// The action: `create`, `lock`, `list`, `inspect`, `read` or `remove`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

pub(crate) fn bpf(what: &'static str) -> impl Fn(taut_bpf::Error) -> LoadError {
    move |source| LoadError::Bpf { what, source }
}

/// Converts an error of libbpf's own calls, such as those that pin.
pub(crate) fn libbpf(
    what: &'static str,
    action: &'static str,
) -> impl Fn(libbpf_rs::Error) -> LoadError {
    move |source| bpf(what)(taut_bpf::Error::during(action)(source))
}

pub(crate) fn file(action: &'static str, path: &Path) -> impl Fn(io::Error) -> LoadError {
    let path = path.to_owned();
    move |source| LoadError::File {
        action,
        path: path.clone(),
        source,
    }
}
