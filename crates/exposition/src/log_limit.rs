//! Lines of the log that each of many connections could cause, limited by cause.
//!
//! | bound | value | when it is reached | counter |
//! |---|---|---|---|
//! | lines of a cause | [`BURST`] at once, one in [`REFILL`] | left out; the next line has their number | [`LogLimit::left_out`] |

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of lines of a cause that may be logged at once.
const BURST: u32 = 20;

/// The time after which one more line may be logged.
const REFILL: Duration = Duration::from_secs(3);

/// The limit of the lines of one cause.
#[derive(Debug)]
pub struct LogLimit {
    /// The label in metrics.
    pub cause: &'static str,
    state: Mutex<State>,
    left_out: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// When the lines so far would have been logged at one in [`REFILL`].
    due: Option<Instant>,
    /// The lines that were left out since the last one.
    left_out: u64,
}

/// A line that may be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The number of lines that were left out before it, if any were.
    pub left_out: Option<u64>,
}

// === impl LogLimit ===

impl LogLimit {
    /// Returns a limit for the lines of this cause.
    pub const fn new(cause: &'static str) -> Self {
        Self {
            cause,
            state: Mutex::new(State {
                due: None,
                left_out: 0,
            }),
            left_out: AtomicU64::new(0),
        }
    }

    /// Returns whether a line may be logged now, and counts it if it may not.
    pub fn line(&self, now: Instant) -> Option<Line> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let due = state.due.map_or(now, |due| due.max(now)) + REFILL;
        if due > now + REFILL * BURST {
            state.left_out += 1;
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        state.due = Some(due);
        let left_out = std::mem::take(&mut state.left_out);
        Some(Line {
            left_out: (left_out > 0).then_some(left_out),
        })
    }

    /// Returns the number of lines that were left out.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_lines_are_left_out_and_the_next_one_says_how_many() {
        let (limit, start) = (LogLimit::new("test"), Instant::now());
        let lines = (0..100).filter_map(|_| limit.line(start)).count();
        assert_eq!(lines, BURST as usize);
        assert_eq!(limit.left_out(), 80);
        let line = |after: u32| limit.line(start + after * REFILL);
        let with = |left_out| Some(Line { left_out });
        assert_eq!(line(1), with(Some(80)));
        assert_eq!(line(1), None);
        assert_eq!(line(2), with(Some(1)));
        assert_eq!(line(3), with(None));
        assert_eq!(limit.left_out(), 81);
    }
}
