//! Cryptographically secure random bytes (getrandom(2)).

use rustix::rand::{GetRandomFlags, getrandom};

use crate::Errno;

/// Returns `N` random bytes from the kernel's generator, fit for nonces and keys.
///
/// # Panics
/// If the kernel lacks getrandom(2), that is before Linux 3.17.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            // Continuing with predictable bytes would be worse than a panic.
            Err(e) => panic!("getrandom(2) failed: {e}"),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_calls_return_different_bytes() {
        assert_ne!(bytes::<32>(), bytes::<32>());
    }
}
