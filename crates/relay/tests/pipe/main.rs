//! `taut_pipe` and the options of a leg, between hosts of a world with a delay.
//!
//! One binary, so that its tests share a registration and run in parallel: one waits for half a
//! minute.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod idle;
mod loss;
mod rate;
mod registration;
mod rig;
