//! Runs `taut-lab` as a process: its command line, a small part of each experiment, and the short forms
//! of all, which the fast tests leave out.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod binaries;
mod command_line;
mod long;
mod outcome;
mod smoke;
