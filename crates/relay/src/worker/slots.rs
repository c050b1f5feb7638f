//! Slots of slabs.

use crate::event::token::Slot;

/// Returns the slot of a slab's key.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a worker has fewer sessions than 2^32"
)]
pub(super) fn slot(key: usize) -> Slot {
    Slot(key as u32)
}
