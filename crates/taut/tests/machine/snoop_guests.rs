//! What happens to data that was acknowledged early when a guest is paused, saved, unplugged or migrated, and when its
//! kernel drops it: guests of QEMU's (emulated, with Debian's kernel) and network namespaces as guests, `taut snoop`
//! at their taps, and a stream to each that has to arrive whole.
//!
//! `make test` runs the short cases. `make test-snoop-guests` runs them all, in a minute or two: it sets
//! `TAUT_SNOOP_GUESTS=all`.

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

/// Whether the long cases were asked for. Says so if they were not.
fn all_cases(name: &str) -> bool {
    let all = std::env::var_os("TAUT_SNOOP_GUESTS").is_some_and(|value| value == "all");
    if !all {
        eprintln!("{name}: not run; `make test-snoop-guests` runs it");
    }
    all
}

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
        std::thread::yield_now();
    }
}
