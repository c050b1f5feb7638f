//! What becomes of one connection: dialled, proven, ready, and lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_pcg::rand_core::Rng;
use rustix::io::Errno;

use super::{
    Action, Closing, Dial, DialId, Dials, Fault, GENERATION_BITS, Keys, PeerDials, State, number,
};
use crate::identity::PublicKey;
use crate::pool::{Given, expiry};

impl<C, W: Copy + PartialEq> Dials<C, W> {
    /// Returns a connection and the number of its peer.
    pub fn get_mut(&mut self, id: DialId) -> Option<(usize, &mut C)> {
        let dial = self.dials.get_mut(id.slot as usize)?;
        let connection = { dial.connection.as_mut() }.filter(|_| dial.generation == id.generation);
        connection.map(|connection| (dial.peer, connection))
    }

    /// Records that a dial has begun.
    pub fn begun(&mut self, id: DialId, connection: C) {
        if let Some(dial) = self.dial_of(id) {
            dial.connection = Some(connection);
        }
    }

    /// Records that a dial has connected, so that its handshake begins. Returns the keys that it uses.
    pub fn connected(&mut self, id: DialId) -> Option<Arc<Keys>> {
        let peer = self.dial_of(id)?.peer;
        let keys = self.peers[peer].keys.clone();
        self.dial_of(id)?.keys = keys.clone();
        Some(keys)
    }

    /// Records that the peer has proven `key`, or that it is in a trusted network, so that the connection is
    /// ready. Returns how long that took, and whether the pool keeps the connection.
    pub fn proven(
        &mut self,
        id: DialId,
        key: Option<PublicKey>,
        now: Instant,
    ) -> Option<(Duration, bool)> {
        let dial = self.dial_of(id)?;
        dial.state = State::Ready(key);
        let (peer, setup) = (dial.peer, now.saturating_duration_since(dial.begun));
        let (used, PeerDials { keys, pool, .. }) = (dial.keys.clone(), &mut self.peers[peer]);
        pool.on_dial_succeeded(setup, now);
        // The list of members, or this relay's key, may have changed during the handshake.
        if key.is_some_and(|key| !keys.peer.contains(&key) || keys.own != used.own) {
            self.drop_outdated(id.slot, now);
            return Some((setup, false));
        }
        let given = pool.give(id.slot);
        match given {
            Given::To(session) => {
                let connection = self.remove(id.slot).and_then(|dial| dial.connection);
                let served = connection.map(|connection| Action::Serve(session, connection));
                self.actions.extend(served);
                self.dial_for_waiters(peer, now);
            }
            Given::Surplus => self.close_one(id.slot, Closing::Surplus),
            Given::Kept => {
                let until = expiry(now, self.times.max_age, self.random.next_u64());
                self.set_deadline(id.slot, Some(until));
                self.has_gained = true;
            }
        }
        Some((setup, given == Given::Kept))
    }

    /// Records that the peer has proven none of its keys. Returns whether these have changed since the handshake
    /// began, so that it is no fault of the peer.
    pub fn proved_no_key(&mut self, id: DialId, now: Instant) -> bool {
        let Some(dial) = self.dial_of(id) else {
            return false;
        };
        let (peer, used) = (dial.peer, dial.keys.clone());
        let PeerDials { keys, pool, .. } = &mut self.peers[peer];
        let is_outdated = keys.peer != used.peer;
        match is_outdated {
            true => {
                pool.on_dial_outdated();
                self.drop_outdated(id.slot, now);
            }
            false => self.lost(id, Errno::PROTO, now),
        }
        is_outdated
    }

    /// Records that the peer of a ready connection is draining.
    pub fn withdrawn(&mut self, id: DialId, now: Instant) {
        let Some(dial) = self.dial_of(id) else {
            return;
        };
        let (peer, begun) = (dial.peer, dial.begun);
        // Another process may accept connections at the same address, or none does. A peer that says so on every
        // connection would be dialled without a pause.
        if now < begun + self.times.connect {
            self.peers[peer].pool.on_failure(now);
        }
        self.poll_at = Some(now);
        self.discard(id.slot, Closing::Withdrawn);
    }

    /// Records that the peer of a ready connection has no room for it.
    pub fn full(&mut self, id: DialId, now: Instant) {
        let Some(peer) = self.dial_of(id).map(|dial| dial.peer) else {
            return;
        };
        self.peers[peer].pool.on_full(now);
        self.discard(id.slot, Closing::Full);
    }

