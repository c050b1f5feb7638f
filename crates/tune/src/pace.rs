//! When to look again: pure.

use std::time::Duration;

/// While nothing is to be changed, looks take one part in so many of a core at most,
const PART: u32 = 100;
/// unless they would be further apart than this.
pub const LONGEST: Duration = Duration::from_secs(5);

/// While nothing happens at all there is a look this much later at most.
pub const QUIET: Duration = Duration::from_secs(10);

/// The time from the begin of one look to the begin of the next, which is `interval` and no less.
///
/// `used`: the processor time that the look took, with all that was done about it. `is_at_rest`: nothing was to be changed in it, nor is it one of the first.
pub fn pace(interval: Duration, used: Duration, is_at_rest: bool) -> Duration {
    match is_at_rest {
        true => used.saturating_mul(PART).min(LONGEST).max(interval),
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
    fn looks_that_find_nothing_take_a_hundredth_of_a_core() {
        assert_eq!(pace(SECOND, ms(2), true), SECOND);
        assert_eq!(pace(SECOND, ms(25), true), ms(2500));
        // But somebody who wakes up is seen.
        assert_eq!(pace(SECOND, ms(400), true), LONGEST);
        assert_eq!(pace(SECOND, Duration::MAX, true), LONGEST);
    }

    #[test]
    fn who_changes_something_looks_at_once_again() {
        assert_eq!(pace(SECOND, ms(400), false), SECOND);
    }

    #[test]
    fn an_interval_that_was_asked_for_is_no_less() {
        assert_eq!(pace(9 * SECOND, ms(400), true), 9 * SECOND);
        assert_eq!(pace(9 * SECOND, ms(1), true), 9 * SECOND);
    }
}
