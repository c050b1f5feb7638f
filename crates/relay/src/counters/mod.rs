//! Counters of workers, forwards and peers. Each `Counter` has one writer; the metrics read them.

pub(crate) mod by_member;
pub(crate) mod counter;
pub(crate) mod forward;
pub(crate) mod histogram;
pub(crate) mod last_addr;
pub(crate) mod log_limit;
pub(crate) mod peer;
pub(crate) mod registry;
pub(crate) mod told;
pub(crate) mod worker;
