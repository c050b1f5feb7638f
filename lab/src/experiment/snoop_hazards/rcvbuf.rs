//! A transfer to an application that lowers SO_RCVBUF while data is in flight.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{RecvFlags, recv};

use super::plan::Reads;
use super::transfer::Transfer;
use crate::experiment::streams::{Failure, Sink, Source, left};

/// The number of bytes that the guest has acknowledged, but its application has not read, when the
/// application lowers SO_RCVBUF.
const BEFORE: std::ops::Range<u64> = 1_000..6_000;
/// The number of bytes that arrive after that. Together with [`BEFORE`] they fit into the first
/// window that Linux advertises, 64 kB.
const AFTER: std::ops::Range<u64> = 20_000..46_000;
/// How long the application waits before it lowers SO_RCVBUF, in milliseconds. The guest
/// acknowledges its bytes within 40 ms.
const LOWERED: std::ops::Range<u64> = 0..80;
/// How long the application does not read after that, in milliseconds.
const SOON: std::ops::Range<u64> = 300..2_000;
const LATE: std::ops::Range<u64> = 8_000..15_000;

/// The random choices of a transfer.
#[derive(Clone, Copy, Debug)]
struct Script {
    before: u64,
    after: u64,
    lowered: Duration,
    unread: Duration,
    /// Whether the sender closes its stream at once. Otherwise it keeps the connection open until
    /// the receiver closes.
    closes: bool,
}

/// Sends the stream around the change of the buffer, and compares the received bytes.
pub(super) fn run(transfer: Transfer, reads: Reads) -> Result<(), (Failure, String)> {
    let Transfer {
        sender,
        receiver,
        mut draws,
        seed,
        deadline,
    } = transfer;
    let script = Script {
        before: draws.from(BEFORE),
        after: draws.from(AFTER),
        lowered: Duration::from_millis(draws.from(LOWERED)),
        unread: Duration::from_millis(draws.from(match reads {
            Reads::Soon => SOON,
            Reads::Late => LATE,
        })),
        closes: draws.from(0..2) == 0,
    };
    let (tell, lowered) = channel();
    let sender = &sender;
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            let mut source = Source::new(seed);
            source.write(sender, script.before, deadline)?;
            let told = lowered.recv_timeout(left(deadline)?);
            told.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
            source.write(sender, script.after, deadline)?;
            if script.closes {
                sender.shutdown(Shutdown::Write)?;
            }
            // The receiver closes its stream when it has all bytes.
            Sink::new().read(sender, 1, deadline)?;
            Ok(source.sum())
        });
        let mut sink = Sink::new();
        let got = receive(
            &receiver,
            script,
            || {
                let _ = tell.send(());
            },
            &mut sink,
            deadline,
        );
        let _ = receiver.shutdown(Shutdown::Both);
        let sent = sending
            .join()
            .unwrap_or_else(|p| std::panic::resume_unwind(p));
        let bytes = sink.bytes;
        let told = |e| {
            (
                Failure::of(e),
                format!("{bytes} bytes received of {script:?}"),
            )
        };
        got.map_err(told)?;
        let sent: [u8; 32] = sent.map_err(told)?;
        match bytes == script.before + script.after && sink.sum() == sent {
            true => Ok(()),
            false => Err(told(io::Error::other("the stream differs"))),
        }
    })
}

fn receive(
    stream: &TcpStream,
    script: Script,
    lowered: impl FnOnce(),
    sink: &mut Sink,
    deadline: Instant,
) -> io::Result<()> {
    let mut buffer = vec![0; script.before as usize];
    stream.set_read_timeout(Some(left(deadline)?))?;
    let (_, queued) = recv(stream, &mut *buffer, RecvFlags::PEEK | RecvFlags::WAITALL)?;
    if (queued as u64) < script.before {
        return Err(io::ErrorKind::TimedOut.into());
    }
    std::thread::sleep(script.lowered);
    // The kernel raises the size to its minimum, 2,304 bytes.
    set_socket_recv_buffer_size(stream, 1)?;
    lowered();
    std::thread::sleep(script.unread);
    let until = match script.closes {
        true => u64::MAX,
        false => script.before + script.after,
    };
    sink.read_until(stream, until, deadline)
}
