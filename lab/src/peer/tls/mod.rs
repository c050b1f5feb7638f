//! Pairs of relays with mutual TLS 1.3 between them, by programs as the distribution ships them.
//!
//! All have the same certificates (P-256) and the same cipher suite, AES-128-GCM with SHA-256, the
//! first one in most lists. The key exchange is the one that OpenSSL prefers, X25519.

pub mod certificates;
pub mod haproxy;
pub mod nginx;
pub mod stunnel;

/// The cipher suite of every pair, as OpenSSL names it.
const CIPHER_SUITE: &str = "TLS_AES_128_GCM_SHA256";
