//! Deadlines that cannot overflow.

use std::time::{Duration, Instant};

/// The longest wait: long enough to never end, short enough to be added to any instant.
pub(crate) const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns the instant `wait`, but at most [`FOREVER`], after `now`.
pub(crate) fn after(now: Instant, wait: Duration) -> Instant {
    now + wait.min(FOREVER)
}
