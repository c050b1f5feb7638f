//! A worker's answers to an operator: which sessions it has, and their end.

use std::sync::mpsc::Sender;

use super::Worker;
use super::sessions::{Close, SessionEntry};
use super::slots::slot;
use crate::outcome::session_end::End;
use crate::session_list::{LocalId, SessionFilter, SessionRow};

impl Worker {
    /// Sends the first `limit` sessions that match, and the number of all that do. Without `counts`, it stops
    /// at the limit, because a worker forwards nothing while it goes through its sessions.
    pub(super) fn list_sessions(
        &self,
        filter: &SessionFilter,
        limit: usize,
        counts: bool,
        reply: &Sender<(Vec<SessionRow>, u64)>,
    ) {
        let mut rows = Vec::new();
        let mut matching = 0;
        for (key, entry) in &self.sessions.entries {
            if !counts && rows.len() >= limit {
                break;
            }
            let id = self.id_of(key, entry);
            if !matches(filter, id, entry) {
                continue;
            }
            matching += 1;
            if rows.len() < limit {
                rows.push(self.row(id, entry));
            }
        }
        // The operator may have gone.
        let _ = reply.send((rows, matching));
    }

    /// Resets the sessions that match and sends their number.
    pub(super) fn end_sessions(&mut self, filter: &SessionFilter, reply: &Sender<u64>) {
        let all = self.sessions.entries.iter();
        let matching: Vec<_> = all
            .filter(|(key, entry)| matches(filter, self.id_of(*key, entry), entry))
            .map(|(key, _)| slot(key))
            .collect();
        let count = matching.len() as u64;
        for slot in matching {
            self.end(slot, End::Operator, Close::Reset);
        }
        let _ = reply.send(count);
    }

    fn id_of(&self, key: usize, entry: &SessionEntry) -> LocalId {
        LocalId {
            worker: self.io.worker,
            slot: slot(key).0,
            generation: entry.generation.0,
        }
    }

    fn row(&self, id: LocalId, entry: &SessionEntry) -> SessionRow {
        let (to_upstream, to_client) = entry.session.moved();
        let connected = entry.session.is_connected();
        let (_, upstream) = entry.session.legs();
        let of_plan = entry.plan.session();
        let of_plan = of_plan.map(|session| u128::from_be_bytes(session.0));
        let session = of_plan.or_else(|| entry.record.as_ref().map(|record| record.session()));
        SessionRow {
            id: id.to_string(),
            session: session.map(|session| format!("{session:032x}")),
            forward: entry.stats.name.to_string(),
            client: entry.client.0,
            upstream: upstream
                .filter(|_| connected)
                .and_then(|leg| leg.stream().peer_addr().ok()),
            peer: entry.peer.as_ref().map(|peer| peer.name.clone()),
            state: entry.session.state().to_owned(),
            age: entry.timeline.age(self.io.now).as_secs_f64(),
            to_upstream,
            to_client,
        }
    }
}

fn matches(filter: &SessionFilter, id: LocalId, entry: &SessionEntry) -> bool {
    let peer = entry.peer.as_ref().map(|peer| peer.name.as_str());
    filter.matches(id, &entry.stats.name, peer, entry.client.0.ip())
}
