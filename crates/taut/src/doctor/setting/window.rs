//! Checks whether a connection's window can fill a path with a large bandwidth-delay product.

use std::fmt;
use std::time::Duration;

use taut_tune::demand::{WindowCap, carried};
use taut_tune::plan::maximum_for;

use super::{Finding, Host, set};

/// The path by which windows are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LongPath {
    pub(crate) round_trip: Duration,
    pub(crate) source: PathSource,
}

/// Why a path is the one to judge by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathSource {
    /// The user has given its round-trip time.
    Given,
    /// It is the longest path of a connection of this machine.
    Seen,
    /// No connection shows a path.
    Assumed,
}

// === impl LongPath ===

impl LongPath {
    /// The path between two continents, if no connection shows another.
    pub(crate) const ASSUMED: Self = Self {
        round_trip: Duration::from_millis(100),
        source: PathSource::Assumed,
    };

    /// Returns the rate of a window over this path, in Mbit/s.
    pub(super) fn mbit(self, window: u64) -> f64 {
        8.0 * window as f64 / self.round_trip.as_secs_f64() / 1e6
    }
}

impl fmt::Display for LongPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source {
            PathSource::Given => "--rtt",
            PathSource::Seen => "the longest round trip of a connection here",
            PathSource::Assumed => {
                "assumed, as no connection here shows a long path; --rtt gives another"
            }
        };
        write!(f, "{} ms ({source})", self.round_trip.as_millis().max(1))
    }
}

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

/// Assesses the third number, which is the limit of auto-tuning. What `taut tune` sets is enough.
fn assess_one(host: &Host, buffer: &Buffer) -> Option<Finding> {
    let id = buffer.id;
    let (least, start, most) = (
        host.number(id, 0)?,
        host.number(id, 1)?,
        host.number(id, 2)?,
    );
    let value = format!("{least} {start} {most}");
    let (window, path) = (most / buffer.per_byte, host.path);
    let enough = maximum_for(WindowCap::default(), host.memory);
    let mbit = path.mbit(window);
    Some(if window >= carried(path.round_trip) {
        Finding::fine(id, value, format!("enough for 1 Gbit/s at {path}"))
    } else if most >= enough {
        Finding::fine(id, value, format!("enough for {mbit:.0} Mbit/s at {path}"))
    } else {
        let why = format!("a connection reaches about {mbit:.0} of 1000 Mbit/s at {path}");
        Finding::slows(id, value, why, set(id, format!("{least} {start} {enough}")))
    })
}
