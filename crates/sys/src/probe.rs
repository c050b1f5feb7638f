//! What this kernel can do, found by doing it.
//!
//! Each function tries one feature and answers. A version number is never asked: distributions
//! backport, and configurations leave out. Nothing of the host is changed: what has to create a
//! device, a qdisc or a rule does so in a network namespace that ends with the probe's thread, and
//! what would make the kernel load a module is not tried (see [`Answer::NotLoaded`]).

use std::io;

pub mod bpf;
pub mod link;
pub mod process;
pub mod qdisc;
pub mod setting;
pub mod socket;

mod module;
mod network;
mod nft;

pub use nft::tproxy as nft_tproxy;

/// What became of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was tried and worked.
    Yes,
    /// It is a module of this kernel that is not loaded. The kernel loads it at the first use;
    /// as a probe that would change the host, it was not tried.
    NotLoaded {
        /// The module's name.
        module: String,
    },
    /// It was tried and this kernel or machine does not have it.
    No(String),
    /// Only root can try it.
    NeedsRoot,
    /// It could not be tried.
    Unknown(String),
}

// === impl Answer ===

impl Answer {
    /// Reads the outcome of a try.
    fn of<T>(outcome: io::Result<T>) -> Self {
        match outcome {
            Ok(_) => Self::Yes,
            Err(e) => Self::of_error(&e),
        }
    }

    /// Reads an error as "the kernel has no such thing" or as "it could not be tried".
    fn of_error(error: &io::Error) -> Self {
        // The number after it says nothing to a person.
        let text = error.to_string();
        let text = text
            .split(" (os error")
            .next()
            .unwrap_or_default()
            .to_owned();
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) if !is_root() => Self::NeedsRoot,
            // EPERM to root is a security policy: the feature is as good as absent.
            Some(
                libc::EPERM
                | libc::EACCES
                | libc::ENOSYS
                | libc::ENOENT
                | libc::ENODEV
                | libc::ENXIO
                | libc::EINVAL
                | libc::EOPNOTSUPP
                | libc::ENOPROTOOPT
                | libc::EPROTONOSUPPORT
                | libc::ESOCKTNOSUPPORT
                | libc::EAFNOSUPPORT,
            ) => Self::No(text),
            _ => Self::Unknown(text),
        }
    }

    /// Says what was tried, where the error alone would not.
    fn about(self, what: &str) -> Self {
        match self {
            Self::No(why) => Self::No(format!("{what}: {why}")),
            Self::Unknown(why) => Self::Unknown(format!("{what}: {why}")),
            other => other,
        }
    }
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The running kernel's release, as `uname -r` has it.
pub fn kernel_release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}
