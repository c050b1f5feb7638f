//! Kernel interfaces that only tests use, and what a test does that cannot run here. They are beside
//! `taut-sys`, so that no job has them.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "in a test, a panic is the report")
)]

pub mod faults;
pub mod network;
pub mod skip;
pub mod stalled_receive;
