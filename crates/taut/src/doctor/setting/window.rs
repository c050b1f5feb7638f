//! Whether a connection's window can fill a long fat path.

use super::{Finding, Host, set};

/// The path of the demonstration: client to server, end to end.
const RTT_MS: u64 = 274;
const BITS_A_SECOND: u64 = 1_000_000_000;
/// What must be in flight to fill it, in bytes.
const IN_FLIGHT: u64 = BITS_A_SECOND / 8 / 1_000 * RTT_MS;
/// A limit of this many windows is enough on either side: the kernel keeps up to half of a receive
/// buffer for its own structures, and aims at a send buffer of two windows.
const WINDOWS_ENOUGH: u64 = 2;

/// A buffer, and how much of it can be in flight.
struct Buffer {
    id: &'static str,
    /// Bytes of buffer that a byte in flight takes. The kernel counts its structures into either
    /// buffer: in a receive buffer it allows half for them (from 6.6 on it measures instead, and
    /// half is the worst); beside large sends they are small.
    per_byte: u64,
}

const BUFFERS: [Buffer; 2] = [
    Buffer {
        id: "net.ipv4.tcp_rmem",
        per_byte: 2,
    },
    Buffer {
        id: "net.ipv4.tcp_wmem",
        per_byte: 1,
    },
];

pub(super) fn judge(host: &Host) -> Vec<Finding> {
    BUFFERS.iter().filter_map(|b| judge_one(host, b)).collect()
}

/// The third number is how far autotuning may go.
fn judge_one(host: &Host, buffer: &Buffer) -> Option<Finding> {
    let id = buffer.id;
    let (least, start, most) = (
        host.number(id, 0)?,
        host.number(id, 1)?,
        host.number(id, 2)?,
    );
    let value = format!("{least} {start} {most}");
    let window = most / buffer.per_byte;
    Some(if window >= IN_FLIGHT {
        Finding::fine(id, value, "1 Gbit/s fits at 274 ms")
    } else {
        let mbit = window * 8 / RTT_MS / 1_000;
        let why = format!("a connection gets about {mbit} Mbit/s at 274 ms, of 1000");
        let enough = (IN_FLIGHT * WINDOWS_ENOUGH).next_multiple_of(1 << 20);
        Finding::slows(id, value, why, set(id, format!("{least} {start} {enough}")))
    })
}
