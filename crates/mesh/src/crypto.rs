//! The cryptography of connections between relays.

use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};

/// Returns the cryptography in use. AES-128-GCM comes first: it is the fastest where the CPU has AES
/// instructions and as strong as the other primitives, Ed25519 and X25519. The hybrid key exchange
/// protects what is recorded today from a quantum computer.
pub(crate) fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        Arc::new(CryptoProvider {
            cipher_suites: vec![
                aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
                aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
                aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
            ],
            kx_groups: vec![
                aws_lc_rs::kx_group::X25519MLKEM768,
                aws_lc_rs::kx_group::X25519,
            ],
            ..aws_lc_rs::default_provider()
        })
    });
    &PROVIDER
}

/// Returns the cryptography of connections whose keys may go to the kernel. With ChaCha20-Poly1305 a key
/// protects any number of records; one of AES-GCM must be replaced in time (RFC 8446 section 5.5), which
/// kernels before Linux 6.14 cannot do.
pub(crate) fn kernel_provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        Arc::new(CryptoProvider {
            cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256],
            ..CryptoProvider::clone(provider())
        })
    });
    &PROVIDER
}
