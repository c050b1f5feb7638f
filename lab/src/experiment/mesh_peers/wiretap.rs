//! What somebody on the path between two relays can read.

use std::io::{self, Read as _, Write as _};
use std::time::{Duration, Instant};

use etherparse::SlicedPacket;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::experiment::workload::Entrance;
use crate::experiment::workload::pair::Pair;

/// The text that a client sends.
const SECRET: &[u8] = b"what the client sends to the server is nobody else's business";
/// How long the kernel may take to hand a frame to the tap after both ends have their bytes.
const SETTLE: Duration = Duration::from_millis(100);
/// The largest frame on loopback, and some more.
const FRAME: usize = 80 << 10;

/// The bytes on the leg between two relays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tapped {
    /// The number of frames with data on the leg.
    pub(super) frames: u64,
    /// The number of these frames that contain the client's text.
    pub(super) readable: u64,
}

/// Sends a text through the relays both ways, and looks for it on their leg, at the port `between`.
pub(super) fn tap(entrance: &Entrance, between: u16) -> io::Result<Tapped> {
    let Pair {
        mut client,
        mut server,
    } = Pair::open(entrance)?;
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let kind = (AddressFamily::Packet, SockType::Raw);
    let tap = socket(kind.0, kind.1, flags, SockProtocol::EthAll)?;
    let mut text = [0; SECRET.len()];
    client.write_all(SECRET)?;
    server.read_exact(&mut text)?;
    server.write_all(&text)?;
    client.read_exact(&mut text)?;
    if text != SECRET {
        return Err(io::Error::other("the text came back changed"));
    }
    let mut tapped = Tapped::default();
    let deadline = Instant::now() + SETTLE;
    let mut frame = vec![0; FRAME];
    loop {
        match recv(&tap, &mut frame[..], RecvFlags::empty()) {
            Ok((n, _)) => tapped.note(&frame[..n.min(FRAME)], between),
            Err(Errno::AGAIN) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Errno::AGAIN) => return Ok(tapped),
            Err(e) => return Err(e.into()),
        }
    }
}

// === impl Tapped ===

impl Tapped {
    /// Notes a frame, if it has data and belongs to the leg.
    fn note(&mut self, frame: &[u8], between: u16) {
        let Ok(packet) = SlicedPacket::from_ethernet(frame) else {
            return;
        };
        let Some(etherparse::TransportSlice::Tcp(tcp)) = packet.transport else {
            return;
        };
        let on_leg = [tcp.source_port(), tcp.destination_port()].contains(&between);
        if on_leg && !tcp.payload().is_empty() {
            self.frames += 1;
            let mut parts = tcp.payload().windows(SECRET.len());
            self.readable += u64::from(parts.any(|part| part == SECRET));
        }
    }
}
