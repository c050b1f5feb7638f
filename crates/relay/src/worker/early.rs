//! Sessions whose client's handshake is still under way (early SYN, pied-piper 3.2): the onward leg
//! is set up when the SYN is seen, and joined to the client when that is accepted.

use std::sync::Arc;

use taut_sys::epoll::Interest;
use taut_sys::socket::Stream;

use super::Worker;
use super::dial::{DialPlan, plan_of};
use super::pending_record::Origin;
use super::sessions::{Close, slot};
use crate::early_syn::FourTuple;
use crate::event::token::Token;
use crate::net::addr::{ClientAddr, OnwardAddr};
use crate::outcome::session_end::{End, Side};
use crate::route::table::Route;
use crate::worker::mailbox::Message;

/// An onward leg that waits for its client.
pub(super) struct Early {
    /// The number of the forward that it was begun for.
    route: u32,
    plan: DialPlan,
    onward: Stream,
    /// Whether the leg is one that had been made before and has been told its hello.
    told: bool,
}

impl Worker {
    /// A client's SYN is here: what it will need is begun.
    pub(super) fn on_syn(&mut self, connection: FourTuple, forward: u32) {
        let route = self.setup.routes.iter().find(|r| r.id == forward).cloned();
        let Some(route) = route else {
            if let Some(table) = &self.shared.early {
                table.given_up(connection);
            }
            return;
        };
        // Accepted before this was read: its session has a leg of its own, and what were begun now
        // nobody would ever ask for or take back.
        let table = self.shared.early.as_ref();
        if !table.is_some_and(|table| table.is_awaited(connection, self.index)) {
            return;
        }
        let client = ClientAddr(connection.client());
        let plan = match route.sources.check(client.0.ip()).is_allowed() {
            true => plan_of(&route, client, || Some(connection.local()), &self.setup).ok(),
            false => None,
        };
        match plan.and_then(|plan| self.begin(&route, plan)) {
            Some(early) => {
                self.io.metrics.early_begun.add(1);
                self.early.insert(connection, early);
            }
            None => {
                if let Some(table) = &self.shared.early {
                    table.given_up(connection);
                }
            }
        }
    }

    /// An onward leg that is connected or on its way.
    fn begin(&mut self, route: &Arc<Route>, mut plan: DialPlan) -> Option<Early> {
        match &mut plan {
            DialPlan::Dial {
                addrs,
                next,
                options,
                ..
            } => {
                let &OnwardAddr(addr) = addrs.first()?;
                let onward = Stream::connect(addr, options).ok()?;
                *next = 1;
                Some(Early {
                    route: route.id,
                    plan,
                    onward,
                    told: false,
                })
            }
            DialPlan::Ask {
                peer,
                hello,
                tries_left,
            } => {
                let peer = peer.id;
                let spare = self.spare_or_dial(peer)?;
                let message = spare.ready.hello(hello);
                let sent = spare.stream.send(&message).ok()?;
                *tries_left -= 1;
                (sent == message.len()).then_some(Early {
                    route: route.id,
                    plan,
                    onward: spare.stream,
                    told: true,
                })
            }
            DialPlan::LookUp { .. } => None,
        }
    }

    /// The client has not come.
    pub(super) fn forget(&mut self, connection: FourTuple) {
        // Dropping it resets it: whoever was connected to learns that nobody comes.
        if self.early.remove(&connection).is_some() {
            self.io.metrics.early_unused.add(1);
        }
    }

    /// A client has been accepted; with early SYN its onward leg may be under way at some worker.
    pub(super) fn welcome(&mut self, client: Stream, addr: ClientAddr, route: &Arc<Route>) {
        let table = self.shared.early.as_ref().filter(|_| route.early_syn);
        let Some((table, Ok(local))) = table.map(|table| (table, client.local_addr())) else {
            return self.admit(client, addr, None, route);
        };
        let connection = FourTuple::new(addr.0, local);
        match table.accepted(connection, self.io.now) {
            None => self.admit(client, addr, None, route),
            Some(owner) if owner == self.index => self.join_early(client, addr, route, connection),
            Some(owner) => match self.shared.mailboxes().get(owner) {
                Some(mailbox) => {
                    let message = Message::Client {
                        client,
                        addr,
                        route: route.clone(),
                        connection,
                    };
                    // A worker that has ended has let go of its legs.
                    if let Err(Message::Client { client, .. }) = mailbox.post(message) {
                        self.admit(client, addr, None, route);
                    }
                }
                None => self.admit(client, addr, None, route),
            },
        }
    }

    /// The client whose onward leg is here has come.
    pub(super) fn join_early(
        &mut self,
        client: Stream,
        addr: ClientAddr,
        route: &Arc<Route>,
        connection: FourTuple,
    ) {
        let early = self.early.remove(&connection);
        // The listener may have been given to another forward since; dropped, the leg is reset.
        let Some(early) = early.filter(|early| early.route == route.id) else {
            return self.admit(client, addr, None, route);
        };
        self.io.metrics.accepted.add(1);
        self.io.metrics.early_joined.add(1);
        let Early {
            route: _,
            plan,
            onward,
            told,
        } = early;
        let Some(key) = self.seat(client, addr, plan, &Origin::Forward(route)) else {
            // Full, and the client has been told.
            return;
        };
        let slot = slot(key);
        let Some(entry) = self.sessions.get_mut(key) else {
            return;
        };
        let until = self.io.now + entry.timeouts.connect;
        let token = Token::Leg(slot, entry.generation, Side::Onward).encode();
        let watched = match told {
            true => self.poller.modify(&onward, token, Interest::StreamEdges),
            false => self.poller.add(&onward, token, Interest::StreamEdges),
        };
        if let Err(e) = watched {
            self.end(slot, End::of_connect(e), Close::Reset);
            return;
        }
        if told {
            entry.session.joined(onward, true, self.io.now);
        } else {
            entry.session.dialled(onward, until);
        }
        self.set_deadline(slot);
    }
}
