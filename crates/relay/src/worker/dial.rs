//! How a session gets its onward leg.

use std::net::SocketAddr;
use std::sync::Arc;

use taut_mesh::hello::{Hello, SessionId};
use taut_sys::epoll::Interest;
use taut_sys::socket::{LegOptions, Stream};
use taut_sys::{Errno, random};

use super::sessions::Close;
use super::{Worker, mesh, original_dst};
use crate::access::{DestinationVerdict, may_be_borrowed};
use crate::event::token::{Slot, Token};
use crate::net::addr::{ClientAddr, OnwardAddr};
use crate::net::targets::Addrs;
use crate::outcome::session_end::{End, Side};
use crate::route::table::{Peer, Route, Setup, Way};

/// What a session's onward leg is still to be got by.
pub(super) enum DialPlan {
    /// By connecting to the addresses of the destination, one after the other.
    Dial {
        addrs: Addrs,
        next: usize,
        options: Arc<LegOptions>,
        /// From the client's address.
        borrow: bool,
    },
    /// The addresses of the destination are being looked up.
    LookUp { name: String },
    /// By asking another relay, with this hello.
    Ask {
        peer: Arc<Peer>,
        hello: Box<Hello>,
        tries_left: u8,
    },
}

impl Worker {
    /// Gets the session an onward leg in the way its errand says; when there is no further one it
    /// ends with the `last` error. `at_first`: none has been tried before.
    pub(super) fn go_on(&mut self, slot: Slot, at_first: bool, last: Errno) {
        match self.sessions.get(slot.0 as usize).map(|e| &e.plan) {
            Some(DialPlan::Dial { .. }) => self.dial(slot, last),
            Some(DialPlan::LookUp { .. }) if at_first => self.look_up(slot),
            Some(DialPlan::LookUp { .. }) => self.end(slot, End::of_connect(last), Close::Reset),
            Some(DialPlan::Ask { .. }) => self.ask(slot, at_first, last),
            None => {}
        }
    }

    /// Connects to the next address of the destination; with none left the session ends with the
    /// `last` error.
    pub(super) fn dial(&mut self, slot: Slot, mut last: Errno) {
        let Some(entry) = self.sessions.get_mut(slot.0 as usize) else {
            return;
        };
        let DialPlan::Dial {
            addrs,
            next,
            options,
            borrow,
        } = &mut entry.plan
        else {
            return;
        };
        let source = borrow.then(|| entry.client.0.ip().to_canonical());
        if source.is_some_and(|ip| !may_be_borrowed(ip)) {
            tracing::info!(client = %entry.client.0, "its address cannot be borrowed");
            self.end(slot, End::NotAllowed, Close::Reset);
            return;
        }
        while let Some(&OnwardAddr(addr)) = addrs.get(*next) {
            *next += 1;
            let token = Token::Leg(slot, entry.generation, Side::Onward).encode();
            let dialled = match source {
                None => Stream::connect(addr, options),
                Some(source) => Stream::connect_from(addr, source, options),
            };
            let dialled = dialled.and_then(|onward| {
                self.poller.add(&onward, token, Interest::StreamEdges)?;
                Ok(onward)
            });
            match dialled {
                Ok(onward) => {
                    let until = self.io.now + entry.timeouts.connect;
                    entry.session.dialled(onward, until);
                    entry.timeline.dialled(self.io.now);
                    self.set_deadline(slot);
                    return;
                }
                Err(e) => last = e,
            }
        }
        self.end(slot, End::of_connect(last), Close::Reset);
    }
}

/// What a client of this forward needs, or why it gets nothing. `to`: what it connected to.
pub(super) fn plan_of(
    route: &Route,
    client: ClientAddr,
    to: impl FnOnce() -> Option<SocketAddr>,
    setup: &Setup,
) -> Result<DialPlan, DestinationVerdict> {
    let borrow = route.identity.borrow;
    Ok(match &route.way {
        Way::Original(way) => {
            // The connection is gone already when it has no address.
            let to = to().ok_or(DestinationVerdict::Unspecified)?;
            original_dst::plan(way, client, to, borrow, setup)?
        }
        Way::Direct { targets, options } => DialPlan::Dial {
            addrs: targets.current(),
            next: 0,
            options: options.clone(),
            borrow,
        },
        Way::Mesh {
            peer,
            route,
            destination,
        } => DialPlan::Ask {
            peer: peer.clone(),
            hello: Box::new(Hello {
                source: client.0,
                destination: destination.clone(),
                route: route.clone(),
                hops_left: setup.mesh.as_ref().map_or(1, |m| m.hop_limit),
                session: SessionId(random::bytes()),
            }),
            tries_left: mesh::tries(peer),
        },
    })
}
