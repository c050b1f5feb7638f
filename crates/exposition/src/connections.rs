//! Bounds the number of open connections by closing the least recently used one of the largest
//! source.
//!
//! A new connection is always accepted. If all slots are used, the source with the most connections
//! loses the one whose last request (or opening) is oldest, so a client that holds connections open
//! cannot block others.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot::{self, Receiver, Sender};

/// The connections that are served.
#[derive(Debug)]
pub(crate) struct Connections {
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    by_id: HashMap<u64, Connection>,
    /// The number of events so far: connections and requests.
    events: u64,
}

#[derive(Debug)]
struct Connection {
    source: IpAddr,
    /// The last event of this connection.
    used: u64,
    /// Dropping it ends the connection.
    _end: Sender<()>,
}

// === impl Connections ===

impl Connections {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            state: Mutex::default(),
        }
    }

    /// Adds a connection. Returns its ID, a receiver that resolves when the connection must close,
    /// and whether another one had to close.
    pub(crate) fn enter(&self, source: IpAddr) -> (u64, Receiver<()>, bool) {
        let mut state = self.lock();
        let makes_room = state.by_id.len() >= self.most;
        if makes_room && let Some(id) = state.idlest_of_largest() {
            state.by_id.remove(&id);
        }
        let (end, ends) = oneshot::channel();
        state.events += 1;
        let id = state.events;
        let connection = Connection {
            source: party(source),
            used: id,
            _end: end,
        };
        state.by_id.insert(id, connection);
        (id, ends, makes_room)
    }

    /// Notes a request of the connection.
    pub(crate) fn used(&self, id: u64) {
        let state = &mut *self.lock();
        state.events += 1;
        if let Some(connection) = state.by_id.get_mut(&id) {
            connection.used = state.events;
        }
    }

    /// Frees the slot of a connection that has ended.
    pub(crate) fn leave(&self, id: u64) {
        self.lock().by_id.remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    /// Returns the connection whose last request (or opening) is oldest, of the source with the
    /// most connections.
    fn idlest_of_largest(&self) -> Option<u64> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for connection in self.by_id.values() {
            *counts.entry(connection.source).or_default() += 1;
        }
        let most = counts.values().copied().max()?;
        let of_largest = self
            .by_id
            .iter()
            .filter(|(_, of)| counts[&of.source] == most);
        of_largest
            .min_by_key(|(_, connection)| connection.used)
            .map(|(id, _)| *id)
    }
}

/// Returns the source that an address counts for: the IPv4 address, or the IPv6 /64.
fn party(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn is_open(ends: &mut Receiver<()>) -> bool {
        matches!(ends.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    #[test]
    fn the_idlest_of_the_source_with_the_most_makes_room() {
        let places = Connections::new(4);
        let [mut scraper, mut first, mut second, mut third] =
            [1, 2, 2, 2].map(|last| places.enter(source(last)));
        assert!(!third.2);
        // The scraper has been idle for longest, but has only one connection.
        places.used(first.0);
        let mut probe = places.enter(source(3));
        assert!(probe.2);
        let open = [
            &mut scraper,
            &mut first,
            &mut second,
            &mut third,
            &mut probe,
        ];
        let open = open.map(|(_, ends, _)| is_open(ends));
        assert_eq!(open, [true, true, false, true, true]);
    }

    #[test]
    fn a_source_that_fills_all_slots_still_gets_its_newest_connection() {
        let places = Connections::new(3);
        let mut held: Vec<_> = (0..100).map(|_| places.enter(source(1))).collect();
        let mut newcomer = places.enter(source(1));
        assert!(is_open(&mut newcomer.1));
        let open = held
            .iter_mut()
            .filter_map(|of| is_open(&mut of.1).then_some(()));
        assert_eq!(open.count(), 2);
    }

    #[test]
    fn a_closed_connection_frees_its_slot() {
        let places = Connections::new(1);
        let (id, ..) = places.enter(source(1));
        places.leave(id);
        assert!(!places.enter(source(2)).2);
    }

    #[test]
    fn addresses_of_one_network_of_64_bits_are_one_source() {
        let places = Connections::new(3);
        let mut held = ["2001:db8::1", "192.0.2.1", "2001:db8::2"]
            .map(|address| places.enter(address.parse().unwrap()));
        places.enter("2001:db8:0:1::1".parse().unwrap());
        let open: Vec<_> = held.iter_mut().map(|of| is_open(&mut of.1)).collect();
        assert_eq!(open, [false, true, true]);
    }
}
