//! The attempts to connect a session to one of several addresses.

use std::sync::Arc;
use std::time::Instant;

use slab::Slab;
use taut_sys::Errno;
use taut_sys::epoll::Readiness;
use taut_sys::socket::{Keepalive, LegOptions, Stream};

use super::untried::Untried;
use crate::access::may_be_borrowed;
use crate::counters::log_limit::DEAD_ADDRESS;
use crate::counters::worker::WorkerMetrics;
use crate::event::token::{Generation, Slot};
use crate::net::addr::{ClientAddr, UpstreamAddr};
use crate::net::backend::{Backend, Lease};
use crate::net::dial_order::{Candidate, order};
use crate::net::failures::Health;
use crate::net::race::Race;
use crate::outcome::session_end::End;

/// The maximum number of connection attempts of a node besides the upstream leg of each session.
pub(crate) const MAX_EXTRA: u32 = 256;

/// A session's attempts to connect to one of the addresses of its destinations.
pub(super) struct Dial {
    /// The addresses in the order in which they are tried.
    pub(super) backends: Vec<Arc<Backend>>,
    /// Whether the destinations have an address, although operators may have drained it.
    pub(super) has_address: bool,
    pub(super) race: Race,
    options: Arc<LegOptions>,
    /// Whether to connect from the client's address.
    pub(super) borrow: bool,
    /// The attempt that is the session's own leg.
    pub(super) own: Option<Begun>,
    /// The other attempts in progress, by their slots.
    pub(super) extra: Vec<u32>,
    /// Counts the session at the address of its own leg.
    pub(super) lease: Option<Lease>,
    /// What is tried if no address can be reached.
    pub(super) otherwise: Option<Box<Untried>>,
}

/// The values that decide between equal addresses.
#[derive(Clone, Copy)]
pub(super) struct Pick {
    pub(super) now: Instant,
    /// Differs from session to session.
    pub(super) turn: usize,
}

/// An attempt that has begun.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    /// The place of the address in the order of the session.
    pub(super) place: usize,
    pub(super) at: Instant,
    /// Whether it began before the client had proven its address: it may have waited for the client.
    pub(super) is_early: bool,
}

/// A worker's connection attempts that are no session's own leg.
#[derive(Default)]
pub(super) struct Attempts {
    pub(super) entries: Slab<Attempt>,
    pub(super) generation: Generation,
}

pub(super) struct Attempt {
    pub(super) stream: Stream,
    pub(super) generation: Generation,
    pub(super) session: (Slot, Generation),
    pub(super) begun: Begun,
    pub(super) until: Instant,
    /// The readiness that was reported.
    pub(super) ready: Option<Readiness>,
}

// === impl Dial ===

impl Dial {
    /// Returns a plan to dial the addresses of `destinations`; `client` is the session's client.
    pub(super) fn new(
        destinations: &[&[Arc<Backend>]],
        options: &Arc<LegOptions>,
        borrow: bool,
        client: ClientAddr,
        pick: Pick,
    ) -> Self {
        let candidate = |(destination, backend): (usize, &Arc<Backend>)| Candidate {
            destination,
            is_ipv6: backend.addr.0.ip().to_canonical().is_ipv6(),
            sessions: backend.sessions(),
            health: backend.health(pick.now),
        };
        let all = destinations.iter().enumerate();
        let mut all: Vec<_> = all
            .flat_map(|(i, addrs)| addrs.iter().map(move |backend| (i, backend)))
            .collect();
        let has_address = !all.is_empty();
        all.retain(|(_, backend)| !backend.is_drained());
        // A connection cannot come from an address of the other family.
        let family = client.0.ip().to_canonical().is_ipv6();
        let fits =
            |&(_, b): &(usize, &Arc<Backend>)| b.addr.0.ip().to_canonical().is_ipv6() == family;
        if borrow && all.iter().any(fits) {
            all.retain(fits);
        }
        let backends = if let [(_, one)] = all[..] {
            vec![one.clone()]
        } else {
            let candidates: Vec<_> = all.iter().copied().map(candidate).collect();
            let order = order(&candidates, pick.turn);
            order.into_iter().map(|i| all[i].1.clone()).collect()
        };
        Self {
            race: Race::new(backends.len()),
            has_address,
            backends,
            options: options.clone(),
            borrow,
            own: None,
            extra: Vec::new(),
            lease: None,
            otherwise: None,
        }
    }

