//! What an operator asks of a running node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use taut_mesh::members::{Member, Members};

use super::error::StartError;
use super::handle::{Present, SharedHandle};
use super::look_ups::dialled_relays;
use crate::access::session_quota::UNLIMITED;
use crate::condition::message;
use crate::config::{Config, Forward};
use crate::control::protocol::{
    AddressState, AddressStatus, Answer, BrokenStatus, EtcdStatus, ForwardStatus, MembersStatus,
    MeshStatus, PeerStatus, Status, WindowMemory,
};
use crate::counters::forward::MESH;
use crate::etcd::{EtcdState, ListState};
use crate::metrics::Metrics;
use crate::net::backend::Outage;
use crate::route::table::{Route, Setup};
use crate::rows_mailbox::{Question, ToRows};
use crate::session_list::{SessionFilter, SessionRow};
use crate::worker::Order;
use crate::worker::mailbox::Message;

/// The time to wait for the answers of all workers.
const PATIENCE: Duration = Duration::from_secs(5);

/// The number of addresses of a forward that are listed.
const MAX_ADDRESSES: usize = 256;

/// The number of members that are listed as absent from etcd.
const MAX_ABSENT: usize = 16;

/// Why a forward or relay cannot be drained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DrainError {
    /// There is none of this name.
    #[error("there is no forward `{0}`; `taut relay status` lists them")]
    Unknown(String),
    /// The configuration does not lead to a relay of this name.
    #[error("no forward leads through a relay `{0}`; `taut relay status` lists the next relays")]
    UnknownPeer(String),
    /// New sessions go there.
    #[error("relay {0} is not drained")]
    PeerNotDrained(String),
    /// No forward has this address.
    #[error("no forward has the address {0}; `taut relay status` lists those of each")]
    UnknownAddress(String),
    /// New sessions go to the address.
    #[error("address {0} is not drained")]
    AddressNotDrained(SocketAddr),
    /// It intercepts connections.
    #[error("forward {0} is transparent and cannot be drained alone; drain the whole relay")]
    Transparent(String),
    /// It accepts connections.
    #[error("forward {0} is not drained")]
    NotDrained(String),
    /// The other forwards cannot go on without it, or it cannot listen again.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl SharedHandle {
    /// Returns whether the node accepts connections.
    pub(crate) fn accepts(&self) -> bool {
        self.shared.ordered() == Order::Run
    }

    /// Returns up to `limit` sessions that match, and the number of all that do.
    pub(crate) fn sessions(&self, filter: SessionFilter, limit: usize) -> (Vec<SessionRow>, u64) {
        self.list_sessions(filter, limit, true)
    }

    /// Returns up to `limit` sessions. Each worker lists no more than that.
    pub(crate) fn some_sessions(&self, limit: usize) -> Vec<SessionRow> {
        self.list_sessions(SessionFilter::default(), limit, false).0
    }

    fn list_sessions(
        &self,
        filter: SessionFilter,
        limit: usize,
        counts: bool,
    ) -> (Vec<SessionRow>, u64) {
        let filter = Arc::new(filter);
        let (reply, answers) = channel();
        for mailbox in &self.mailboxes {
            // A worker that has ended has no sessions.
            let _ = mailbox.post(Message::List {
                filter: filter.clone(),
                limit,
                counts,
                reply: reply.clone(),
            });
        }
        drop(reply);
        let (mut rows, mut matching) = (Vec::new(), 0);
        for (of_worker, count) in until_late(&answers) {
            rows.extend(of_worker);
            matching += count;
        }
        rows.truncate(limit);
        (rows, matching)
    }

    /// Resets the sessions that match and returns their number.
    pub(crate) fn end_sessions(&self, filter: SessionFilter) -> u64 {
        let filter = Arc::new(filter);
        let (reply, answers) = channel();
        for mailbox in &self.mailboxes {
            let _ = mailbox.post(Message::End {
                filter: filter.clone(),
                reply: reply.clone(),
            });
        }
        drop(reply);
        until_late(&answers).sum()
    }

    /// Closes the listeners of a forward, or opens them again with `undo`. Its sessions continue. It
    /// stays drained when the configuration is read again.
    pub(crate) fn drain_forward(&self, name: &str, undo: bool) -> Result<(), DrainError> {
        let name = {
            let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
            let forward = present.config.forwards.iter().find(|f| is_named(f, name));
            let forward = forward.ok_or_else(|| DrainError::Unknown(name.to_owned()))?;
            if forward.transparent.is_some() {
                return Err(DrainError::Transparent(name.to_owned()));
            }
            name.to_owned()
        };
        let unchanged = DrainError::NotDrained(name.clone());
        self.change_drained(|present| &mut present.drained, &name, undo, unchanged)
    }

    /// Leads new sessions around the next relay `name`, or there again with `undo`. Sessions through it
    /// continue. It stays drained when the configuration is read again.
    pub(crate) fn drain_peer(&self, name: &str, undo: bool) -> Result<(), DrainError> {
        let named = {
            let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
            let setup = self.shared.setup();
            let members = setup.mesh.iter().flat_map(|mesh| mesh.local.members.iter());
            let own = setup.mesh.as_ref().map(|mesh| &mesh.local.name);
            let dialled = dialled_relays(&present.config, members, own);
            let named = dialled.into_iter().find(|relay| relay.as_str() == name);
            named.ok_or_else(|| DrainError::UnknownPeer(name.to_owned()))?
        };
        let unchanged = DrainError::PeerNotDrained(name.to_owned());
        self.change_drained(
            |present| &mut present.drained_peers,
            &named,
            undo,
            unchanged,
        )
    }

    /// Leads new sessions to other addresses, or there again with `undo`. Its sessions continue. It stays drained
    /// when the configuration is read again, and while no name has it.
    pub(crate) fn drain_address(&self, addr: &str, undo: bool) -> Result<(), DrainError> {
        let unknown = || DrainError::UnknownAddress(addr.to_owned());
        let parsed = addr.parse::<SocketAddr>().map_err(|_| unknown())?;
        let backends = &self.shared.backends;
        if undo {
            let changed = backends.drain(parsed, true);
            return changed
                .then_some(())
                .ok_or(DrainError::AddressNotDrained(parsed));
        }
        let setup = self.shared.setup();
        let targets = setup.routes.iter().flat_map(|route| route.targets());
        let mut known = targets.flat_map(|targets| targets.backends().to_vec());
        if !known.any(|backend| backend.addr.0 == parsed) {
            return Err(unknown());
        }
        backends.drain(parsed, false);
        Ok(())
    }

    /// Adds `name` to a set of what is drained, or removes it with `undo`, and adopts the result. Returns
    /// `unchanged` if there is nothing to undo.
    fn change_drained<T: Ord + Clone>(
        &self,
        set: impl Fn(&mut Present) -> &mut BTreeSet<T>,
        name: &T,
        undo: bool,
        unchanged: DrainError,
    ) -> Result<(), DrainError> {
        let change = |undo: bool| {
            let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
            let set = set(&mut present);
            match undo {
                true => set.remove(name),
                false => set.insert(name.clone()),
            }
        };
        let changed = change(undo);
        if undo && !changed {
            return Err(unchanged);
        }
        self.adopt_drains().map_err(|error| {
            // What was drained before stays drained.
            if changed {
                change(!undo);
            }
            error.into()
        })
    }

    /// Returns what the thread that exchanges rows answers.
    ///
    /// # Errors
    /// A sentence, if there is no such thread or it does not answer.
    pub(crate) fn ask_rows(&self, question: Question) -> Result<Answer, String> {
        let Some(rows) = &self.rows else {
            return Err("the relay has no [relay.mesh]".to_owned());
        };
        let (reply, answer) = channel();
        rows.post(ToRows::Ask(question, reply));
        answer
            .recv_timeout(PATIENCE)
            .map_err(|_| "the relay's thread for rows does not answer; its log says why".to_owned())
    }

    /// Returns the mesh as this node knows it; `None` without one.
    ///
    /// # Errors
    /// A sentence, if the thread that knows does not answer.
    pub(crate) fn mesh_status(&self) -> Result<Option<MeshStatus>, String> {
        if self.rows.is_none() {
            return Ok(None);
        }
        match self.ask_rows(Question::Mesh)? {
            Answer::Mesh(status) => Ok(Some(*status)),
            _ => Ok(None),
        }
    }

    /// Returns the state of the node.
    pub(crate) fn status(&self, metrics: &Metrics) -> Status {
        let now = Instant::now();
        let setup = self.shared.setup();
        // A reload may hold the lock that these wait for: what follows must not be older.
        let (forwards, peers) = (self.forwards(&setup, now), self.peers(&setup));
        let broken = self.broken().into_iter().map(|broken| BrokenStatus {
            condition: broken.condition.label().to_owned(),
            subject: broken.condition.subject().to_owned(),
            cause: broken.cause.to_owned(),
            seconds: now.saturating_duration_since(broken.since).as_secs_f64(),
            affected: broken.affected,
            // Without the address of a client: everyone who can connect to the admin page reads it.
            message: message::broken(&broken.condition, broken.cause, broken.affected, None),
        });
        let limit = |limit: u32| (limit != UNLIMITED).then_some(limit);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            name: setup.mesh.as_ref().map(|mesh| mesh.local.name.to_string()),
            pid: std::process::id(),
            uptime: self.started.elapsed().as_secs_f64(),
            draining: !self.accepts(),
            workers: self.mailboxes.len(),
            sessions: metrics.sessions(),
            max_sessions: self.shared.places.max(),
            queued: self.shared.queue.len(),
            max_sessions_per_source: limit(self.shared.sources.limit()),
            max_connects_per_source: limit(self.shared.arrivals.rate()),
            forwards,
            peers,
            broken: broken.collect(),
            window_memory: self.turbo.sizes_windows().then(|| {
                let windows = self.turbo.window_status();
                WindowMemory {
                    used: windows.used,
                    promised: windows.promised,
                    budget: windows.budget,
                }
            }),
            // The process knows it, not the node.
            handover: None,
            members: self
                .members()
                .map(|members| members_status(&members, &self.list.state(), now)),
        }
    }

    fn forwards(&self, setup: &Setup, now: Instant) -> Vec<ForwardStatus> {
        let drained: Vec<(String, String)> = {
            let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
            let all = present.config.forwards.iter();
            let of = all.filter(|f| present.drained.contains(&name_of(f)));
            of.map(|f| (name_of(f), destination_of(f))).collect()
        };
        let routes: Vec<_> = setup.routes.iter().collect();
        let forwards = self.registry.forwards().into_iter().map(|stats| {
            let name = &*stats.name;
            let route = routes.iter().find(|route| route.stats.name == stats.name);
            let mesh = setup.mesh.iter().find(|mesh| mesh.stats.name == stats.name);
            let of_mesh = mesh.map(|mesh| &mesh.listen);
            let listen = route.map(|route| &route.listen).or(of_mesh);
            let gone = drained.iter().find(|(drained, _)| drained == name);
            let addresses = route.map_or_else(Vec::new, |route| addresses_of(route, now));
            ForwardStatus {
                name: name.to_owned(),
                listen: listen
                    .into_iter()
                    .flatten()
                    .map(|l| l.0.to_string())
                    .collect(),
                to: route
                    .map(|route| route.destination.to_string())
                    .or_else(|| gone.map(|(_, to)| to.clone())),
                drained: gone.is_some(),
                sessions: stats.sum(|c| &c.sessions),
                to_upstream: stats.sum(|c| &c.upstream_bytes),
                to_client: stats.sum(|c| &c.client_bytes),
                addresses_left_out: addresses.len().saturating_sub(MAX_ADDRESSES) as u64,
                addresses: addresses.into_iter().take(MAX_ADDRESSES).collect(),
            }
        });
        // A relay that no other dials has no sessions from the mesh.
        let mut forwards: Vec<_> = forwards
            .filter(|f| f.name != MESH || f.sessions > 0 || !f.listen.is_empty())
            .collect();
        // A drained forward without a session has no counters any more.
        for (name, to) in &drained {
            if !forwards.iter().any(|forward| forward.name == *name) {
                forwards.push(ForwardStatus {
                    name: name.clone(),
                    listen: Vec::new(),
                    to: Some(to.clone()),
                    drained: true,
                    sessions: 0,
                    to_upstream: 0,
                    to_client: 0,
                    addresses: Vec::new(),
                    addresses_left_out: 0,
                });
            }
        }
        forwards
    }

    fn peers(&self, setup: &Setup) -> Vec<PeerStatus> {
        let drained_peers = {
            let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
            present.drained_peers.clone()
        };
        let legs = self.turbo.legs();
        let sized = |name: &str| {
            let mut peers = setup.mesh.iter().flat_map(|mesh| &mesh.peers);
            let peer = peers.find(|peer| peer.name.as_str() == name && peer.sizes_window);
            peer.map(|peer| self.turbo.window_of(&peer.name))
        };
        let peers = self.registry.peers().into_iter();
        peers
            .map(|stats| {
                let leg = legs
                    .iter()
                    .find(|(member, _)| member.as_str() == stats.name);
                PeerStatus {
                    name: stats.name.clone(),
                    drained: drained_peers.iter().any(|peer| peer.as_str() == stats.name),
                    ready: stats.sum(|c| &c.ready),
                    sessions: stats.sum(|c| &c.sessions),
                    sent: stats.sum(|c| &c.sent_bytes),
                    received: stats.sum(|c| &c.received_bytes),
                    rate: leg.and_then(|(_, leg)| leg.rate),
                    active: leg.map_or(0, |(_, leg)| leg.active),
                    window: sized(&stats.name),
                }
            })
            .collect()
    }
}

