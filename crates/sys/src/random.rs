//! Random bytes that nobody can foretell.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::Errno;

/// `N` bytes from the kernel's generator (getrandom(2)), fit for nonces and keys.
///
/// # Panics
/// When the kernel has no getrandom: every one since 3.17 has.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            // Going on with foretellable bytes would be worse.
            Err(e) => panic!("getrandom(2) failed: {e}"),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same() {
        assert_ne!(bytes::<32>(), bytes::<32>());
    }
}
