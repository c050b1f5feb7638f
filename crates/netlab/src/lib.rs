//! Worlds on one machine that lose time the way real networks do.
#![forbid(unsafe_code)]

pub mod interrupt;
pub mod link;
pub mod netlink;
pub mod units;
pub mod world;
