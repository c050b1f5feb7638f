//! Decides which SYNs may make the relay dial early. Uses no sockets and no clock.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use super::deadlines::Deadlines;
use super::limits::Limits;
use super::{FourTuple, SynEvent};

/// The decision on a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Dial the upstream leg; the connection is pending until [`Limiter::settled`] or
    /// [`Limiter::expire`].
    Admit,
    /// The connection is pending already: the SYN is a retransmission, or two devices saw it on its
    /// way in.
    Merged,
    /// The connection was accepted before its SYN was read.
    Late,
    /// The client's prefix has reached its rate.
    OverSourceRate,
    /// The listener has reached its rate.
    OverDestinationRate,
    /// Too many connections are pending.
    TooManyPending,
    /// The kernel sends SYN cookies, or did recently.
    CookiesActive,
}

/// The number of times that each event happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// [`Admission::Admit`].
    pub admitted: u64,
    /// [`Admission::Merged`].
    pub merged: u64,
    /// [`Admission::Late`].
    pub late: u64,
    /// [`Admission::OverSourceRate`].
    pub over_source_rate: u64,
    /// [`Admission::OverDestinationRate`].
    pub over_destination_rate: u64,
    /// [`Admission::TooManyPending`].
    pub too_many_pending: u64,
    /// [`Admission::CookiesActive`].
    pub cookies_active: u64,
    /// SYNs that used the shared rate because the table had no room for their prefix.
    pub prefix_table_full: u64,
    /// Admitted SYNs whose connection was accepted and joined, or whose dial was given up.
    pub settled: u64,
    /// Admitted SYNs whose client did not complete the handshake in time.
    pub expired: u64,
    /// Accepted connections that were forgotten early because the table was full.
    pub accepted_forgotten: u64,
}

/// Clients that probably belong to one party. Where networks check source addresses (BCP 38), a
/// forger elsewhere cannot choose this prefix freely, and it is a size that one customer is often
/// assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Prefix {
    /// /24
    V4([u8; 3]),
    /// /48
    V6([u8; 6]),
}

/// Applies the [`Limits`] to SYNs.
#[derive(Debug)]
pub struct Limiter {
    limits: Limits,
    counts: Counts,
    pending: Deadlines<FourTuple>,
    accepted: Deadlines<FourTuple>,
    /// The time at which each prefix's bucket is full again. A full bucket equals a new one, so it
    /// can be forgotten without loss. No other bucket is ever forgotten, so forged sources cannot
    /// erase the history of a prefix.
    prefixes: Deadlines<Prefix>,
    /// The bucket that prefixes without an entry share.
    other_prefixes: Option<Instant>,
    /// One bucket per listener. The relay assigns the listeners' numbers.
    listeners: HashMap<u32, Instant>,
    cookies_sent: Option<u64>,
    refuse_until: Option<Instant>,
}

// === impl Limiter ===

