//! Jobs on a machine of their own: what they leave when they are killed, and what a local user can do to
//! them.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "../shared/host.rs"]
mod host;
mod kills;
mod rig;
mod stranger;
