//! Computes the time between scans. Pure.

use std::time::Duration;

/// While nothing changes, scans take at most one core divided by this, as far as [`MAX_INTERVAL`]
/// allows.
const CPU_PART: u32 = 100;
/// The maximum time between scans to limit their processor time.
pub const MAX_INTERVAL: Duration = Duration::from_secs(5);

/// The time between scans while no connection sends, receives, opens or closes.
pub const QUIET: Duration = Duration::from_secs(10);

/// The number of scans after which a change that is still due is reported or tried again.
pub(crate) const REPEAT_SCANS: u64 = 60;

/// Returns the time from the start of one scan to the start of the next, which is at least
/// `interval`.
///
/// `used`: the processor time of the scan and of the changes after it. `is_at_rest`: the scan found
/// nothing to change, and is not one of the first.
pub fn pace(interval: Duration, used: Duration, is_at_rest: bool) -> Duration {
    match is_at_rest {
        true => used
            .saturating_mul(CPU_PART)
            .min(MAX_INTERVAL)
            .max(interval),
        false => interval,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn scans_that_find_nothing_take_a_hundredth_of_a_core() {
        assert_eq!(pace(SECOND, ms(2), true), SECOND);
        assert_eq!(pace(SECOND, ms(25), true), ms(2500));
        // A connection that becomes active is still found soon.
        assert_eq!(pace(SECOND, ms(400), true), MAX_INTERVAL);
        assert_eq!(pace(SECOND, Duration::MAX, true), MAX_INTERVAL);
    }

    #[test]
    fn a_scan_that_changes_something_is_followed_by_the_next_without_delay() {
        assert_eq!(pace(SECOND, ms(400), false), SECOND);
    }

    #[test]
    fn a_requested_interval_is_never_shortened() {
        assert_eq!(pace(9 * SECOND, ms(400), true), 9 * SECOND);
        assert_eq!(pace(9 * SECOND, ms(1), true), 9 * SECOND);
    }
}
