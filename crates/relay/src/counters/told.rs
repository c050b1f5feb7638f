//! What has been told of the segments that the kernel counts for a connection.

use std::cell::Cell;

/// The counts of a connection's segments that have been told: those that were sent, and those of them that
/// were sent again. The kernel counts since the connection began; what is told is what has been added.
#[derive(Debug, Default)]
pub(crate) struct Told(Cell<(u32, u32)>);

impl Told {
    /// Returns what has been added since the last call. Lower counts are those of another connection.
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
    fn a_segment_of_a_long_session_is_told_once() {
        let told = Told::default();
        assert_eq!(told.next((1000, 10)), (1000, 10));
        assert_eq!(told.next((1000, 10)), (0, 0));
        assert_eq!(told.next((1500, 12)), (500, 2));
    }

    #[test]
    fn the_counts_of_another_connection_begin_anew() {
        let told = Told::default();
        told.next((1000, 10));
        assert_eq!(told.next((30, 1)), (30, 1));
        assert_eq!(told.next((40, 1)), (10, 0));
    }
}
