//! Sessions whose client's handshake is still under way (early SYN, pied-piper 3.2). The upstream
//! leg is dialled when the SYN arrives, and joined to the client when its connection is accepted.

use std::collections::HashMap;
use std::sync::Arc;

use taut_mesh::proxy::Tlvs;
use taut_sys::epoll::Interest;

use super::Worker;
use super::client::Client;
use super::dial_plan::DialPlan;
use super::mailbox::Message;
use super::pending_record::Origin;
use super::sessions::Admission;
use super::sessions::Close;
use super::slots::slot;
use crate::early_syn::{FourTuple, PendingTable};
use crate::event::token::Token;
use crate::forwarding::leg::TcpLeg;
use crate::net::addr::ClientAddr;
use crate::outcome::session_end::{End, Side};
use crate::route::peer::Peer;
use crate::route::table::Route;

/// A worker's upstream legs that wait for their client.
pub(super) struct EarlyLegs {
    /// The worker's number.
    pub(super) worker: usize,
    /// Early legs by connection; the limiter bounds their number.
    legs: HashMap<FourTuple, EarlyLeg>,
}

/// An upstream leg that waits for its client.
struct EarlyLeg {
    /// The number of the forward that the leg was begun for.
    route: u32,
    plan: DialPlan,
    upstream: Upstream,
    /// The number of relays that the plan has passed over because they cannot be reached.
    passed_over: u64,
}

/// The progress of an early leg.
enum Upstream {
    /// A connection to the destination has been dialled.
    Dialled(TcpLeg),
    /// A connection to another relay has been sent the session's hello.
    HelloSent(TcpLeg),
    /// No connection to the other relay could be spared; one was dialled.
    Awaited,
}

// === impl EarlyLegs ===

impl EarlyLegs {
    pub(super) fn new(worker: usize) -> Self {
        Self {
            worker,
            legs: HashMap::new(),
        }
    }
}

impl Worker {
    /// Dials the upstream leg of a client whose SYN has arrived.
    pub(super) fn on_syn(&mut self, connection: FourTuple, forward: u32) {
        let Some(table) = self.shared.early.clone() else {
            return;
        };
        let route = self.setup.routes.iter().find(|r| r.id == forward).cloned();
        // The client may have been accepted before this message was read. A dial started now would
        // leak: its session already dials for itself.
        if !table.is_awaited(connection, self.early.worker) {
            return;
        }
        match route.and_then(|route| self.begin(&route, connection)) {
            Some(leg) => {
                match leg.upstream {
                    Upstream::Awaited => self.io.metrics.early_ahead.add(1),
                    _ => self.io.metrics.early_begun.add(1),
                }
                self.early.legs.insert(connection, leg);
            }
            None => {
                self.io.metrics.early_declined.add(1);
                table.give_up(connection);
            }
        }
    }

    /// Begins an upstream leg, or has a connection for it dialled.
    fn begin(&mut self, route: &Arc<Route>, connection: FourTuple) -> Option<EarlyLeg> {
        let client = ClientAddr(connection.client());
        if !route.sources.check(client.0.ip()).is_allowed() {
            return None;
        }
        let to = || Some(connection.local());
        let pick = self.pick();
        let plan =
            DialPlan::for_client(route, client, Tlvs::default(), to, &self.setup, pick).ok()?;
        let (mut plan, passed_over) = self.pass_over_broken(plan);
        let upstream = match &mut plan {
            DialPlan::Dial(dial) => {
                Upstream::Dialled(dial.begin_early(self.io.now, client)?.into())
            }
            DialPlan::Ask { peer, .. } => {
                let peer = peer.id;
                match self.tell_early(&mut plan)? {
                    Some(leg) => Upstream::HelloSent(leg),
                    None => self
                        .with_pools(|pools, terms| pools.dial_ahead(peer, terms))?
                        .then_some(Upstream::Awaited)?,
                }
            }
            DialPlan::LookUp { .. } => return None,
        };
        Some(EarlyLeg {
            route: route.id,
            plan,
            upstream,
            passed_over,
        })
    }

    /// Returns the plan of a client after the relays that cannot be reached, and their number.
    fn pass_over_broken(&mut self, mut plan: DialPlan) -> (DialPlan, u64) {
        let mut passed_over = 0;
        while let DialPlan::Ask { peer, .. } = &plan
            && self.mesh.pools.is_broken(peer.id, self.io.now)
        {
            let pick = self.pick();
            match plan.fall_back(pick) {
                Some(next) => plan = next,
                None => break,
            }
            passed_over += 1;
        }
        (plan, passed_over)
    }

    /// Sends a hello on a ready connection, if sessions can spare one. Returns `None` if that fails.
    fn tell_early(&mut self, plan: &mut DialPlan) -> Option<Option<TcpLeg>> {
        let DialPlan::Ask {
            peer,
            hello,
            attempt,
            ..
        } = plan
        else {
            return None;
        };
        let peer = peer.id;
        match self.with_pools(|pools, terms| pools.take_early(peer, terms))? {
            None => Some(None),
            Some(spare) => {
                attempt.taken_early();
                spare.begin(hello, &self.io.metrics).ok().map(Some)
            }
        }
    }

