//! What the congestion controls did about gaps: the counters of `enum guest_count` in guest.h.

use serde::Serializer;
use taut_bpf::Counters;

pub use crate::raw::GuestCount as Count;

/// What the congestion controls counted.
pub type Counts = Counters<Count>;

/// Serializes the counters as an object with a member for each.
pub(crate) fn serialize<S: Serializer>(counts: &Counts, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(counts.iter())
}
