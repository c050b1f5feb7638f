//! A worker's sessions by slot, with what the worker knows of each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;
use taut_mesh::deadlines::Deadlines;
use taut_mesh::member_quota::MemberPermit;
use taut_mesh::members::MemberName;
use taut_mesh::places::SessionPlace;
use taut_sys::epoll::Readiness;

use super::dial_plan::DialPlan;
use super::pending_record::{PendingRecord, Timeline};
use super::slots::slot;
use crate::access::session_quota::Permit;
use crate::config::Timeouts;
use crate::counters::forward::ForwardStats;
use crate::counters::peer::PeerStats;
use crate::counters::told::SegmentCounts;
use crate::event::token::{Generation, Slot};
use crate::forwarding::leg::TcpLeg;
use crate::forwarding::session::Session;
use crate::net::addr::ClientAddr;
use crate::outcome::session_end::Side;
use crate::turbo::route_metrics::Visit;

/// The time after which a connected upstream leg that the session dialled gets keepalive, which takes
/// four system calls. No probe is due sooner: it is the least that `keepalive_idle` can be. Client legs
/// and legs from the pool have keepalive from the start.
pub(super) const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(1);

/// A worker's sessions.
#[derive(Default)]
pub(super) struct Sessions {
    pub(super) entries: Slab<SessionEntry>,
    pub(super) generation: Generation,
    pub(super) deadlines: Deadlines<Slot>,
    /// Sessions that wait for their turn.
    pub(super) ready: VecDeque<Slot>,
}

/// A session and its worker's state for it.
pub(super) struct SessionEntry {
    pub(super) session: Session<TcpLeg>,
    pub(super) generation: Generation,
    pub(super) client: ClientAddr,
    pub(super) admission: Admission,
    pub(super) plan: DialPlan,
    pub(super) timeouts: Arc<Timeouts>,
    pub(super) timeline: Timeline,
    /// The counters of the session's forward.
    pub(super) stats: Arc<ForwardStats>,
    /// The peer that the upstream leg leads to.
    pub(super) peer: Option<Arc<PeerStats>>,
    /// The session's log record, if there is a session log.
    pub(super) record: Option<Box<PendingRecord>>,
    pub(super) deadline: Option<Instant>,
    /// The time to enable keepalive on the upstream leg.
    pub(super) keep_alive_at: Option<Instant>,
    pub(super) queued: bool,
    /// The segments of the client's leg, and of the upstream leg, that samples have counted.
    pub(super) segment_counts: [SegmentCounts; 2],
    /// Keeps the relay that the session comes from remembered.
    pub(super) _visit: Option<Visit>,
}

/// The places that a session takes, given back when dropped.
pub(super) struct Admission {
    /// That in the quota of its source.
    pub(super) permit: Permit,
    /// That in the quota of the relay that it comes from, if it comes from one.
    pub(super) member: Option<MemberPermit>,
    /// That among `max_sessions`.
    pub(super) _place: SessionPlace,
}

// === impl Admission ===

impl Admission {
    /// Returns the places of a session of a forward's client.
    pub(super) fn of_client(permit: Permit, place: SessionPlace) -> Self {
        Self {
            permit,
            member: None,
            _place: place,
        }
    }
}

// === impl Sessions ===

impl Sessions {
    pub(super) fn get(&self, slot: Slot) -> Option<&SessionEntry> {
        self.entries.get(slot.0 as usize)
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut SessionEntry> {
        self.entries.get_mut(slot.0 as usize)
    }

    /// Returns whether the session is still open and has no upstream leg yet.
    pub(super) fn is_waiting(&self, (slot, generation): (Slot, Generation)) -> bool {
        self.get(slot)
            .is_some_and(|e| e.generation == generation && e.session.is_waiting())
    }

    /// Handles an event of a leg and queues its session.
    pub(super) fn handle(
        &mut self,
        slot: Slot,
        generation: Generation,
        side: Side,
        readiness: Readiness,
    ) {
        if let Some(entry) = self.entries.get_mut(slot.0 as usize)
            && entry.generation == generation
        {
            entry.session.handle(side, readiness);
            if !std::mem::replace(&mut entry.queued, true) {
                self.ready.push_back(slot);
            }
        }
    }

    /// Queues a session for its turn.
    pub(super) fn queue(&mut self, slot: Slot) {
        if let Some(entry) = self.entries.get_mut(slot.0 as usize)
            && !std::mem::replace(&mut entry.queued, true)
        {
            self.ready.push_back(slot);
        }
    }

    /// Sets the session's deadline: its own, `sooner`, or the time to enable keepalive.
    pub(super) fn set_deadline(&mut self, slot: Slot, sooner: Option<Instant>) {
        let Some(entry) = self.entries.get_mut(slot.0 as usize) else {
            return;
        };
        let own = entry.session.deadline(&entry.timeouts);
        let new = [own, sooner, entry.keep_alive_at];
        let new = new.into_iter().flatten().min();
        self.deadlines.set(slot, entry.deadline, new);
        entry.deadline = new;
    }

    /// Returns the slots of the sessions for which this holds.
    pub(super) fn slots_where(&self, holds: impl Fn(&SessionEntry) -> bool) -> Vec<Slot> {
        let all = self.entries.iter().filter(|(_, entry)| holds(entry));
        all.map(|(key, _)| slot(key)).collect()
    }

    /// Returns the time at which the next session is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Returns whether a session waits for its turn.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }
}

// === impl SessionEntry ===

impl SessionEntry {
    /// Enables keepalive on the upstream leg when the time has come.
    pub(super) fn keep_alive(&mut self, now: Instant) {
        if self.keep_alive_at.is_none_or(|at| now < at) {
            return;
        }
        self.keep_alive_at = None;
        if let (DialPlan::Dial(dial), (_, Some(upstream))) = (&self.plan, self.session.legs()) {
            upstream.stream().keep_alive(dial.keepalive());
        }
    }

    /// Returns whether the session comes from, or goes to, a relay that `is_former`.
    pub(super) fn is_of_former(&self, is_former: impl Fn(&MemberName) -> bool) -> bool {
        let to = match &self.plan {
            DialPlan::Ask { peer, .. } => Some(&peer.name),
            DialPlan::Dial { .. } | DialPlan::LookUp { .. } => None,
        };
        let from = self.admission.member.as_ref().map(MemberPermit::member);
        from.is_some_and(&is_former) || to.is_some_and(&is_former)
    }

    /// Adopts another plan, which may lead to another peer.
    pub(super) fn change_plan(&mut self, plan: DialPlan, worker: usize) {
        let peer = plan.peer().map(|peer| peer.stats.clone());
        if let Some(before) = std::mem::replace(&mut self.peer, peer) {
            before.worker(worker).sessions.sub(1);
        }
        if let Some(peer) = &self.peer {
            peer.worker(worker).sessions.add(1);
        }
        self.plan = plan;
    }
}
