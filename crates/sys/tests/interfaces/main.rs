//! Interfaces of the kernel and of the service manager, through the crate's public functions.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod activation;
mod bpf_map;
