//! The limits of early SYN.

use std::time::Duration;

use super::rate::Rate;

/// Limits of the work that SYNs, which anyone can forge, may cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of SYNs that the program reports per second, from all devices. Default:
    /// 20,000.
    pub events_per_second: u32,
    /// Early dials for clients of one prefix (IPv4 /24, IPv6 /48). Default: 20/s, 40 at once.
    pub source: Rate,
    /// Prefixes with a rate of their own; all others share one rate, also [`Limits::source`].
    /// Default: 4096.
    pub source_prefixes: usize,
    /// Early dials for one listener: the maximum that forged SYNs can send to its destination.
    /// Default: 2000/s, 500 at once.
    pub listener: Rate,
    /// The maximum number of early legs that wait for their client. Default: 256.
    pub pending: usize,
    /// The time that an early leg waits for its client. Default: 3 s, the second retransmission of
    /// a SYN (RFC 6298: after 1 s and 3 s).
    pub ttl: Duration,
    /// The time for which a connection accepted before its SYN was read is remembered. Default: 1
    /// s.
    pub accepted_memory: Duration,
    /// The maximum number of such connections; the oldest is forgotten first. Default: 1024.
    pub accepted_remembered: usize,
    /// The time after the last SYN cookie during which every SYN is refused. Default: 10 s.
    pub cookies_quiet: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            events_per_second: 20_000,
            source: Rate::new(20, 40),
            source_prefixes: 4096,
            listener: Rate::new(2000, 500),
            pending: 256,
            ttl: Duration::from_secs(3),
            accepted_memory: Duration::from_secs(1),
            accepted_remembered: 1024,
            cookies_quiet: Duration::from_secs(10),
        }
    }
}
