//! A connection as JSON.

use std::net::SocketAddr;

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use taut_sys::sock_diag::Connection;

use crate::both_ends::SequenceBase;
use crate::ended::EndCounts;
use crate::instruments::{INSTRUMENTS, Instrument};
use crate::observer::Tracked;
use crate::owner::Process;
use crate::verdict::Verdict;

/// A connection at one moment. Units are bytes, seconds and bytes a second.
#[derive(Debug, Serialize)]
pub struct Record<'a> {
    /// The socket's cookie.
    pub cookie: u64,
    /// The name of the network namespace, `-` for the caller's own.
    pub netns: &'a str,
    /// Address and port of this end.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// The state in the spelling of RFC 9293.
    pub state: &'static str,
    /// The user that owns the socket.
    pub uid: u32,
    /// ID of its cgroup (v2).
    pub cgroup: Option<u64>,
    /// The process that owns it, if it is known.
    pub process: Option<Owner<'a>>,
    /// Name of the congestion control.
    pub congestion_control: Option<&'a str>,
    /// Rates since the previous scan.
    pub rates: Option<Rates>,
    /// Values of [`INSTRUMENTS`] by name, except those that the kernel does not report.
    pub instruments: Instruments<'a>,
    /// Where its sequence numbers begin; `None` without BPF.
    pub sequence: Option<SequenceBase>,
    /// The verdict on it; `None` before the second scan.
    pub verdict: Option<Verdict>,
}

/// The process that owns a connection.
#[derive(Debug, Serialize)]
pub struct Owner<'a> {
    /// Process ID.
    pub pid: u32,
    /// Its name, safe for a terminal.
    pub name: &'a str,
    /// The first digits of its container ID.
    pub container: Option<&'a str>,
}

/// Rates of payload, in bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Payload that the peer acknowledged, in bytes a second.
    pub sent: f64,
    /// Payload received in order, in bytes a second.
    pub received: f64,
}

/// The instruments of a connection.
#[derive(Debug)]
pub struct Instruments<'a> {
    connection: &'a Connection,
    /// What is known of its end without `tcp_info`.
    counts: Option<&'a EndCounts>,
}

// === impl Record ===

impl<'a> Record<'a> {
    /// Returns the record of the last sample.
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
            instruments: Instruments {
                connection,
                counts: None,
            },
            sequence: connection.internals.as_ref().map(SequenceBase::of),
            verdict,
        }
    }

    /// Adds the counts of the connection's end, which are its instruments if no sample has any.
    pub(crate) fn with_counts(mut self, counts: &'a EndCounts) -> Self {
        self.instruments.counts = Some(counts);
        self
    }
}

// === impl Rates ===

impl Rates {
    /// Returns the rates between the last two samples; `None` if there is only one sample.
    pub fn of(tracked: &Tracked) -> Option<Self> {
        if tracked.is_unchanged() {
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
    /// Returns the value of an instrument; `None` if the kernel does not report it.
    pub fn read(&self, instrument: &Instrument) -> Option<f64> {
        match (self.counts, &self.connection.info) {
            (Some(counts), None) => counts.read(instrument.name).map(|count| count as f64),
            _ => instrument.read(self.connection),
        }
    }
}

impl Serialize for Instruments<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for instrument in INSTRUMENTS {
            if let Some(value) = self.read(instrument) {
                map.serialize_entry(instrument.name, &Figure(value))?;
            }
        }
        map.end()
    }
}

/// A number that is serialized without a fraction if it is whole.
struct Figure(f64);

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        /// Every whole number up to this one has an exact `f64`.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is whole and in range"
        )]
        match self.0 {
            whole if whole.fract() == 0.0 && (0.0..EXACT).contains(&whole) => {
                serializer.serialize_u64(whole as u64)
            }
            other => serializer.serialize_f64(other),
        }
    }
}
