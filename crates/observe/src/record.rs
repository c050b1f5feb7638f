//! What is told to programs of a connection.

use std::net::SocketAddr;

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use taut_sys::sock_diag::Connection;

use crate::instruments::{INSTRUMENTS, Instrument};
use crate::observer::Tracked;
use crate::owner::Process;
use crate::verdict::Verdict;

/// A connection at one moment. Bytes, seconds, bytes a second.
#[derive(Debug, Serialize)]
pub struct Record<'a> {
    /// The kernel's name of the socket.
    pub cookie: u64,
    /// The namespace's name, `-` for the caller's own.
    pub netns: &'a str,
    /// This end.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// As RFC 9293 writes it.
    pub state: &'static str,
    /// Whose it is.
    pub uid: u32,
    /// Number of its cgroup (v2).
    pub cgroup: Option<u64>,
    /// Who has it, if that is known.
    pub process: Option<Owner<'a>>,
    /// Congestion control.
    pub congestion_control: Option<&'a str>,
    /// Since the look before.
    pub rates: Option<Rates>,
    /// Values of [`INSTRUMENTS`], by name; without those that the kernel does not tell.
    pub instruments: Instruments<'a>,
    /// What limits it; nothing before the second look.
    pub verdict: Option<Verdict>,
}

/// A process.
#[derive(Debug, Serialize)]
pub struct Owner<'a> {
    /// Number.
    pub pid: u32,
    /// Name, without what does not belong on a terminal.
    pub name: &'a str,
    /// Beginning of its container's identity.
    pub container: Option<&'a str>,
}

/// Payload a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Sent, and acknowledged by the peer.
    pub sent: f64,
    /// Received in order.
    pub received: f64,
}

/// The instruments of a connection.
#[derive(Debug)]
pub struct Instruments<'a>(&'a Connection);

// === impl Record ===

impl<'a> Record<'a> {
    /// Of what was seen last.
    pub fn of(
        cookie: u64,
        tracked: &'a Tracked,
        process: Option<&'a Process>,
        verdict: Option<Verdict>,
    ) -> Self {
        let connection = &tracked.last().connection;
        Self {
            cookie,
            netns: &tracked.netns,
            local: connection.local,
            remote: connection.remote,
            state: connection.state.name(),
            uid: connection.uid,
            cgroup: connection.cgroup,
            process: process.map(|process| Owner {
                pid: process.pid,
                name: &process.name,
                container: process.container.as_deref(),
            }),
            congestion_control: connection.congestion_control.as_ref().map(|cc| cc.as_str()),
            rates: Rates::of(tracked),
            instruments: Instruments(connection),
            verdict,
        }
    }
}

// === impl Rates ===

impl Rates {
    /// Between the last two looks; `None` before the second.
    pub fn of(tracked: &Tracked) -> Option<Self> {
        if tracked.is_as_before() {
            return Some(Self::default());
        }
        let step = tracked.step()?;
        Some(Self {
            sent: step.sent_rate(),
            received: step.received_rate(),
        })
    }
}

// === impl Instruments ===

impl Instruments<'_> {
    /// One of them; nothing where the kernel does not tell.
    pub fn read(&self, instrument: &Instrument) -> Option<f64> {
        instrument.read(self.0)
    }
}

impl Serialize for Instruments<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for instrument in INSTRUMENTS {
            if let Some(value) = instrument.read(self.0) {
                map.serialize_entry(instrument.name, &Figure(value))?;
            }
        }
        map.end()
    }
}

/// Whole numbers without a fraction.
struct Figure(f64);

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        /// Up to here every whole number is one.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is whole, and in the range"
        )]
        match self.0 {
            whole if whole.fract() == 0.0 && (0.0..EXACT).contains(&whole) => {
                serializer.serialize_u64(whole as u64)
            }
            other => serializer.serialize_f64(other),
        }
    }
}
