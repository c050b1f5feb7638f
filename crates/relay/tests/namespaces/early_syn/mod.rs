//! Early SYN on real devices: two namespaces, a link between them, and the program at the relay's
//! end.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod flood;
mod gone;
mod identity;
mod joined;
#[path = "../shared/killed.rs"]
mod killed;
mod mesh;
mod rig;
mod seen;
mod transparent;
