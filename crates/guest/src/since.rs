//! What there was when `taut guest up` was done: from then on gaps are counted.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use taut_sys::steal::Steal;

/// Of the value, and of what of it is the first line of /proc/stat: `struct guest_since` of guest.h.
const LENGTH: usize = 256;
const STAT: usize = 8;

/// Pinned with the programs, so that it is as old as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since {
    /// By the clock of the gaps, which nobody sets.
    clock: Duration,
    pub(crate) steal: Option<Steal>,
}

// === impl Since ===

impl Since {
    /// Now, as it is kept.
    pub(crate) fn now() -> [u8; LENGTH] {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        encode(clock(), stat.lines().next().unwrap_or_default())
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (clock, stat) = bytes.split_first_chunk::<STAT>()?;
        let stat = str::from_utf8(stat).ok()?;
        Some(Self {
            clock: Duration::from_nanos(u64::from_ne_bytes(*clock)),
            steal: Steal::parse(stat),
        })
    }

    pub(crate) fn age(self) -> Duration {
        clock().saturating_sub(self.clock)
    }
}

fn clock() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

fn encode(clock: Duration, stat: &str) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    let clock = u64::try_from(clock.as_nanos()).unwrap_or(u64::MAX);
    bytes[..STAT].copy_from_slice(&clock.to_ne_bytes());
    // With an end after it, or cut: steal is the eighth number, and there is room for ten.
    let line = stat.bytes().take(LENGTH - STAT - 1).chain([b'\n']);
    for (byte, of) in bytes[STAT..].iter_mut().zip(line) {
        *byte = of;
    }
    bytes
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_kept() {
        let most = format!("cpu {}", " 1000000000000000000".repeat(10));
        for stat in ["cpu  10 0 5 32 1 0 2 50 0 0", "", &most] {
            let clock = Duration::from_nanos(12_345_678_901);
            let steal = Steal::parse(stat);
            let kept = Since::decode(&encode(clock, stat)).unwrap();
            assert_eq!(kept, Since { clock, steal }, "{stat}");
        }
        assert_eq!(Since::decode(&[0; 7]), None);
    }

    #[test]
    fn it_is_as_long_as_the_header_has_it() {
        let header = include_str!("bpf/guest.h");
        let fields = header.split_once("struct guest_since {").unwrap().1;
        let fields: Vec<_> = fields.lines().skip(1).map(str::trim).take(2).collect();
        assert!(fields[0].starts_with("__u64 clock_ns;"), "{fields:?}");
        let stat = format!("char stat[{}];", LENGTH - STAT);
        assert!(fields[1].starts_with(&stat), "{fields:?}");
    }
}
