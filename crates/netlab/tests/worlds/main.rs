//! Emulated networks on this machine: what they carry, and what is left of them.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod cleanup;
mod root;
mod world;