impl Limiter {
    /// Returns a limiter without history.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            counts: Counts::default(),
            pending: Deadlines::default(),
            accepted: Deadlines::default(),
            prefixes: Deadlines::default(),
            other_prefixes: None,
            listeners: HashMap::new(),
            cookies_sent: None,
            refuse_until: None,
        }
    }

    /// Decides on `syn`, read at `now`.
    pub fn admit(&mut self, syn: &SynEvent, now: Instant) -> Admission {
        let verdict = self.decide(syn, now);
        let count = match verdict {
            Admission::Admit => &mut self.counts.admitted,
            Admission::Merged => &mut self.counts.merged,
            Admission::Late => &mut self.counts.late,
            Admission::OverSourceRate => &mut self.counts.over_source_rate,
            Admission::OverDestinationRate => &mut self.counts.over_destination_rate,
            Admission::TooManyPending => &mut self.counts.too_many_pending,
            Admission::CookiesActive => &mut self.counts.cookies_active,
        };
        *count += 1;
        verdict
    }

    fn decide(&mut self, syn: &SynEvent, now: Instant) -> Admission {
        let connection = syn.connection();
        // A retransmission does not extend the deadline of a pending connection; otherwise a forger
        // could keep it pending for ever.
        if self.pending.get(&connection).is_some() {
            return Admission::Merged;
        }
        if self.accepted.get(&connection).is_some_and(|at| now < at) {
            return Admission::Late;
        }
        if self.refuse_until.is_some_and(|until| now < until) {
            return Admission::CookiesActive;
        }
        if self.pending.len() >= self.limits.pending {
            return Admission::TooManyPending;
        }
        // The source is checked before the listener, so that a SYN refused for its source does not
        // use up the listener's rate.
        if !self.take_source(Prefix::of(connection.client().ip()), now) {
            return Admission::OverSourceRate;
        }
        let bucket = self.listeners.entry(syn.listener).or_insert(now);
        let Some(full_at) = self.limits.listener.take(*bucket, now) else {
            return Admission::OverDestinationRate;
        };
        *bucket = full_at;
        self.pending.set(connection, now + self.limits.ttl);
        Admission::Admit
    }

    /// Takes a token of `prefix`, or of the shared bucket.
    fn take_source(&mut self, prefix: Prefix, now: Instant) -> bool {
        let rate = self.limits.source;
        let known = self.prefixes.get(&prefix);
        if known.is_none() && self.prefixes.len() >= self.limits.source_prefixes {
            self.prefixes.pop_due(now);
        }
        if known.is_some() || self.prefixes.len() < self.limits.source_prefixes {
            let taken = rate.take(known.unwrap_or(now), now);
            if let Some(full_at) = taken {
                self.prefixes.set(prefix, full_at);
            }
            return taken.is_some();
        }
        self.counts.prefix_table_full += 1;
        let taken = rate.take(self.other_prefixes.unwrap_or(now), now);
        if taken.is_some() {
            self.other_prefixes = taken;
        }
        taken.is_some()
    }

    /// Records that the pending `connection` was accepted and joined, or that its dial failed.
    /// Returns whether it was pending.
    pub fn settled(&mut self, connection: FourTuple) -> bool {
        let was = self.pending.remove(&connection);
        self.counts.settled += u64::from(was);
        was
    }

    /// Records that `connection` was accepted but was not pending. Its SYN may still be in the ring
    /// if the client is near.
    pub fn accepted_without(&mut self, connection: FourTuple, now: Instant) {
        while self.accepted.pop_due(now).is_some() {}
        if self.limits.accepted_remembered == 0 {
            return;
        }
        if self.accepted.get(&connection).is_none()
            && self.accepted.len() >= self.limits.accepted_remembered
        {
            self.accepted.pop();
            self.counts.accepted_forgotten += 1;
        }
        self.accepted
            .set(connection, now + self.limits.accepted_memory);
    }

    /// Removes and returns the pending connections whose deadline has passed.
    pub fn expire(&mut self, now: Instant) -> Vec<FourTuple> {
        let expired: Vec<_> = std::iter::from_fn(|| self.pending.pop_due(now)).collect();
        self.counts.expired += expired.len() as u64;
        expired
    }

    /// Returns when [`Limiter::expire`] is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.pending.next()
    }

    /// Records the total of SYN cookies that the kernel has sent. Call it about once a second.
    /// While the total grows, and for [`Limits::cookies_quiet`] afterwards, every SYN is refused.
    pub fn note_cookies(&mut self, sent_total: u64, now: Instant) {
        if self.cookies_sent.is_some_and(|before| sent_total > before) {
            self.refuse_until = Some(now + self.limits.cookies_quiet);
        }
        self.cookies_sent = Some(sent_total);
    }

    /// Returns the number of pending connections.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

// === impl Prefix ===

impl Prefix {
    fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let [a, b, c, _] = ip.octets();
                Self::V4([a, b, c])
            }
            IpAddr::V6(ip) => {
                let [a, b, c, d, e, f, ..] = ip.octets();
                Self::V6([a, b, c, d, e, f])
            }
        }
    }
}

#[cfg(test)]
mod tests;
