//! Worker counters: each has one writer, and the metrics read them.

pub(crate) mod counter;
pub(crate) mod histogram;
pub(crate) mod worker;
