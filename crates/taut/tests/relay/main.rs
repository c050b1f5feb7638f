//! `taut relay` as a process.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod configuration;
mod endings;
mod handover;
mod log;
mod operation;
mod rig;
