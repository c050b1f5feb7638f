//! What operators ask of a worker's sessions: a list of them, and those to end.

use super::io::IoContext;
use super::session_table::{SessionEntry, Sessions};
use super::slots::slot;
use crate::event::token::Slot;
use crate::session_list::{LocalId, SessionFilter, SessionRow};

// === impl Sessions ===

impl Sessions {
    /// Returns the first `limit` sessions that match, and the number of all that do. Without `counts`, it stops
    /// at the limit, because a worker forwards nothing while it goes through its sessions.
    pub(super) fn list(
        &self,
        filter: &SessionFilter,
        limit: usize,
        counts: bool,
        io: &IoContext,
    ) -> (Vec<SessionRow>, u64) {
        let mut rows = Vec::new();
        let mut matching = 0;
        for (key, entry) in &self.entries {
            if !counts && rows.len() >= limit {
                break;
            }
            let id = id_of(key, entry, io.worker);
            if !matches(filter, id, entry) {
                continue;
            }
            matching += 1;
            if rows.len() < limit {
                rows.push(row(id, entry, io));
            }
        }
        (rows, matching)
    }

    /// Returns the sessions that match.
    pub(super) fn matching(&self, filter: &SessionFilter, io: &IoContext) -> Vec<Slot> {
        let all = self.entries.iter();
        all.filter(|(key, entry)| matches(filter, id_of(*key, entry, io.worker), entry))
            .map(|(key, _)| slot(key))
            .collect()
    }
}

fn id_of(key: usize, entry: &SessionEntry, worker: usize) -> LocalId {
    LocalId {
        worker,
        slot: slot(key).0,
        generation: entry.generation.0,
    }
}

fn row(id: LocalId, entry: &SessionEntry, io: &IoContext) -> SessionRow {
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
        age: entry.timeline.age(io.now).as_secs_f64(),
        to_upstream,
        to_client,
    }
}

fn matches(filter: &SessionFilter, id: LocalId, entry: &SessionEntry) -> bool {
    let peer = entry.peer.as_ref().map(|peer| peer.name.as_str());
    filter.matches(id, &entry.stats.name, peer, entry.client.0.ip())
}