    /// Begins the legs that wait for a connection to another relay, as far as connections have become
    /// ready.
    pub(super) fn serve_early(&mut self) {
        if !self.mesh.pools.has_gained() {
            return;
        }
        let is_awaited = |leg: &EarlyLeg| matches!(leg.upstream, Upstream::Awaited);
        let awaited: Vec<_> = self
            .early
            .legs
            .extract_if(|_, leg| is_awaited(leg))
            .collect();
        for (connection, mut leg) in awaited {
            // Without a connection now, the client's session takes one later.
            if let Some(Some(upstream)) = self.tell_early(&mut leg.plan) {
                self.io.metrics.early_begun.add(1);
                leg.upstream = Upstream::HelloSent(upstream);
            }
            self.early.legs.insert(connection, leg);
        }
    }

    /// Drops the upstream leg of a client that has not come.
    pub(super) fn on_no_client(&mut self, connection: FourTuple) {
        // Dropping the leg resets it, so its peer learns that no data will follow.
        match self.early.legs.remove(&connection).map(|leg| leg.upstream) {
            Some(Upstream::Dialled(_) | Upstream::HelloSent(_)) => {
                self.io.metrics.early_unused.add(1);
            }
            Some(Upstream::Awaited) | None => {}
        }
    }

    /// Passes a client on to the upstream leg that waits for it, which may belong to another
    /// worker, or to a session that dials for itself.
    pub(super) fn accept(&mut self, client: Client) {
        let table = self.shared.early.as_ref();
        let table = table.filter(|_| client.route.early_syn);
        match table.and_then(|table| self.early_leg_of(&client, table)) {
            None => self.start(client),
            Some((owner, connection)) if owner == self.early.worker => {
                self.join_early(client, connection);
            }
            Some((owner, connection)) => match self.shared.mailboxes().get(owner) {
                Some(mailbox) => {
                    let client = Box::new(client);
                    let message = Message::Client { client, connection };
                    // A worker that has ended has dropped its legs.
                    if let Err(Message::Client { client, .. }) = mailbox.post(message) {
                        self.start(*client);
                    }
                }
                None => self.start(client),
            },
        }
    }

    /// Returns the worker that has a client's upstream leg, and the leg's key there.
    fn early_leg_of(&self, client: &Client, table: &PendingTable) -> Option<(usize, FourTuple)> {
        let local = client.stream.local_addr().ok()?;
        let connection = FourTuple::new(client.addr.0, local);
        let owner = table.accepted(connection, self.io.now)?;
        Some((owner, connection))
    }

    /// Registers the session of a client whose upstream leg this worker has, and gives it the leg.
    pub(super) fn join_early(&mut self, mut client: Client, connection: FourTuple) {
        let leg = self.early.legs.remove(&connection);
        // The listener may belong to another forward by now, and the relay may have been revoked. Dropping the
        // leg resets it.
        let is_current = |leg: &EarlyLeg| {
            let is_peer = |peer: &Arc<Peer>| self.setup.has_peer(peer);
            leg.route == client.route.id && leg.plan.peer().is_none_or(is_peer)
        };
        let Some(leg) = leg.filter(is_current) else {
            return self.start(client);
        };
        if let Some(peer) = leg.plan.peer() {
            let (peer, has_one) = (peer.id, matches!(leg.upstream, Upstream::HelloSent(_)));
            self.with_pools(|pools, terms| pools.on_early_client(peer, has_one, terms));
        }
        let (upstream, is_told) = match leg.upstream {
            Upstream::Dialled(upstream) => (upstream, false),
            Upstream::HelloSent(upstream) => (upstream, true),
            // The connection is ready by now, or this worker's pool dials it.
            Upstream::Awaited => return self.start(client),
        };
        // The leg does not wait with its client.
        let Ok(place) = self.place_for(&client) else {
            self.io.metrics.early_unused.add(1);
            return self.start(client);
        };
        self.io.metrics.accepted.add(1);
        self.io.metrics.early_joined.add(1);
        self.io.metrics.fall_backs.add(leg.passed_over);
        // The destination hears nothing before this: only now has the client proven its address.
        let introduction = client.introduction();
        let Client {
            stream,
            permit,
            addr,
            route,
            ..
        } = client;
        let origin = Origin::Forward(&route);
        let client = (stream.into(), Admission::of_client(permit, place));
        let Some(key) = self.register(client, addr, leg.plan, &origin) else {
            return;
        };
        let slot = slot(key);
        let Some(entry) = self.sessions.get_mut(slot) else {
            return;
        };
        entry.session.introduce(introduction);
        let until = self.io.now + entry.plan.patience(entry.timeouts.connect, &self.setup);
        let token = Token::Leg(slot, entry.generation, Side::Upstream).encode();
        let poller = &self.io.poller;
        let watched = match is_told {
            true => poller.modify(upstream.stream(), token, Interest::StreamEdges),
            false => poller.add(upstream.stream(), token, Interest::StreamEdges),
        };
        if let Err(e) = watched {
            self.end(slot, End::of_connect(e), Close::Reset);
            return;
        }
        if is_told {
            entry.session.joined(upstream, true, self.io.now);
            if let Some(mesh) = &self.setup.mesh {
                let patience = mesh.pool.patience;
                entry.session.expect_answer(patience, self.io.now);
            }
        } else {
            entry.session.dialled(upstream, until);
        }
        self.set_deadline(slot);
    }
}
