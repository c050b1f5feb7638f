//! The addresses of destinations, with what the whole node knows about each: its open sessions and
//! its failures.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use taut_sys::random;

use crate::net::addr::{Destination, UpstreamAddr};
use crate::net::failures::{Failures, Health};
use crate::net::race::ATTEMPT_DELAY;
use crate::outcome::session_end::End;

/// The maximum number of destinations of sessions whose backends are remembered.
const MAX_NAMES: usize = 1024;

/// When the kernel sends a SYN again (RFC 6298 section 2).
const SYN_TIMEOUT: Duration = Duration::from_secs(1);

/// One address of a destination.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) addr: UpstreamAddr,
    sessions: AtomicU32,
    /// How long it takes to connect, in microseconds; 0: not known yet.
    connect_time: AtomicU32,
    /// How long attempts have waited in vain, in microseconds, while nothing is known.
    waited: AtomicU32,
    /// Whether `failures` has any, so that a session takes no lock for a live address.
    failed: AtomicBool,
    failures: Mutex<(Failures, Option<Outage>)>,
    /// Whether an operator has drained it: new sessions do not go there.
    drained: AtomicBool,
    /// The numbers of observations at which it was up since it was first down, and at which it was down.
    observed: [AtomicU64; 2],
}

/// How long an address has been dead, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    pub(crate) since: Instant,
    /// Why the last attempt failed.
    pub(crate) cause: End,
}

/// The addresses of a destination, in the order of the resolver.
pub(crate) type Backends = Arc<[Arc<Backend>]>;

/// A session at a backend, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease(Arc<Backend>);

/// The backends of a node by address. An address is remembered as long as a destination, a cached
/// look-up or a session has it.
#[derive(Debug, Default)]
pub(crate) struct BackendTable {
    known: Mutex<HashMap<SocketAddr, Weak<Backend>>>,
    /// Those of the destinations of other relays' sessions, which no configuration names.
    of_names: Mutex<HashMap<Destination, Backends>>,
    /// Those of the destinations of forwards, each once, when they were last observed.
    of_forwards: ArcSwap<Vec<Arc<Backend>>>,
    /// The addresses that an operator has drained.
    drained: Mutex<HashSet<SocketAddr>>,
    /// Health checks that connected, and those that failed.
    checks: (AtomicU64, AtomicU64),
}

// === impl Backend ===

impl Backend {
    /// Returns a backend that is in no table: nothing is remembered of it after the session.
    pub(crate) fn once(addr: UpstreamAddr) -> Arc<Self> {
        Arc::new(Self {
            addr,
            sessions: AtomicU32::new(0),
            connect_time: AtomicU32::new(0),
            waited: AtomicU32::new(0),
            failed: AtomicBool::new(false),
            failures: Mutex::default(),
            drained: AtomicBool::new(false),
            observed: Default::default(),
        })
    }

    /// Counts a session.
    pub(crate) fn lease(self: &Arc<Self>) -> Lease {
        self.sessions.fetch_add(1, Ordering::Relaxed);
        Lease(self.clone())
    }

    /// Returns the number of sessions that have this address or are connecting to it.
    pub(crate) fn sessions(&self) -> u32 {
        self.sessions.load(Ordering::Relaxed)
    }

    pub(crate) fn health(&self, now: Instant) -> Health {
        match self.failed.load(Ordering::Relaxed) {
            false => Health::Alive,
            true => self.failures().0.health(now),
        }
    }

    /// Returns since when the address has been dead; `None` if it is alive.
    pub(crate) fn outage(&self) -> Option<Outage> {
        match self.failed.load(Ordering::Relaxed) {
            false => None,
            true => self.failures().1,
        }
    }

    /// Observes whether the address is dead. Returns the numbers of observations at which it was dead, and at
    /// which it was alive since the first of those, and the cause; `None` if it has always been alive.
    pub(crate) fn observe(&self) -> Option<(u64, u64, End)> {
        let outage = self.outage();
        let [alive, dead] = &self.observed;
        if outage.is_none() && dead.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let counter = if outage.is_some() { dead } else { alive };
        counter.fetch_add(1, Ordering::Relaxed);
        let cause = outage.map_or(End::ConnectTimedOut, |outage| outage.cause);
        Some((
            dead.load(Ordering::Relaxed),
            alive.load(Ordering::Relaxed),
            cause,
        ))
    }

