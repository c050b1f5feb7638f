//! What a worker counts.

pub(crate) mod figure;
pub(crate) mod histogram;
pub(crate) mod worker;
