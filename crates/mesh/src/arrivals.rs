//! The connections at a mesh port, from their acceptance until their hello.
//!
//! [`Arrivals`] has an [`Acceptor`] for each connection, and decides which connections have room and for how long.
//! The caller has the sockets and the clock: it gives an acceptor what has arrived, reports that with
//! [`advanced`](Arrivals::advanced), and carries out every [`Action`] that [`next_action`](Arrivals::next_action)
//! returns. The relay and the simulated meshes run this same code.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use slab::Slab;

use crate::acceptor::{Acceptor, Rejection, Withdrawal};
use crate::deadlines::Deadlines;
use crate::dials::GENERATION_BITS;
use crate::members::MemberName;
use crate::unproven::{Room, Unproven};
use crate::unused::Unused;

/// The time for which a connection without a hello stays open once the relay is draining, or has no room for
/// it. Its peer closes it a round trip after it has been told, unless a hello is on its way.
pub const GRACE: Duration = Duration::from_secs(5);

/// Of the connections that may be ready, the part that may wait besides because they had no room.
pub const WITHDRAWN: usize = 4;

/// The connections without a hello. `C` stands for a connection as the caller has it.
#[derive(Debug)]
pub struct Arrivals<C> {
    arrivals: Slab<Arrival<C>>,
    generation: u32,
    deadlines: Deadlines<u32>,
    /// The connections whose peer has not proven its key.
    unproven: Unproven<ArrivalId>,
    /// The connections that wait for a hello, by member.
    ready: Unused<ArrivalId>,
    /// Those that had no room among them, by member. Their peers have been told, except in trusted networks,
    /// and a hello may be on its way.
    withdrawn: Unused<ArrivalId>,
    /// When connections without a hello are closed, while the relay is draining.
    drain_until: Option<Instant>,
    actions: VecDeque<Action<C>>,
}

/// The maximum numbers of connections at a mesh port.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections without a proof of a key. Above it, a new one evicts the oldest of the source with the most.
    pub unproven: usize,
    /// Connections that are ready for a hello. Above it, the oldest of the member with the most makes room for one of
    /// a member that has fewer. A quarter as many may wait besides for hellos that are on their way.
    pub ready: usize,
}

/// How many connections there are at a mesh port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Without a proof of a key.
    pub unproven: usize,
    /// Ready for a hello, with a place.
    pub ready: usize,
    /// Without a place, until their peer closes them or their hello comes.
    pub withdrawn: usize,
}

/// A connection at a mesh port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrivalId {
    /// Unique among the connections of the moment.
    pub slot: u32,
    /// Distinguishes the connection from earlier ones in the slot; below 2^[`GENERATION_BITS`].
    pub generation: u32,
}

/// What the caller does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<C> {
    /// Close a connection.
    Close(C, Closing),
    /// Tell the peer of a connection why this relay gives it up ([`Acceptor::withdraw`]).
    Withdraw(ArrivalId, Withdrawal),
    /// Count that a connection has no room because this member has the most.
    Full(MemberName),
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// It has not proven its key, and makes room for another one.
    Evicted,
    /// It has exceeded a time limit.
    Expired(Rejection),
    /// Its peer was told that this relay is draining, and has not closed it.
    Undrained,
    /// Its peer was told that there is no room, and has not closed it; or too many wait so.
    Withdrawn,
    /// The list of members no longer has its key, or its network is no longer trusted.
    Dropped,
}

#[derive(Debug)]
struct Arrival<C> {
    generation: u32,
    acceptor: Acceptor,
    /// The peer has proven its key.
    is_proven: bool,
    /// When the connection is closed for lack of room.
    withdrawn_until: Option<Instant>,
    deadline: Option<Instant>,
    connection: C,
}

// === impl Arrivals ===

impl<C> Default for Arrivals<C> {
    fn default() -> Self {
        Self {
            arrivals: Slab::new(),
            generation: 0,
            deadlines: Deadlines::default(),
            unproven: Unproven::default(),
            ready: Unused::default(),
            withdrawn: Unused::default(),
            drain_until: None,
            actions: VecDeque::new(),
        }
    }
}

impl<C> Arrivals<C> {
    /// Returns what to do next, if anything.
    pub fn next_action(&mut self) -> Option<Action<C>> {
        self.actions.pop_front()
    }

