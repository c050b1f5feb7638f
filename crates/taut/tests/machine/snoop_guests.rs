//! What happens to data that was acknowledged early when a guest is paused, saved, unplugged or migrated, and when its
//! kernel drops it: guests of QEMU's (emulated, with Debian's kernel) and network namespaces as guests, `taut snoop`
//! at their taps, and a stream to each that has to arrive whole.
//!
//! `make test` runs the short cases. `make test-snoop-guests` runs those of the module `long`, too.

mod cases;
mod machine;
mod monitor;
mod namespace;
mod snoop;
mod stream;
mod world;

use std::time::Duration;

/// The limit of every wait for something that has to happen. Only a test that fails reaches it.
const PATIENCE: Duration = Duration::from_secs(90);

/// The time between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `check` until it returns something.
fn wait_until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let began = std::time::Instant::now();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        // An emulated guest needs the processor for what is waited for.
        std::thread::sleep(PAUSE);
    }
}
