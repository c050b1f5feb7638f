//! What is done to guests. Each test says in its name what it is and what comes of it.

mod kernel;
mod qemu;

use super::snoop::Snoop;
use super::stream::Stream;
use super::wait_until;

/// Enough of a stream for early ACKs to begin.
const BEGUN: u64 = 1 << 20;
/// Enough to see that it goes on.
const GOES_ON: u64 = 4 << 20;
/// More than is on its way to a guest that is running.
const MUCH: u64 = 128 << 10;

const TAP: &str = "guest0";
const PORT: u16 = 5001;

/// How often a guest is kept from its ring until much is acknowledged early meanwhile.
const TRIES: usize = 10;

/// Waits, while the guest is kept from its ring, until much was acknowledged early. Returns false if the sender has to wait for the
/// guest before that: its window was small when the guest went, or an ACK was left to the guest. It repeats something then.
fn is_exposed(snoop: &Snoop, stream: &Stream) -> bool {
    let before = stream.repeated();
    wait_until("bytes acknowledged early, or a sender that waits", || {
        if snoop.owes(TAP) >= MUCH {
            Some(true)
        } else {
            (stream.repeated() != before).then_some(false)
        }
    })
}