    /// Returns whether an operator has drained the address.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Relaxed)
    }

    /// Returns how long an attempt may take before the next address is tried: half as long again as usual (RFC
    /// 8305 section 5 asks for history). If none has connected yet, the address may be far away: an attempt that
    /// finds out whether a dead address answers waits twice as long as those before it.
    pub(crate) fn attempt_delay(&self, is_retry: bool) -> Duration {
        let usual = self.connect_time.load(Ordering::Relaxed);
        let waited = self.waited.load(Ordering::Relaxed);
        let delay = match usual {
            0 if is_retry => SYN_TIMEOUT.min(Duration::from_micros(waited.into()) * 2),
            usual => Duration::from_micros(usual.into()) * 3 / 2,
        };
        delay.max(ATTEMPT_DELAY)
    }

    /// Records how long it has taken to connect. A longer time counts at once, a shorter one by and by, and none
    /// in which a SYN was sent again.
    pub(crate) fn connected_after(&self, time: Duration) {
        if time >= SYN_TIMEOUT {
            return;
        }
        let time = u32::try_from(time.as_micros()).unwrap_or(u32::MAX).max(1);
        let before = self.connect_time.load(Ordering::Relaxed);
        let usual = time.max(before - before / 8);
        self.connect_time.store(usual, Ordering::Relaxed);
    }

    /// Records that another address was faster than an attempt that has waited for this long. Returns whether the
    /// attempt has had its time, so that the address counts as dead.
    pub(crate) fn overtaken_after(&self, waited: Duration) -> bool {
        let micros = u32::try_from(waited.as_micros()).unwrap_or(u32::MAX);
        self.waited.fetch_max(micros, Ordering::Relaxed);
        waited >= self.attempt_delay(false)
    }

    /// Records a failed attempt. Returns whether the address was alive.
    pub(crate) fn fail(&self, now: Instant, cause: End) -> bool {
        let mut failures = self.failures();
        self.failed.store(true, Ordering::Relaxed);
        Outage::go_on(&mut failures.1, now, cause);
        failures.0.add(now, jitter())
    }

    /// Records that a session tries the dead address. Until the attempt is over, others must not wait for it.
    pub(crate) fn try_again(&self, now: Instant) {
        let mut failures = self.failures();
        // Another attempt may have connected meanwhile.
        if failures.1.is_some() {
            failures.0.add(now, jitter());
        }
    }

    /// Records that health checks have found the address dead, see [`Failures::hold`].
    pub(crate) fn hold(&self, now: Instant, until: Instant, cause: End) {
        let mut failures = self.failures();
        self.failed.store(true, Ordering::Relaxed);
        Outage::go_on(&mut failures.1, now, cause);
        failures.0.hold(until);
    }

    /// Records a connection. Returns whether the address was dead.
    pub(crate) fn clear(&self) -> bool {
        if !self.failed.load(Ordering::Relaxed) {
            return false;
        }
        let mut failures = self.failures();
        self.failed.store(false, Ordering::Relaxed);
        failures.1 = None;
        failures.0.clear()
    }

    fn failures(&self) -> MutexGuard<'_, (Failures, Option<Outage>)> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a random number from 0 to 1.
fn jitter() -> f64 {
    f64::from(u32::from_ne_bytes(random::bytes())) / f64::from(u32::MAX)
}

// === impl Outage ===

impl Outage {
    /// Begins an outage, or goes on with the one that there is.
    fn go_on(outage: &mut Option<Self>, now: Instant, cause: End) {
        let since = outage.map_or(now, |outage| outage.since);
        *outage = Some(Self { since, cause });
    }
}

// === impl Lease ===

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl BackendTable ===

impl BackendTable {
    /// Returns the backends of `addrs`, the known ones with what is known about them.
    pub(crate) fn of(&self, addrs: impl IntoIterator<Item = UpstreamAddr>) -> Backends {
        let mut table = self.lock();
        if table.len() == table.capacity() {
            // Before the table grows. Addresses that nothing has any more are forgotten.
            table.retain(|_, backend| backend.strong_count() > 0);
        }
        let backend = |addr: UpstreamAddr| {
            let known = table.entry(addr.0).or_default();
            known.upgrade().unwrap_or_else(|| {
                let new = Backend::once(addr);
                let is_drained = self.drained().contains(&addr.0);
                new.drained.store(is_drained, Ordering::Relaxed);
                *known = Arc::downgrade(&new);
                new
            })
        };
        addrs.into_iter().map(backend).collect()
    }

    /// Returns the backends of a destination that only sessions name. They are remembered until there are
    /// [`MAX_NAMES`] others.
    pub(crate) fn of_name(&self, destination: Destination, addrs: &[UpstreamAddr]) -> Backends {
        let backends = self.of(addrs.iter().copied());
        let mut of_names = self.of_names.lock().unwrap_or_else(PoisonError::into_inner);
        if of_names.len() >= MAX_NAMES && !of_names.contains_key(&destination) {
            of_names.clear();
        }
        of_names.insert(destination, backends.clone());
        backends
    }

    /// Returns the numbers of live and of dead addresses.
    pub(crate) fn alive_and_dead(&self, now: Instant) -> (u64, u64) {
        let table = self.lock();
        let known = table.values().filter_map(Weak::upgrade);
        known.fold((0, 0), |(alive, dead), backend| match backend.health(now) {
            Health::Alive => (alive + 1, dead),
            Health::Due | Health::Dead => (alive, dead + 1),
        })
    }

