//! What is done to guests. Each test says in its name what it is and what comes of it.

mod kernel;
mod qemu;

/// Enough of a stream for early ACKs to begin.
const BEGUN: u64 = 1 << 20;
/// Enough to see that it goes on.
const GOES_ON: u64 = 4 << 20;
/// More than is on its way to a guest that is running.
const MUCH: u64 = 128 << 10;

const TAP: &str = "guest0";
const PORT: u16 = 5001;