    /// Returns whether there are no connections.
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Returns the numbers of connections.
    pub fn counts(&self) -> Counts {
        Counts {
            unproven: self.unproven.len(),
            ready: self.ready.len(),
            withdrawn: self.withdrawn.len(),
        }
    }

    /// Adds a connection from this address.
    ///
    /// # Errors
    /// Returns the connection if there is no room for it.
    pub fn admit(
        &mut self,
        connection: C,
        from: IpAddr,
        acceptor: Acceptor,
        bounds: Bounds,
        now: Instant,
    ) -> Result<ArrivalId, C> {
        // In a trusted network the address is the proof.
        let is_proven = acceptor.is_proven();
        if !is_proven {
            match self.unproven.room(from, bounds.unproven, now) {
                Room::Free => {}
                Room::Evict(oldest) => self.close(oldest, Closing::Evicted),
                Room::Full => return Err(connection),
            }
        }
        self.drain_until = None;
        self.generation = self.generation.wrapping_add(1) & ((1 << GENERATION_BITS) - 1);
        let generation = self.generation;
        let slot = self.arrivals.insert(Arrival {
            generation,
            acceptor,
            is_proven,
            withdrawn_until: None,
            deadline: None,
            connection,
        });
        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
        let id = ArrivalId { slot, generation };
        self.move_deadline(id);
        match is_proven {
            true => self.give_place(id, bounds, now),
            false => self.unproven.insert(id, from, now),
        }
        Ok(id)
    }

    /// Returns the IDs of all connections.
    pub fn ids(&self) -> Vec<ArrivalId> {
        let id = |(slot, arrival): (usize, &Arrival<C>)| ArrivalId {
            slot: u32::try_from(slot).unwrap_or(u32::MAX),
            generation: arrival.generation,
        };
        self.arrivals.iter().map(id).collect()
    }

    /// Returns the acceptor of a connection.
    pub fn acceptor(&self, id: ArrivalId) -> Option<&Acceptor> {
        let arrival = self.arrivals.get(id.slot as usize)?;
        (arrival.generation == id.generation).then_some(&arrival.acceptor)
    }

    /// Returns a connection and its acceptor.
    pub fn get_mut(&mut self, id: ArrivalId) -> Option<(&mut C, &mut Acceptor)> {
        let arrival = self.arrival(id)?;
        Some((&mut arrival.connection, &mut arrival.acceptor))
    }

    /// Removes a connection: its hello has come, or it has ended.
    pub fn take(&mut self, id: ArrivalId) -> Option<(C, Acceptor)> {
        let before = self.arrival(id)?.deadline;
        let arrival = self.arrivals.try_remove(id.slot as usize)?;
        self.deadlines.set(id.slot, before, None);
        // It is in one of them at most.
        let _ = self.ready.remove(id) || self.withdrawn.remove(id) || self.unproven.remove(id);
        Some((arrival.connection, arrival.acceptor))
    }

    /// Records that the acceptor of a connection has been given what has arrived. `waits` says that the connection
    /// goes on to wait, for the rest of its handshake or for a hello. Returns whether its peer has just proven its
    /// key.
    pub fn advanced(&mut self, id: ArrivalId, waits: bool, bounds: Bounds, now: Instant) -> bool {
        let Some(arrival) = self.arrival(id) else {
            return false;
        };
        let is_new = arrival.acceptor.is_proven() && !arrival.is_proven;
        arrival.is_proven |= is_new;
        if waits && self.drain_until.is_some() {
            let withdraw = Action::Withdraw(id, Withdrawal::Draining);
            self.actions.push_back(withdraw);
        }
        if is_new {
            self.unproven.remove(id);
            if waits {
                self.give_place(id, bounds, now);
            }
        }
        self.move_deadline(id);
        is_new
    }

    /// Gives a connection that waits for its hello a place among those that are ready. If there is none, it or
    /// another one is withdrawn.
    fn give_place(&mut self, id: ArrivalId, bounds: Bounds, now: Instant) {
        let Some(member) = self.member_of(id) else {
            return;
        };
        let room = self.ready.room(&member, bounds.ready);
        if room != Room::Free
            && let Some(greatest) = self.ready.greatest()
        {
            self.actions.push_back(Action::Full(greatest.clone()));
        }
        match room {
            Room::Free => {}
            Room::Full => return self.withdraw(id, bounds, now),
            Room::Evict(oldest) => {
                self.ready.remove(oldest);
                self.withdraw(oldest, bounds, now);
            }
        }
        self.ready.insert(id, member, now);
    }