    /// Sets which addresses the destinations of forwards have.
    pub(crate) fn set_of_forwards(&self, backends: Vec<Arc<Backend>>) {
        self.of_forwards.store(Arc::new(backends));
    }

    /// Returns the addresses of the destinations of forwards, as they were last observed.
    pub(crate) fn of_forwards(&self) -> Arc<Vec<Arc<Backend>>> {
        self.of_forwards.load_full()
    }

    /// Drains an address, or ends that with `undo`. It stays drained if no destination has it for a while.
    /// Returns whether that is a change.
    pub(crate) fn drain(&self, addr: SocketAddr, undo: bool) -> bool {
        let table = self.lock();
        let changed = match undo {
            true => self.drained().remove(&addr),
            false => self.drained().insert(addr),
        };
        if let Some(backend) = table.get(&addr).and_then(Weak::upgrade) {
            backend.drained.store(!undo, Ordering::Relaxed);
        }
        changed
    }

    fn drained(&self) -> MutexGuard<'_, HashSet<SocketAddr>> {
        self.drained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a health check.
    pub(crate) fn count_check(&self, connected: bool) {
        let counter = match connected {
            true => &self.checks.0,
            false => &self.checks.1,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the numbers of health checks that connected and that failed.
    pub(crate) fn checks(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.checks.0), count(&self.checks.1))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Weak<Backend>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> UpstreamAddr {
        UpstreamAddr(([192, 0, 2, 1], port).into())
    }

    #[test]
    fn an_address_is_the_same_backend_wherever_it_is_named() {
        let table = BackendTable::default();
        let one = table.of([addr(1), addr(2)]);
        let two = table.of([addr(2)]);
        let now = Instant::now();
        assert!(two[0].fail(now, End::ConnectRefused));
        assert_eq!(one[1].health(now), Health::Dead);
        assert_eq!(table.alive_and_dead(now), (1, 1));
        let lease = one[1].lease();
        assert_eq!(two[0].sessions(), 1);
        drop(lease);
        assert_eq!(two[0].sessions(), 0);
        assert!(one[1].clear());
        assert_eq!(table.alive_and_dead(now), (2, 0));
    }

    #[test]
    fn the_delay_of_an_address_is_its_own() {
        let ms = Duration::from_millis;
        let of = Backend::once(addr(1));
        assert_eq!(of.attempt_delay(false), ATTEMPT_DELAY);
        of.connected_after(ms(300));
        assert_eq!(of.attempt_delay(false), ms(450));
        assert!(!of.overtaken_after(ms(449)) && of.overtaken_after(ms(450)));
        // A shorter time counts by and by, and one with a lost SYN not at all.
        of.connected_after(ms(1));
        of.connected_after(ms(3000));
        assert_eq!(of.attempt_delay(false), Duration::from_micros(393_750));
    }

    #[test]
    fn an_address_that_is_far_away_is_found_alive_when_it_is_tried_again() {
        let of = Backend::once(addr(1));
        // Overtaken in turn by an address that is near.
        let mut delays = Vec::new();
        for is_retry in [false, true, true, true] {
            let delay = of.attempt_delay(is_retry);
            assert!(of.overtaken_after(delay));
            delays.push(delay.as_millis());
        }
        assert_eq!(delays, [250, 500, 1000, 1000]);
        assert_eq!(of.attempt_delay(false), ATTEMPT_DELAY);
    }

    #[test]
    fn an_outage_lasts_from_the_first_failure_and_is_observed_until_a_connection() {
        let start = Instant::now();
        let of = Backend::once(addr(1));
        assert!(of.observe().is_none());
        of.fail(start, End::ConnectTimedOut);
        of.fail(start + SYN_TIMEOUT, End::ConnectRefused);
        let outage = of.outage().unwrap();
        assert_eq!((outage.since, outage.cause), (start, End::ConnectRefused));
        assert_eq!(of.observe(), Some((1, 0, End::ConnectRefused)));
        assert!(of.clear() && of.outage().is_none());
        of.try_again(start);
        assert!(of.outage().is_none(), "it has connected meanwhile");
        assert_eq!(
            of.observe().map(|(dead, alive, _)| (dead, alive)),
            Some((1, 1))
        );
    }

    #[test]
    fn a_drained_address_stays_so_when_its_name_has_it_again() {
        let table = BackendTable::default();
        let before = table.of([addr(1)]);
        assert!(table.drain(addr(1).0, false) && before[0].is_drained());
        drop(before);
        let after = table.of([addr(1), addr(2)]);
        assert!(after[0].is_drained() && !after[1].is_drained());
        assert!(!table.drain(addr(1).0, false), "it is drained already");
        assert!(table.drain(addr(1).0, true) && !after[0].is_drained());
    }

    #[test]
    fn addresses_that_nothing_has_are_forgotten() {
        let table = BackendTable::default();
        for port in 1..10_000 {
            table.of([addr(port)]);
        }
        assert!(table.lock().len() < 100, "{}", table.lock().len());
    }
}
