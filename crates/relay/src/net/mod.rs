//! Addresses and destinations.

pub mod addr;
pub(crate) mod forward_loops;
pub(crate) mod netlink;
pub(crate) mod targets;
