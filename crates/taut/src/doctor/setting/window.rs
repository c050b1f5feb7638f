//! Checks whether a connection's window can fill a path with a large bandwidth-delay product.

use super::{Finding, Host, set};

/// The round-trip time of the demonstration's path, client to server.
const RTT_MS: u64 = 274;
const BITS_A_SECOND: u64 = 1_000_000_000;
/// The path's bandwidth-delay product in bytes.
const IN_FLIGHT: u64 = BITS_A_SECOND / 8 / 1_000 * RTT_MS;
/// The recommended buffer limit, in windows: the kernel uses up to half of a receive buffer for its
/// own structures, and aims at a send buffer of two windows.
const WINDOWS_ENOUGH: u64 = 2;

/// A buffer limit and its overhead.
struct Buffer {
    id: &'static str,
    /// Bytes of buffer per byte in flight. The kernel counts its own structures towards both
    /// buffers. In a receive buffer it reserves half for them (since 6.6 it measures them, and half
    /// is the worst case); in a send buffer they are small compared to large writes.
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

pub(super) fn assess(host: &Host) -> Vec<Finding> {
    BUFFERS.iter().filter_map(|b| assess_one(host, b)).collect()
}

/// Assesses the third number, which is the limit of auto-tuning.
fn assess_one(host: &Host, buffer: &Buffer) -> Option<Finding> {
    let id = buffer.id;
    let (least, start, most) = (
        host.number(id, 0)?,
        host.number(id, 1)?,
        host.number(id, 2)?,
    );
    let value = format!("{least} {start} {most}");
    let window = most / buffer.per_byte;
    Some(if window >= IN_FLIGHT {
        Finding::fine(id, value, "enough for 1 Gbit/s at 274 ms")
    } else {
        let mbit = window * 8 / RTT_MS / 1_000;
        let why = format!("a connection reaches about {mbit} of 1000 Mbit/s at 274 ms");
        let enough = (IN_FLIGHT * WINDOWS_ENOUGH).next_multiple_of(1 << 20);
        Finding::slows(id, value, why, set(id, format!("{least} {start} {enough}")))
    })
}