    /// Leaves out the addresses for which `of` has another value than for the first.
    pub(super) fn keep_like_the_first<T: PartialEq>(&mut self, of: impl Fn(UpstreamAddr) -> T) {
        if let Some(first) = self.backends.first().map(|first| of(first.addr)) {
            self.backends.retain(|backend| of(backend.addr) == first);
            self.race = Race::new(self.backends.len());
        }
    }

    /// Returns a plan to dial one address.
    pub(super) fn to_addr(addr: UpstreamAddr, options: &Arc<LegOptions>, borrow: bool) -> Self {
        Self {
            has_address: true,
            backends: vec![Backend::once(addr)],
            race: Race::new(1),
            options: options.clone(),
            borrow,
            own: None,
            extra: Vec::new(),
            lease: None,
            otherwise: None,
        }
    }

    /// Begins an attempt at the next address. If the plan borrows, the connection comes from the
    /// address of `client`.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        client: ClientAddr,
    ) -> (Begun, Result<Stream, Errno>) {
        let begun = Begun {
            place: self.race.begun(),
            at: now,
            is_early: false,
        };
        let backend = &self.backends[begun.place];
        let is_retry = backend.health(now) == Health::Due;
        self.race.begin(now, backend.attempt_delay(is_retry));
        if is_retry {
            backend.try_again(now);
        }
        let UpstreamAddr(addr) = backend.addr;
        let stream = match self.borrow {
            false => Stream::connect_sparingly(addr, &self.options),
            true => Stream::connect_from(addr, client.0.ip().to_canonical(), &self.options),
        };
        (begun, stream)
    }

    /// Begins the first attempt ahead of the session, for a client that has not proven its address
    /// (early SYN). Returns `None` if the session must begin it itself.
    pub(super) fn begin_early(&mut self, now: Instant, client: ClientAddr) -> Option<Stream> {
        if self.borrow && !may_be_borrowed(client.0.ip().to_canonical()) {
            return None;
        }
        // The one attempt that finds out whether a dead address answers again must not end without
        // an answer, as it does if the SYN was forged: the address would stay dead for longer.
        if self.backends.first()?.health(now) == Health::Due {
            return None;
        }
        let (begun, stream) = self.begin(now, client);
        let stream = stream.ok()?;
        self.set_own(Begun {
            is_early: true,
            ..begun
        });
        Some(stream)
    }

    pub(super) fn set_own(&mut self, begun: Begun) {
        self.own = Some(begun);
        self.lease = Some(self.backends[begun.place].lease());
    }

    /// Records that an attempt has failed.
    pub(super) fn fail(&mut self, begun: Begun, error: Errno, now: Instant) {
        self.race.fail();
        let end = End::of_connect(error);
        // A lack of resources here says nothing about the address.
        if end != End::NoResources {
            self.note_dead(begun, now, end, &error);
        }
    }

    /// Records that another address was faster than this attempt, which has had its time: its address does not
    /// answer.
    pub(super) fn note_overtaken(&self, begun: Begun, now: Instant) {
        let waited = now.saturating_duration_since(begun.at);
        if self.backends[begun.place].overtaken_after(waited) {
            let why = &"another address was faster";
            self.note_dead(begun, now, End::ConnectTimedOut, why);
        }
    }

    fn note_dead(&self, begun: Begun, now: Instant, end: End, why: &dyn std::fmt::Display) {
        let backend = &self.backends[begun.place];
        let was_alive = backend.fail(now, end);
        // With one address and no other way, the log names the destination.
        let has_choice = self.backends.len() > 1 || self.otherwise.is_some();
        if has_choice
            && was_alive
            && let Some(line) = DEAD_ADDRESS.line(now)
        {
            let (addr, left_out) = (backend.addr.0, line.left_out);
            tracing::info!(%addr, error = %why, left_out, "an address does not answer; new sessions prefer others");
        }
    }

    /// Returns the time at which the race must be driven.
    pub(super) fn next(&self, attempts: &Attempts) -> Option<Instant> {
        let limits = self.extra.iter().filter_map(|&i| attempts.get(i));
        limits.map(|a| a.until).chain(self.race.next_at()).min()
    }

    /// Returns the keepalive parameters of the connections.
    pub(super) fn keepalive(&self) -> &Keepalive {
        &self.options.keepalive
    }

    /// Returns the number of attempts so far.
    pub(super) fn begun(&self) -> usize {
        self.race.begun()
    }
}

