//! The kernel's surfaces that Taut uses, behind safe Rust.
//!
//! This is the only crate of the workspace in which `unsafe` may appear. Nothing here has policy:
//! each module wraps one family of system calls, states units and errors, and leaves decisions
//! to its callers.

pub mod probe;