    /// Tells the peer of a connection without a place that there is no room, and waits for a hello that is on its
    /// way.
    fn withdraw(&mut self, id: ArrivalId, bounds: Bounds, now: Instant) {
        let Some(member) = self.member_of(id) else {
            return;
        };
        if let Some(arrival) = self.arrival(id) {
            arrival.withdrawn_until = Some(now + GRACE);
        }
        self.actions
            .push_back(Action::Withdraw(id, Withdrawal::Full));
        self.move_deadline(id);
        self.withdrawn.insert(id, member, now);
        let max = bounds.ready.div_ceil(WITHDRAWN);
        while let Some(excess) = self.withdrawn.take_excess(max) {
            self.close(excess, Closing::Withdrawn);
        }
    }

    /// Begins to drain. Returns the connections, unless that has begun before: read from each what has arrived, and
    /// report it with [`advanced`](Self::advanced). Their peers are told to close them, and hellos that are on
    /// their way are served. Those that are left after [`GRACE`] are closed: with an RST and not a FIN, which would
    /// be the orderly end of an empty reply in a trusted network.
    pub fn drain(&mut self, now: Instant) -> Vec<ArrivalId> {
        match self.drain_until {
            Some(_) => Vec::new(),
            None => {
                self.drain_until = Some(now + GRACE);
                self.ids()
            }
        }
    }

    /// Closes the connections that `is_current` does not allow any more.
    pub fn drop_old(&mut self, is_current: impl Fn(&C, &Acceptor) -> bool) {
        for id in self.ids() {
            let arrival = self.arrival(id);
            if arrival.is_some_and(|arrival| !is_current(&arrival.connection, &arrival.acceptor)) {
                self.close(id, Closing::Dropped);
            }
        }
    }

    /// Returns when to [`expire`](Self::expire) connections.
    pub fn next(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Closes the connections whose time is over.
    pub fn expire(&mut self, now: Instant) {
        let due: Vec<u32> = self.deadlines.due(now).collect();
        for slot in due {
            let Some(arrival) = self.arrivals.get(slot as usize) else {
                continue;
            };
            let generation = arrival.generation;
            let id = ArrivalId { slot, generation };
            if let Some(rejection) = arrival.acceptor.expired(now) {
                self.close(id, Closing::Expired(rejection));
                continue;
            }
            self.move_deadline(id);
            let deadline = self.arrival(id).and_then(|arrival| arrival.deadline);
            if deadline.is_some_and(|at| at <= now) {
                let why = match self.drain_until {
                    Some(_) => Closing::Undrained,
                    None => Closing::Withdrawn,
                };
                self.close(id, why);
            }
        }
    }

    /// Recomputes the deadline of a connection.
    fn move_deadline(&mut self, id: ArrivalId) {
        let drain_until = self.drain_until;
        let Some(arrival) = self.arrival(id) else {
            return;
        };
        let own = arrival.acceptor.deadline();
        let sooner = [drain_until, arrival.withdrawn_until];
        let deadline = match sooner.into_iter().flatten().min() {
            Some(until) if !arrival.acceptor.hello_begun() => own.min(until),
            _ => own,
        };
        let before = arrival.deadline.replace(deadline);
        self.deadlines.set(id.slot, before, Some(deadline));
    }

    fn close(&mut self, id: ArrivalId, why: Closing) {
        let closed = self.take(id);
        self.actions
            .extend(closed.map(|(connection, _)| Action::Close(connection, why)));
    }

    fn member_of(&mut self, id: ArrivalId) -> Option<MemberName> {
        let member = self.arrival(id)?.acceptor.member()?;
        Some(member.name.clone())
    }

    fn arrival(&mut self, id: ArrivalId) -> Option<&mut Arrival<C>> {
        let arrival = self.arrivals.get_mut(id.slot as usize);
        arrival.filter(|arrival| arrival.generation == id.generation)
    }
}

#[cfg(test)]
mod tests;
