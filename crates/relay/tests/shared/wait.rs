//! Waits for as long as the including module's `PATIENCE`; then the test has failed.

use std::time::{Duration, Instant};

use super::PATIENCE;

/// Waits for a condition that must be polled.
pub(crate) fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