    /// Records the end of a dial, or of a ready connection.
    pub fn lost(&mut self, id: DialId, error: Errno, now: Instant) {
        let Some(dial) = self.dial_of(id) else {
            return;
        };
        let (state, peer, begun) = (dial.state, dial.peer, dial.begun);
        if state == State::Dialling {
            return self.dial_lost(id.slot, error, now);
        }
        let PeerDials {
            keepalive, pool, ..
        } = &mut self.peers[peer];
        let keepalive = *keepalive;
        let is_silent = error == Errno::TIMEDOUT;
        // A peer that refuses this relay's key says so only after the handshake. Without a pause, the pool would
        // dial it again at once.
        let is_refusal = !is_silent
            && (matches!(error, Errno::PROTO | Errno::ACCESS) || now < begun + self.times.connect);
        if is_refusal {
            pool.on_failure(now);
        }
        self.poll_at = Some(now);
        self.discard(id.slot, Closing::Lost { error, is_refusal });
        if is_silent {
            // Its keepalive probes were unanswered.
            let since = now - keepalive;
            self.on_fault(Fault { peer, error, since }, now);
        }
    }

    /// Ends a dial that has failed.
    pub(super) fn dial_lost(&mut self, slot: u32, error: Errno, now: Instant) {
        let Some(Dial { peer, address, .. }) = self.dials.get(slot as usize) else {
            return;
        };
        let (peer, address) = (*peer, *address);
        self.close_one(slot, Closing::Failed(error));
        let failed = self.peers[peer].pool.on_dial_failed(address, now);
        self.actions
            .extend(failed.map(|session| Action::Fail(session, error)));
        self.dial_for_waiters(peer, now);
    }

    /// Closes a connection whose keys have changed since its handshake began. If one is still needed, another is
    /// dialled.
    fn drop_outdated(&mut self, slot: u32, now: Instant) {
        let peer = self.dials.get(slot as usize).map(|dial| dial.peer);
        self.close_one(slot, Closing::Outdated);
        self.poll_at = Some(now);
        if let Some(peer) = peer {
            self.dial_for_waiters(peer, now);
        }
    }

    /// Dials for sessions that wait, up to the limit.
    pub(super) fn dial_for_waiters(&mut self, peer: usize, now: Instant) {
        while self.peers[peer].pool.is_dial_awaited() {
            self.dial(peer, now);
        }
    }

    pub(super) fn dial(&mut self, peer: usize, now: Instant) {
        let PeerDials { keys, pool, .. } = &mut self.peers[peer];
        let address = pool.on_dial();
        self.generation = self.generation.wrapping_add(1) & ((1 << GENERATION_BITS) - 1);
        let generation = self.generation;
        let slot = number(self.dials.insert(Dial {
            generation,
            peer,
            address,
            begun: now,
            keys: keys.clone(),
            state: State::Dialling,
            deadline: None,
            connection: None,
        }));
        self.set_deadline(
            slot,
            Some(now + self.times.patience.min(self.times.connect)),
        );
        let id = DialId { slot, generation };
        self.actions.push_back(Action::Dial { id, peer, address });
    }

    /// Removes a ready connection from its pool and closes it.
    pub(super) fn discard(&mut self, slot: u32, why: Closing) {
        if let Some(dial) = self.dials.get(slot as usize) {
            self.peers[dial.peer].pool.remove(slot);
        }
        self.close_one(slot, why);
    }

    pub(super) fn close_all(&mut self, slots: VecDeque<u32>, why: Closing) {
        for slot in slots {
            self.close_one(slot, why);
        }
    }

    pub(super) fn close_one(&mut self, slot: u32, why: Closing) {
        if let Some(dial) = self.remove(slot)
            && let Some(connection) = dial.connection
        {
            let peer = dial.peer;
            self.actions.push_back(Action::Close {
                connection,
                peer,
                why,
            });
        }
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Dial<C>> {
        self.set_deadline(slot, None);
        self.dials.try_remove(slot as usize)
    }

    pub(super) fn set_deadline(&mut self, slot: u32, at: Option<Instant>) {
        if let Some(dial) = self.dials.get_mut(slot as usize) {
            let before = std::mem::replace(&mut dial.deadline, at);
            self.deadlines.set(slot, before, at);
        }
    }

    pub(super) fn dial_of(&mut self, id: DialId) -> Option<&mut Dial<C>> {
        let dial = self.dials.get_mut(id.slot as usize);
        dial.filter(|dial| dial.generation == id.generation)
    }
}
