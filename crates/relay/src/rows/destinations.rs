//! The destinations that this relay measures for others, and for itself.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use taut_mesh::rows::Key;

/// The number of destinations that are measured.
pub(crate) const MAX_DESTINATIONS: usize = 256;

/// The number of SYNs of a measurement, and the time between them (pied-piper 2.2).
const SYNS: u32 = 20;
const GAP: Duration = Duration::from_millis(100);

/// The time between two measurements of a destination.
const AGAIN: Duration = Duration::from_secs(300);

/// The number of destinations that are measured at the same time: at most twenty SYNs a second leave this
/// relay for all of them.
const AT_ONCE: usize = 2;

/// The destinations that are measured.
#[derive(Default)]
pub(super) struct Destinations {
    all: HashMap<Key, Destination>,
}

struct Destination {
    addr: SocketAddr,
    /// The SYNs of the present measurement that are left.
    left: u32,
    next_at: Instant,
}

// === impl Destinations ===

impl Destinations {
    /// Adopts what is to be measured: keys and their addresses, the first of which count. Returns the keys
    /// that are no longer measured.
    pub(super) fn adopt(&mut self, wanted: Vec<(Key, SocketAddr)>, now: Instant) -> Vec<Key> {
        let mut former = std::mem::take(&mut self.all);
        for (key, addr) in wanted {
            if self.all.len() >= MAX_DESTINATIONS {
                break;
            }
            let known = former.remove(&key).filter(|known| known.addr == addr);
            let fresh = Destination {
                addr,
                left: SYNS,
                next_at: now,
            };
            self.all.entry(key).or_insert(known.unwrap_or(fresh));
        }
        former
            .into_keys()
            .filter(|key| !self.all.contains_key(key))
            .collect()
    }

    /// Returns the measurements that are due.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(Key, SocketAddr)> {
        let mut due = Vec::new();
        let mut running = self.all.values().filter(|d| d.left < SYNS).count();
        for (key, destination) in &mut self.all {
            let begins = destination.left == SYNS;
            if now < destination.next_at || (begins && running >= AT_ONCE) {
                continue;
            }
            running += usize::from(begins);
            due.push((*key, destination.addr));
            destination.left -= 1;
            destination.next_at = now + GAP;
            if destination.left == 0 {
                destination.left = SYNS;
                destination.next_at = now + AGAIN;
            }
        }
        due
    }

    /// Returns when [`Destinations::due`] has something to return.
    pub(super) fn next(&self) -> Option<Instant> {
        self.all
            .values()
            .map(|destination| destination.next_at)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_syns_are_a_tenth_of_a_second_apart_and_two_destinations_are_measured_at_a_time() {
        let start = Instant::now();
        let key = |n: u8| Key::prefix([192, 0, n, 1].into());
        let addr = |n: u8| SocketAddr::from(([192, 0, n, 1], 80));
        let mut all = Destinations::default();
        let wanted = (0..5).map(|n| (key(n), addr(n))).collect();
        assert_eq!(all.adopt(wanted, start), []);
        let (mut now, mut sent) = (start, HashMap::<Key, Vec<Instant>>::new());
        while now < start + Duration::from_secs(20) {
            let due = all.due(now);
            assert!(due.len() <= AT_ONCE);
            for (key, _) in due {
                sent.entry(key).or_default().push(now);
            }
            now += Duration::from_millis(10);
        }
        assert_eq!(sent.len(), 5);
        for times in sent.values() {
            assert_eq!(times.len(), SYNS as usize);
            assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= GAP));
        }
        assert_eq!(all.adopt(vec![(key(1), addr(1))], now).len(), 4);
        assert!(all.next().unwrap() > start + AGAIN);
    }
}
