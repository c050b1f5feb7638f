//! Sessions whose client's handshake is still under way (early SYN, pied-piper 3.2). The upstream
//! leg is dialled when the SYN arrives, and joined to the client when its connection is accepted.

use std::collections::HashMap;
use std::sync::Arc;

use taut_sys::epoll::Interest;

use super::Worker;
use super::client::Client;
use super::dial_plan::DialPlan;
use super::mailbox::Message;
use super::pending_record::Origin;
use super::sessions::Close;
use super::slots::slot;
use crate::early_syn::{FourTuple, PendingTable};
use crate::event::token::Token;
use crate::forwarding::leg::TcpLeg;
use crate::net::addr::ClientAddr;
use crate::outcome::session_end::{End, Side};
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
    /// The number of the forward that the leg was dialled for.
    route: u32,
    plan: DialPlan,
    upstream: TcpLeg,
    /// Whether the leg came from the pool and has been sent its hello.
    told: bool,
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
                self.io.metrics.early_begun.add(1);
                self.early.legs.insert(connection, leg);
            }
            None => {
                self.io.metrics.early_declined.add(1);
                table.give_up(connection);
            }
        }
    }

    /// Returns an upstream leg that is connected or connecting.
    fn begin(&mut self, route: &Arc<Route>, connection: FourTuple) -> Option<EarlyLeg> {
        let client = ClientAddr(connection.client());
        if !route.sources.check(client.0.ip()).is_allowed() {
            return None;
        }
        let to = || Some(connection.local());
        let pick = self.pick();
        let mut plan = DialPlan::for_client(route, client, to, &self.setup, pick).ok()?;
        let (upstream, told) = match &mut plan {
            DialPlan::Dial(dial) => (dial.begin_early(self.io.now, client)?.into(), false),
            DialPlan::Ask {
                peer,
                hello,
                tries_left,
                ..
            } => {
                let spare = self.spare_or_dial(peer.id)?;
                *tries_left -= 1;
                (spare.begin(hello).ok()?, true)
            }
            DialPlan::LookUp { .. } => return None,
        };
        Some(EarlyLeg {
            route: route.id,
            plan,
            upstream,
            told,
        })
    }

    /// Drops the upstream leg of a client that has not come.
    pub(super) fn on_no_client(&mut self, connection: FourTuple) {
        // Dropping the leg resets it, so its peer learns that no data will follow.
        if self.early.legs.remove(&connection).is_some() {
            self.io.metrics.early_unused.add(1);
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
                    let message = Message::Client {
                        stream: client.stream,
                        addr: client.addr,
                        route: client.route,
                        connection,
                    };
                    // A worker that has ended has dropped its legs.
                    if let Err(Message::Client {
                        stream,
                        addr,
                        route,
                        ..
                    }) = mailbox.post(message)
                    {
                        self.start(Client::direct(stream, addr, route));
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
    pub(super) fn join_early(&mut self, client: Client, connection: FourTuple) {
        let leg = self.early.legs.remove(&connection);
        // The listener may belong to another forward by now. Dropping the leg resets it.
        let Some(leg) = leg.filter(|leg| leg.route == client.route.id) else {
            return self.start(client);
        };
        self.io.metrics.accepted.add(1);
        self.io.metrics.early_joined.add(1);
        // The destination hears nothing before this: only now has the client proven its address.
        let introduction = client.introduction();
        let Client {
            stream,
            addr,
            route,
            ..
        } = client;
        let origin = Origin::Forward(&route);
        let Some(key) = self.register(stream.into(), addr, leg.plan, &origin) else {
            // The client was refused and has been reset.
            return;
        };
        let slot = slot(key);
        let Some(entry) = self.sessions.get_mut(slot) else {
            return;
        };
        entry.session.introduce(introduction);
        let until = self.io.now + entry.timeouts.connect;
        let token = Token::Leg(slot, entry.generation, Side::Upstream).encode();
        let watched = match leg.told {
            true => self
                .io
                .poller
                .modify(leg.upstream.stream(), token, Interest::StreamEdges),
            false => self
                .io
                .poller
                .add(leg.upstream.stream(), token, Interest::StreamEdges),
        };
        if let Err(e) = watched {
            self.end(slot, End::of_connect(e), Close::Reset);
            return;
        }
        if leg.told {
            entry.session.joined(leg.upstream, true, self.io.now);
            if let Some(mesh) = &self.setup.mesh {
                let patience = mesh.pool.patience;
                entry.session.expect_answer(patience, self.io.now);
            }
        } else {
            entry.session.dialled(leg.upstream, until);
        }
        self.set_deadline(slot);
    }
}
