//! A transfer through a guest that forwards.

use std::net::Shutdown;

use super::transfer::Transfer;
use crate::experiment::streams::{Failure, Sink, Source};

/// The bytes of each transfer.
const BYTES: u64 = 1_000_000;

/// Sends the stream and compares the received bytes.
pub(super) fn run(transfer: Transfer) -> Result<(), (Failure, String)> {
    let Transfer {
        sender,
        receiver,
        seed,
        deadline,
        ..
    } = transfer;
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut source = Source::new(seed);
            source.write(&sender, BYTES, deadline)?;
            sender.shutdown(Shutdown::Write)?;
            Ok(source.sum())
        });
        let mut sink = Sink::new();
        let got = sink.read_until(&receiver, u64::MAX, deadline);
        // Also unblocks the sender if the receiver has given up.
        let _ = receiver.shutdown(Shutdown::Both);
        let sent = sending
            .join()
            .unwrap_or_else(|p| std::panic::resume_unwind(p));
        let bytes = sink.bytes;
        let told = |e| (Failure::of(e), format!("{bytes} of {BYTES} bytes received"));
        got.map_err(told)?;
        let sent: [u8; 32] = sent.map_err(told)?;
        match bytes == BYTES && sink.sum() == sent {
            true => Ok(()),
            false => Err((
                Failure::Broken("the stream differs".into()),
                format!("{bytes} of {BYTES} bytes received"),
            )),
        }
    })
}
