//! Interception in three namespaces: a client, a router with the relay on it, a server.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod cleanup;
#[path = "../shared/killed.rs"]
mod killed;
mod rig;
mod taken;
mod untouched;
