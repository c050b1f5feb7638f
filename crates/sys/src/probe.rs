//! Probes of kernel features.
//!
//! Each function tries one feature. Kernel versions are not compared, because distributions
//! backport features and configurations leave them out. A probe does not change the host: it
//! creates devices, qdiscs and rules in a network namespace that ends with the probe's thread, and
//! it does not run if it would make the kernel load a module (see [`Answer::NotLoaded`]).

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

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The feature works.
    Yes,
    /// The feature is in a module that is installed but not loaded. The kernel loads it at first
    /// use; the probe did not run, because that would change the host.
    NotLoaded {
        /// The module's name.
        module: String,
    },
    /// This kernel or machine lacks the feature, for this reason.
    No(String),
    /// Only root can run the probe.
    NeedsRoot,
    /// The probe could not run, for this reason.
    Unknown(String),
}

// === impl Answer ===

impl Answer {
    /// Converts the outcome of an attempt.
    fn of<T>(outcome: io::Result<T>) -> Self {
        match outcome {
            Ok(_) => Self::Yes,
            Err(e) => Self::of_error(&e),
        }
    }

    /// Converts an error to "the kernel lacks the feature" or "the probe could not run".
    fn of_error(error: &io::Error) -> Self {
        // The error number after the text does not help the reader.
        let text = error.to_string();
        let text = text
            .split(" (os error")
            .next()
            .unwrap_or_default()
            .to_owned();
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) if !is_root() => Self::NeedsRoot,
            // EPERM for root means a security policy: the feature cannot be used.
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

    /// Prefixes the reason with the object of the probe, where the error alone does not name it.
    fn about(self, what: &str) -> Self {
        match self {
            Self::No(why) => Self::No(format!("{what}: {why}")),
            Self::Unknown(why) => Self::Unknown(format!("{what}: {why}")),
            other => other,
        }
    }
}

/// Returns whether this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the running kernel's release, as `uname -r` prints it.
pub fn kernel_release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}
