//! `taut relay` as a process.

mod addresses;
mod configuration;
mod endings;
mod handover;
mod log;
mod names;
mod operation;
mod rig;
