//! A worker's sessions: each gets its turn, its alarm, and an end.

use std::sync::Arc;
use std::time::Instant;

use taut_sys::socket::Stream;

use super::Worker;
use super::dial::DialPlan;
use super::pending_record::{PendingRecord, Timeline};
use crate::access::session_quota::Permit;
use crate::config::Timeouts;
use crate::event::token::{Generation, Slot};
use crate::forwarding::session::{Session, Step};
use crate::net::addr::ClientAddr;
use crate::outcome::session_end::End;
use crate::turbo::route_metrics::Visit;

pub(super) struct SessionEntry {
    pub(super) session: Session<Stream>,
    pub(super) generation: Generation,
    pub(super) client: ClientAddr,
    pub(super) plan: DialPlan,
    pub(super) timeouts: Arc<Timeouts>,
    pub(super) timeline: Timeline,
    /// For the session log, if there is one.
    pub(super) record: Option<Box<PendingRecord>>,
    pub(super) deadline: Option<Instant>,
    pub(super) queued: bool,
    /// Its source's, given back with it.
    pub(super) permit: Permit,
    /// The relay that it comes from is here while it lasts.
    pub(super) _visit: Option<Visit>,
}

/// How a session's legs are closed.
#[derive(Clone, Copy)]
pub(super) enum Close {
    Gracefully,
    Reset,
}

impl Worker {
    pub(super) fn drive(&mut self, slot: Slot) {
        let Some(entry) = self.sessions.get_mut(slot.0 as usize) else {
            return;
        };
        let before = entry.session.moved();
        let step = entry
            .session
            .drive(self.io.now, &entry.timeouts, &mut self.io);
        let after = entry.session.moved();
        self.io.metrics.onward_bytes.add(after.0 - before.0);
        self.io.metrics.client_bytes.add(after.1 - before.1);
        let connected = entry.session.is_connected();
        let metrics = &self.io.metrics;
        if entry.timeline.note(self.io.now, connected, after, metrics)
            && let (Some(record), (_, Some(onward))) = (&mut entry.record, entry.session.legs())
        {
            record.connected(onward);
        }
        match step {
            Step::Wait => self.set_deadline(slot),
            Step::Again => {
                if !std::mem::replace(&mut entry.queued, true) {
                    self.ready.push_back(slot);
                }
                self.set_deadline(slot);
            }
            Step::Redial(error) => {
                entry.timeline.lost();
                self.go_on(slot, false, error);
            }
            Step::Done(end) => self.end(slot, end, Close::Gracefully),
            Step::Broken(end) => self.end(slot, end, Close::Reset),
        }
    }

    pub(super) fn set_deadline(&mut self, slot: Slot) {
        let Some(entry) = self.sessions.get_mut(slot.0 as usize) else {
            return;
        };
        let new = entry.session.deadline(&entry.timeouts);
        self.deadlines.set(slot, entry.deadline, new);
        entry.deadline = new;
    }

    pub(super) fn stop(&mut self, slot: Slot) {
        match self.sessions.get(slot.0 as usize).map(|e| e.session.stop()) {
            Some(Step::Done(end)) => self.end(slot, end, Close::Gracefully),
            Some(_) => self.end(slot, End::Stopped, Close::Reset),
            None => {}
        }
    }

    pub(super) fn end(&mut self, slot: Slot, end: End, close: Close) {
        let Some(mut entry) = self.sessions.try_remove(slot.0 as usize) else {
            return;
        };
        self.deadlines.set(slot, entry.deadline, None);
        if let DialPlan::Ask { peer, .. } = &entry.plan
            && entry.session.is_waiting()
        {
            // Otherwise a connection would be made for nobody.
            self.pools.forget(peer.id, (slot, entry.generation));
        }
        for pipe in entry.session.take_dirty_pipes() {
            drop(pipe);
            self.io.pipes.forget(&self.io.metrics);
        }
        if let (Some(record), Some(log)) = (entry.record.take(), &self.shared.log) {
            log.record(Box::new(record.tell(&entry, self.io.now, end)));
        }
        let (onward_bytes, client_bytes) = entry.session.moved();
        let (client, onward) = entry.session.into_legs();
        // First, so that whoever sees the connection end sees it counted, and its place free.
        drop(entry.permit);
        self.shared.release();
        self.io.metrics.sessions.sub(1);
        self.io.metrics.ended[end.index()].add(1);
        match close {
            // They have been told to end gracefully when both streams had ended.
            Close::Gracefully => drop((client, onward)),
            Close::Reset => {
                client.abort();
                onward.into_iter().for_each(Stream::abort);
            }
        }
        tracing::debug!(
            client = %entry.client.0, cause = end.label(), onward_bytes, client_bytes,
            "session over"
        );
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a worker has fewer sessions than 2^32"
)]
pub(super) fn slot(key: usize) -> Slot {
    Slot(key as u32)
}