// === impl Attempts ===

impl Attempts {
    pub(super) fn get(&self, i: u32) -> Option<&Attempt> {
        self.entries.get(i as usize)
    }

    pub(super) fn take(&mut self, i: u32, metrics: &WorkerMetrics) -> Option<Attempt> {
        let attempt = self.entries.try_remove(i as usize)?;
        metrics.dials_extra_now.sub(1);
        Some(attempt)
    }

    /// Records an event of an attempt and returns its session.
    pub(super) fn handle(
        &mut self,
        i: Slot,
        generation: Generation,
        ready: Readiness,
    ) -> Option<(Slot, Generation)> {
        let attempt = self.entries.get_mut(i.0 as usize)?;
        if attempt.generation != generation {
            return None;
        }
        attempt.ready = Some(ready);
        Some(attempt.session)
    }

    /// Resets the attempts of a session.
    pub(super) fn forget(&mut self, dial: &mut Dial, metrics: &WorkerMetrics) {
        for i in std::mem::take(&mut dial.extra) {
            // Dropping a stream resets it.
            drop(self.take(i, metrics));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use taut_sys::socket::Keepalive;

    use super::*;

    fn options() -> Arc<LegOptions> {
        Arc::new(LegOptions::new(Keepalive {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(15),
            probes: 4,
        }))
    }

    #[test]
    fn a_header_goes_only_to_addresses_for_which_it_was_written() {
        let addrs = [1, 2, 3, 4].map(|i| Backend::once(UpstreamAddr(([127, 0, 0, i], 9).into())));
        let client = ClientAddr(([192, 0, 2, 1], 5000).into());
        let pick = Pick {
            now: Instant::now(),
            turn: 0,
        };
        let mut dial = Dial::new(&[&addrs], &options(), false, client, pick);
        let is_told = |addr: UpstreamAddr| addr == addrs[0].addr || addr == addrs[2].addr;
        let expected = is_told(dial.backends[0].addr);
        dial.keep_like_the_first(is_told);
        let told: Vec<_> = dial.backends.iter().map(|b| is_told(b.addr)).collect();
        assert_eq!(told, [expected; 2]);
        for _ in 0..2 {
            assert!(dial.race.is_due(pick.now));
            dial.race.begin(pick.now, Duration::ZERO);
        }
        assert!(!dial.race.is_due(pick.now), "there is no third");
    }

    #[test]
    fn a_client_that_may_be_forged_does_not_try_an_address_that_may_be_dead() {
        let start = Instant::now();
        let later = start + Duration::from_secs(60);
        let dead = Backend::once(UpstreamAddr(([127, 0, 0, 1], 9).into()));
        let other = Backend::once(UpstreamAddr(([127, 0, 0, 2], 9).into()));
        dead.fail(start, End::ConnectTimedOut);
        assert_eq!(dead.health(later), Health::Due);
        let client = ClientAddr(([192, 0, 2, 1], 5000).into());
        let pick = Pick {
            now: later,
            turn: 0,
        };
        let both = [other, dead.clone()];
        let mut dial = Dial::new(&[&both], &options(), false, client, pick);
        assert!(Arc::ptr_eq(&dial.backends[0], &dead), "a session tries it");
        assert!(dial.begin_early(later, client).is_none());
        assert_eq!(dead.health(later), Health::Due);
        assert_eq!(dial.begun(), 0);
    }
}
