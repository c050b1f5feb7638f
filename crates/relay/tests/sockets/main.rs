//! The relay node over real sockets on loopback.
//!
//! One binary, so that its tests share a rig.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod attacker;
mod client_hello;
mod congestion;
mod destinations;
mod half_close;
mod handover;
mod kernel_tls;
mod limits;
#[path = "../shared/members.rs"]
mod member_list;
mod members;
mod mesh;
mod mesh_rig;
mod node;
#[path = "../shared/peer.rs"]
mod peer;
#[path = "../shared/poll.rs"]
mod poll;
mod proxy;
mod queue;
mod reload;
mod rig;
mod server_names;
mod session_log;
mod sockmap;
mod system_calls;
#[path = "../shared/wait.rs"]
mod wait;
mod ways;

/// A test that waits longer than this for something has failed.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);
