//! A worker's sessions: each gets its turn, its alarm, and an end.

use std::sync::Arc;
use std::time::Instant;

use taut_sys::socket::Stream;

use super::Worker;
use super::errand::Errand;
use super::story::{Story, Timeline};
use crate::access::session_quota::Permit;
use crate::config::Timeouts;
use crate::event::token::{Generation, Place};
use crate::forwarding::session::{Session, Step};
use crate::net::addr::ClientAddr;
use crate::outcome::session_end::End;
use crate::turbo::route_metrics::Visit;

pub(super) struct Entry {
    pub(super) session: Session<Stream>,
    pub(super) generation: Generation,
    pub(super) client: ClientAddr,
    pub(super) errand: Errand,
    pub(super) timeouts: Arc<Timeouts>,
    pub(super) timeline: Timeline,
    /// For the session log, if there is one.
    pub(super) story: Option<Box<Story>>,
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
    pub(super) fn drive(&mut self, place: Place) {
        let Some(entry) = self.sessions.get_mut(place.0 as usize) else {
            return;
        };
        let before = entry.session.moved();
        let step = entry
            .session
            .drive(self.shop.now, &entry.timeouts, &mut self.shop);
        let after = entry.session.moved();
        self.shop.metrics.onward_bytes.add(after.0 - before.0);
        self.shop.metrics.client_bytes.add(after.1 - before.1);
        let connected = entry.session.is_connected();
        let metrics = &self.shop.metrics;
        if entry
            .timeline
            .note(self.shop.now, connected, after, metrics)
            && let (Some(story), (_, Some(onward))) = (&mut entry.story, entry.session.legs())
        {
            story.connected(onward);
        }
        match step {
            Step::Wait => self.set_alarm(place),
            Step::Again => {
                if !std::mem::replace(&mut entry.queued, true) {
                    self.ready.push_back(place);
                }
                self.set_alarm(place);
            }
            Step::Redial(error) => {
                entry.timeline.lost();
                self.go_on(place, false, error);
            }
            Step::Done(end) => self.end(place, end, Close::Gracefully),
            Step::Broken(end) => self.end(place, end, Close::Reset),
        }
    }

    pub(super) fn set_alarm(&mut self, place: Place) {
        let Some(entry) = self.sessions.get_mut(place.0 as usize) else {
            return;
        };
        let new = entry.session.deadline(&entry.timeouts);
        self.alarms.set(place, entry.deadline, new);
        entry.deadline = new;
    }

    pub(super) fn stop(&mut self, place: Place) {
        match self
            .sessions
            .get(place.0 as usize)
            .map(|e| e.session.stop())
        {
            Some(Step::Done(end)) => self.end(place, end, Close::Gracefully),
            Some(_) => self.end(place, End::Stopped, Close::Reset),
            None => {}
        }
    }

    pub(super) fn end(&mut self, place: Place, end: End, close: Close) {
        let Some(mut entry) = self.sessions.try_remove(place.0 as usize) else {
            return;
        };
        self.alarms.set(place, entry.deadline, None);
        if let Errand::Ask { peer, .. } = &entry.errand
            && entry.session.is_waiting()
        {
            // Otherwise a connection would be made for nobody.
            self.pools.forget(peer.id, (place, entry.generation));
        }
        for pipe in entry.session.take_dirty_pipes() {
            drop(pipe);
            self.shop.pipes.forget(&self.shop.metrics);
        }
        if let (Some(story), Some(log)) = (entry.story.take(), &self.shared.log) {
            log.record(Box::new(story.tell(&entry, self.shop.now, end)));
        }
        let (onward_bytes, client_bytes) = entry.session.moved();
        let (client, onward) = entry.session.into_legs();
        // First, so that whoever sees the connection end sees it counted, and its place free.
        drop(entry.permit);
        self.shared.release();
        self.shop.metrics.sessions.sub(1);
        self.shop.metrics.ended[end.index()].add(1);
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
pub(super) fn place(key: usize) -> Place {
    Place(key as u32)
}
