//! What holds for the whole command line, the sources and the scripts.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod commands;
#[path = "../shared/host.rs"]
mod host;
mod imports;
mod lab;
mod promises;
mod setup;
mod unsafe_inventory;