/// Returns the addresses of a forward's destinations, those that are not up first.
fn addresses_of(route: &Route, now: Instant) -> Vec<AddressStatus> {
    let mut all: Vec<AddressStatus> = Vec::new();
    for targets in route.targets() {
        if !targets.has_address() {
            all.push(AddressStatus {
                address: targets.destination().to_string(),
                state: AddressState::NoAddress,
                sessions: 0,
                seconds: None,
                cause: None,
            });
        }
        all.extend(targets.backends().iter().map(|backend| {
            let outage = backend.outage();
            let seconds = |outage: Outage| now.saturating_duration_since(outage.since);
            AddressStatus {
                address: backend.addr.0.to_string(),
                state: match (backend.is_drained(), outage) {
                    (true, _) => AddressState::Drained,
                    (false, Some(_)) => AddressState::Down,
                    (false, None) => AddressState::Up,
                },
                sessions: backend.sessions(),
                seconds: outage.map(|outage| seconds(outage).as_secs_f64()),
                cause: outage.map(|outage| outage.cause.label().to_owned()),
            }
        }));
    }
    all.sort_by_key(|address| address.state);
    all
}

/// Returns the state of the list of members.
fn members_status(members: &Members, state: &ListState, now: Instant) -> MembersStatus {
    let counted = |labels: [&str; 8], counts: [u64; 8]| -> BTreeMap<String, u64> {
        let all = labels.into_iter().zip(counts);
        let occurred = all.filter(|(_, count)| *count > 0);
        occurred
            .map(|(label, count)| (label.to_owned(), count))
            .collect()
    };
    let of_etcd = |etcd: &EtcdState| {
        let is_absent = |member: &&Arc<Member>| !etcd.present.contains(&member.name);
        let absent = members.iter().filter(is_absent).take(MAX_ABSENT);
        let present = etcd
            .present
            .iter()
            .filter(|name| members.by_name(name.as_str()).is_some());
        EtcdStatus {
            endpoint: etcd.endpoint.clone(),
            connected: etcd.is_connected,
            read_age: etcd
                .last_read
                .map(|at| now.saturating_duration_since(at).as_secs_f64()),
            changes: etcd.changes,
            compacted: etcd.watches_ended[0],
            failures: counted(ListState::FAILURES, etcd.failures),
            refusal: etcd.refusal.clone(),
            last_failure: etcd.last_failure.clone(),
            announcement: etcd.announcement.clone(),
            present: present.count() as u64,
            absent: absent.map(|member| member.name.to_string()).collect(),
        }
    };
    let statement = members.statement();
    let until = |at: SystemTime| match at.duration_since(SystemTime::now()) {
        Ok(left) => left.as_secs_f64(),
        Err(since) => -since.duration().as_secs_f64(),
    };
    MembersStatus {
        count: members.iter().len() as u64,
        serial: statement.map(|s| s.serial),
        expires_in: statement.and_then(|s| s.expires).map(until),
        refused: counted(ListState::REFUSALS, state.refused),
        etcd: state.follows.then(|| of_etcd(&state.etcd)),
    }
}

/// Returns `config` without the forwards that an operator has drained.
pub(super) fn without(drained: &BTreeSet<String>, config: &Config) -> Config {
    let mut config = config.clone();
    config.forwards.retain(|f| !drained.contains(&name_of(f)));
    config
}

/// Returns the name of a forward: as it is written, or its first address.
fn name_of(forward: &Forward) -> String {
    let first = || forward.listen.first()?.addrs().into_iter().next();
    match &forward.name {
        Some(name) => name.clone(),
        None => first().map_or_else(String::new, |addr| addr.to_string()),
    }
}

fn is_named(forward: &Forward, name: &str) -> bool {
    name_of(forward) == name
}

fn destination_of(forward: &Forward) -> String {
    let texts: Vec<_> = forward.to.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// Returns the answers of the workers, as far as they come in time.
fn until_late<T>(answers: &Receiver<T>) -> impl Iterator<Item = T> + '_ {
    let deadline = Instant::now() + PATIENCE;
    std::iter::from_fn(move || {
        let left = deadline.saturating_duration_since(Instant::now());
        answers.recv_timeout(left).ok()
    })
}
