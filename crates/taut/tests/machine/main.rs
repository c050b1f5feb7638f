//! Jobs on a machine of their own: what they leave when they are killed, what they do when system calls
//! fail, what a local user can do to them; and what concerns the whole machine: `taut guest`, `taut doctor`,
//! the tutorials, and guests of QEMU's.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod doctor;
mod faults;
mod guest;
#[path = "../shared/host.rs"]
mod host;
mod kills;
#[path = "../shared/programs.rs"]
mod programs;
mod rig;
mod snoop_guests;
mod stranger;
mod tour;
mod tutorials;
