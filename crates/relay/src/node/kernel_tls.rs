//! Where the TLS of legs between relays runs: in this process, or in the kernel.

use std::fmt;
use std::io;
use std::sync::OnceLock;

use taut_sys::{Errno, kernel_tls};

use crate::config::Config;

/// Where the TLS of legs between relays runs.
#[derive(Debug)]
pub(super) enum TlsPlace {
    /// In the kernel, as soon as a session has so many bytes that they are spliced.
    Kernel,
    /// In this process, because the configuration says so.
    Process,
    /// In this process, because the kernel has no TLS.
    Missing(io::Error),
}

impl TlsPlace {
    /// Returns the place for this configuration. Makes the kernel load its module, if permitted.
    pub(super) fn of(config: &Config) -> Self {
        let is_wanted = config.mesh.as_ref().is_some_and(|mesh| mesh.kernel_tls);
        // Without splice there is nothing to gain.
        if !is_wanted || config.data.splice_after.is_none() {
            return Self::Process;
        }
        // Once it has worked, it is there: a reload that is short of descriptors must not change the cipher.
        static WORKS: OnceLock<()> = OnceLock::new();
        if WORKS.get().is_some() {
            return Self::Kernel;
        }
        match kernel_tls::probe() {
            Ok(()) => {
                let _ = WORKS.set(());
                Self::Kernel
            }
            Err(error) => Self::Missing(error),
        }
    }
}

impl fmt::Display for TlsPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => f.write_str(
                "legs between relays: the kernel encrypts long transfers, with ChaCha20-Poly1305",
            ),
            Self::Process => f.write_str("legs between relays: this process encrypts"),
            Self::Missing(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => f
                .write_str(
                    "legs between relays: this process encrypts, because the kernel has no TLS; \
                 `modprobe tls` loads it if this kernel has the module",
                ),
            Self::Missing(error) => write!(
                f,
                "legs between relays: this process encrypts, because TLS in the kernel fails: {error}"
            ),
        }
    }
}
