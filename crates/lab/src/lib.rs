//! Worlds on one machine that lose time the way real networks do.
#![forbid(unsafe_code)]

pub mod experiment;
pub mod interrupt;
pub mod link;
pub mod peer;
pub mod report;
pub mod units;
pub mod world;
