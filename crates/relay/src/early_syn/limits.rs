//! The limits of early SYN.

use std::time::Duration;

use super::rate::Rate;

/// How much work a SYN, which anyone can forge, may cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// SYNs that the program reports in a second, at most, from all devices. Default: 20,000.
    pub events_per_second: u32,
    /// Early dials for clients of one prefix (/24 of IPv4, /48 of IPv6). Default: 20/s, 40 at once.
    pub source: Rate,
    /// Prefixes with a rate of their own; others share one rate, which is also [`Limits::source`].
    /// Default: 4096.
    pub source_prefixes: usize,
    /// Early dials for one listener: the most that forged SYNs can send to its destination.
    /// Default: 2000/s, 500 at once.
    pub listener: Rate,
    /// Early legs that wait for their client at one time. Default: 256.
    pub pending: usize,
    /// How long an early leg waits for its client. Default: 3 s, the second retransmission of a SYN
    /// (RFC 6298: after 1 s and 3 s).
    pub ttl: Duration,
    /// How long a connection is remembered that was accepted before its SYN was read. Default: 1 s.
    pub accepted_memory: Duration,
    /// Such connections remembered, at most; the oldest is forgotten first. Default: 1024.
    pub accepted_remembered: usize,
    /// How long everything is refused after the last SYN cookie. Default: 10 s.
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
