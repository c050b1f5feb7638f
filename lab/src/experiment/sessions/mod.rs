//! Sessions of every size and in both orders of half-close, whose every byte is compared at both ends.

pub(in crate::experiment) mod arrivals;
pub(in crate::experiment) mod ends;
pub(in crate::experiment) mod ledger;
pub(in crate::experiment) mod transfer;
