//! Packets into and out of a guest's tap, for every state, hazard and option.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "frames are shorter than 64 KiB"
)]

mod checker;
mod conn;
mod rig;

mod cpus;
mod early_ack;
mod ends;
mod exposure;
mod headers;
mod hostile;
mod offline;
mod opening;
mod origin;
mod reverse;
mod start;
mod stretch_acks;
mod tap_supervisor;
