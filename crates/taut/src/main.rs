//! `taut`: takes the slack out of TCP.
#![forbid(unsafe_code)]

fn main() {}
