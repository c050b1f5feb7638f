//! Jobs on a machine of their own: what they leave when they are killed, what they do when system calls
//! fail, and what a local user can do to them.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod faults;
#[path = "../shared/host.rs"]
mod host;
mod kills;
#[path = "../shared/programs.rs"]
mod programs;
mod rig;
mod stranger;
