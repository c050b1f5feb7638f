//! Addresses and destinations.

pub mod addr;
pub(crate) mod backend;
pub(crate) mod devices;
pub(crate) mod dial_order;
pub(crate) mod failures;
pub(crate) mod forward_loops;
pub(crate) mod names;
pub(crate) mod netlink;
pub(crate) mod race;
pub(crate) mod targets;
