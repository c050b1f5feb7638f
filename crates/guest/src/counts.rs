//! Counters of the congestion controls' reactions to gaps: `enum guest_count` in guest.h.

use serde::Serializer;
use taut_bpf::Counters;

pub use crate::raw::GuestCount as Count;

/// The counters of the congestion controls.
pub type Counts = Counters<Count>;

/// Serializes the counters as an object with one member per counter.
pub(crate) fn serialize<S: Serializer>(counts: &Counts, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(counts.iter())
}
