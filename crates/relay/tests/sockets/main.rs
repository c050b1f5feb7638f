//! The relay node over real sockets.
//!
//! One binary, so that its tests share a rig.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod congestion;
mod destinations;
mod half_close;
mod kernel_tls;
mod limits;
mod members;
mod mesh;
mod mesh_rig;
mod node;
mod reload;
mod rig;
mod server_names;
mod session_log;
mod sockmap;
mod ways;
