//! Relays that connect to this one: it sends downloads to them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::{MAX_ADDRESSES, REMEMBERED};

/// Relays that have recently proven that they belong to the mesh, or that have sessions. Pure.
#[derive(Debug, Default)]
struct KnownRelays(BTreeMap<IpAddr, Traces>);

#[derive(Debug)]
struct Traces {
    last: Instant,
    sessions: u32,
}

/// The known relays, shared by all workers.
#[derive(Debug, Default)]
pub(crate) struct Relays {
    known: Mutex<KnownRelays>,
    changed: Arc<Notify>,
}

/// A session of a relay. The relay is remembered while this exists.
#[derive(Debug)]
pub(crate) struct Visit {
    relays: Arc<Relays>,
    address: IpAddr,
}

// === impl KnownRelays ===

impl KnownRelays {
    /// Records that a relay has proven itself. Returns `true` if the relay is new. Relays beyond
    /// [`MAX_ADDRESSES`] are not recorded.
    fn proven(&mut self, address: IpAddr, now: Instant) -> bool {
        if let Some(traces) = self.0.get_mut(&address) {
            traces.last = now;
            return false;
        }
        if self.0.len() >= MAX_ADDRESSES {
            self.forget(now);
        }
        let fits = self.0.len() < MAX_ADDRESSES;
        if fits {
            let traces = Traces {
                last: now,
                sessions: 0,
            };
            self.0.insert(address, traces);
        }
        fits
    }

    /// Records a new session. Returns `false` if the relay is not recorded.
    fn begun(&mut self, address: IpAddr) -> bool {
        let traces = self.0.get_mut(&address);
        traces.map(|traces| traces.sessions += 1).is_some()
    }

    /// Records the end of a session.
    fn ended(&mut self, address: IpAddr, now: Instant) {
        if let Some(traces) = self.0.get_mut(&address) {
            traces.sessions = traces.sessions.saturating_sub(1);
            traces.last = now;
        }
    }

    /// Returns the remembered relays.
    fn current(&mut self, now: Instant) -> Vec<IpAddr> {
        self.forget(now);
        self.0.keys().copied().collect()
    }

    fn forget(&mut self, now: Instant) {
        self.0.retain(|_, traces| {
            traces.sessions > 0 || now.saturating_duration_since(traces.last) < REMEMBERED
        });
    }
}

// === impl Relays ===

impl Relays {
    /// Returns the handle that is notified when the relays change.
    pub(crate) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Records that a relay has proven that it belongs to the mesh.
    pub(crate) fn proven(&self, address: IpAddr, now: Instant) {
        if self.lock().proven(address.to_canonical(), now) {
            self.changed.notify_one();
        }
    }

    /// Records a session of a relay.
    pub(crate) fn visit(self: &Arc<Self>, address: IpAddr) -> Option<Visit> {
        let address = address.to_canonical();
        self.lock().begun(address).then(|| Visit {
            relays: self.clone(),
            address,
        })
    }

    /// Returns the remembered relays.
    pub(crate) fn current(&self, now: Instant) -> Vec<IpAddr> {
        self.lock().current(now)
    }

    fn lock(&self) -> MutexGuard<'_, KnownRelays> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Visit ===

impl Drop for Visit {
    fn drop(&mut self) {
        self.relays.lock().ended(self.address, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn ip(i: usize) -> IpAddr {
        Ipv4Addr::from(0x0A00_0000 + u32::try_from(i).unwrap()).into()
    }

    #[test]
    fn a_relay_is_remembered_for_ten_minutes_after_its_last_proof() {
        let (mut known, begin) = (KnownRelays::default(), Instant::now());
        assert!(known.proven(ip(1), begin));
        let later = begin + REMEMBERED / 2;
        assert!(!known.proven(ip(1), later), "it is known");
        assert_eq!(known.current(begin + REMEMBERED), [ip(1)]);
        assert!(known.current(later + REMEMBERED).is_empty());
    }

    #[test]
    fn a_relay_with_a_session_is_not_forgotten() {
        let (mut known, begin) = (KnownRelays::default(), Instant::now());
        known.proven(ip(1), begin);
        assert!(known.begun(ip(1)));
        let end = begin + 5 * REMEMBERED;
        assert_eq!(known.current(end), [ip(1)]);
        known.ended(ip(1), end);
        assert_eq!(known.current(end + REMEMBERED / 2), [ip(1)]);
        assert!(known.current(end + REMEMBERED).is_empty());
    }

    #[test]
    fn no_more_relays_are_noted_than_the_limit_until_others_are_forgotten() {
        let (mut known, begin) = (KnownRelays::default(), Instant::now());
        for i in 0..MAX_ADDRESSES {
            assert!(known.proven(ip(i), begin));
        }
        assert!(!known.proven(ip(MAX_ADDRESSES), begin));
        assert!(!known.begun(ip(MAX_ADDRESSES)));
        assert_eq!(known.current(begin).len(), MAX_ADDRESSES);
        assert!(known.proven(ip(MAX_ADDRESSES), begin + REMEMBERED));
        assert_eq!(known.current(begin + REMEMBERED), [ip(MAX_ADDRESSES)]);
    }

    #[test]
    fn a_visit_lasts_until_it_is_dropped() {
        let relays = Arc::new(Relays::default());
        let now = Instant::now();
        assert!(relays.visit(ip(1)).is_none(), "nobody has proven anything");
        relays.proven("::ffff:10.0.0.1".parse().unwrap(), now);
        let visit = relays.visit(ip(1)).unwrap();
        assert_eq!(relays.current(now + 9 * REMEMBERED), [ip(1)]);
        drop(visit);
        assert!(relays.current(now + 9 * REMEMBERED).is_empty());
    }
}
