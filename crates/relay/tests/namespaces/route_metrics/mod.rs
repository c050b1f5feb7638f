//! Routes with an initial congestion window and windows that follow the need, between hosts of a world.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod cleanup;
#[path = "../shared/killed.rs"]
mod killed;
mod node;
mod rig;
mod routes;
mod windows;
