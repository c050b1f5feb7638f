//! Differences between readings of the kernel's counters of a connection's segments.

use std::cell::Cell;

/// The last reading of a connection's counters: segments sent, and of these, retransmitted ones. The kernel
/// counts since the connection began, so each sample reports the difference from the last reading.
#[derive(Debug, Default)]
pub(crate) struct SegmentCounts(Cell<(u32, u32)>);

impl SegmentCounts {
    /// Returns the difference from the last call. If a counter is lower, it is another connection's, and all
    /// of its segments are new.
    pub(crate) fn next(&self, counts: (u32, u32)) -> (u32, u32) {
        let before = self.0.replace(counts);
        match (
            counts.0.checked_sub(before.0),
            counts.1.checked_sub(before.1),
        ) {
            (Some(sent), Some(again)) => (sent, again),
            _ => counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_of_a_long_session_is_reported_once() {
        let reported = SegmentCounts::default();
        assert_eq!(reported.next((1000, 10)), (1000, 10));
        assert_eq!(reported.next((1000, 10)), (0, 0));
        assert_eq!(reported.next((1500, 12)), (500, 2));
    }

    #[test]
    fn the_counters_of_another_connection_begin_at_zero() {
        let reported = SegmentCounts::default();
        reported.next((1000, 10));
        assert_eq!(reported.next((30, 1)), (30, 1));
        assert_eq!(reported.next((40, 1)), (10, 0));
    }
}
