//! The time at which `taut guest up` finished; `status` counts from then on.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use taut_sys::steal::Steal;

use crate::raw::GuestSince;

/// The time and the steal time at which the programs were loaded. Pinned with the programs, so it
/// has the same age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since {
    /// CLOCK_MONOTONIC, which cannot be set.
    clock: Duration,
    pub(crate) steal: Option<Steal>,
}

// === impl Since ===

impl Since {
    /// Returns the present time and steal time in the pinned form.
    pub(crate) fn now() -> GuestSince {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        encode(clock(), stat.lines().next().unwrap_or_default())
    }

    /// Returns the time since then.
    pub(crate) fn age(self) -> Duration {
        clock().saturating_sub(self.clock)
    }
}

impl From<GuestSince> for Since {
    fn from(since: GuestSince) -> Self {
        let stat = str::from_utf8(&since.stat);
        Self {
            clock: Duration::from_nanos(since.clock_ns),
            steal: stat.ok().and_then(Steal::parse),
        }
    }
}

fn clock() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

fn encode(clock: Duration, line: &str) -> GuestSince {
    let mut since = GuestSince {
        clock_ns: u64::try_from(clock.as_nanos()).unwrap_or(u64::MAX),
        ..GuestSince::default()
    };
    // Cut to size and always terminated. Steal is the eighth number, and there is room for ten.
    let line = line.bytes().take(since.stat.len() - 1).chain([b'\n']);
    for (to, byte) in since.stat.iter_mut().zip(line) {
        *to = byte;
    }
    since
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_pinned() {
        let most = format!("cpu {}", " 1000000000000000000".repeat(10));
        for stat in ["cpu  10 0 5 32 1 0 2 50 0 0", "", &most] {
            let clock = Duration::from_nanos(12_345_678_901);
            let steal = Steal::parse(stat);
            let pinned = Since::from(encode(clock, stat));
            assert_eq!(pinned, Since { clock, steal }, "{stat}");
        }
    }
}
