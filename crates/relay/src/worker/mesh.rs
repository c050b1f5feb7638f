//! What a worker does for the mesh: connections to other relays and from them.

use std::net::SocketAddr;
use std::sync::Arc;

use taut_mesh::hello::{Hello, Target};
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Readiness};
use taut_sys::socket::Stream;

use super::dial::DialPlan;
use super::pending_record::Origin;
use super::sessions::Close;
use super::{Shared, Worker};
use crate::access::DestinationVerdict;
use crate::config::PoolLimits;
use crate::event::token::{Generation, Slot, Token};
use crate::mesh::inbound::{InboundTerms, SessionRequest};
use crate::mesh::pool::{Outcome, PoolTerms, Spare, Waiter};
use crate::net::addr::{ClientAddr, Destination, OnwardAddr};
use crate::net::targets::{Addrs, ResolveError};
use crate::outcome::mesh::MeshRefusal;
use crate::outcome::session_end::{End, Side};
use crate::route::table::{Mesh, Peer};
use crate::worker::resolver::LookUp;

/// Connections that a session tries with a peer: one that was ready, and then each of its
/// addresses.
pub(super) fn tries(peer: &Peer) -> u8 {
    u8::try_from(peer.targets.current().len())
        .unwrap_or(u8::MAX)
        .saturating_add(1)
}

/// One worker's part of the node's pools.
pub(super) fn share_of_pool(pool: PoolLimits, shared: &Shared) -> PoolLimits {
    PoolLimits {
        min: if pool.min == 0 {
            0
        } else {
            shared.share(pool.min)
        },
        max: if pool.max == 0 {
            0
        } else {
            shared.share(pool.max)
        },
        ..pool
    }
}

/// Calls `$do` with what the pools are run with.
macro_rules! with_terms {
    ($worker:expr, $mesh:ident, |$pools:ident, $terms:ident| $do:expr) => {
        if let Some($mesh) = $worker.setup.mesh.clone() {
            let keys = $mesh.keys.load();
            let $terms = PoolTerms {
                poller: &$worker.poller,
                keys: &keys,
                limits: share_of_pool($mesh.pool, &$worker.shared),
                timeout: $worker.setup.timeouts.connect,
                metrics: &$worker.io.metrics,
                now: $worker.io.now,
            };
            let $pools = &mut $worker.pools;
            Some($do)
        } else {
            None
        }
    };
}

/// Calls `$do` with what arrivals are treated by.
macro_rules! with_rules {
    ($worker:expr, |$inbound:ident, $rules:ident| $do:expr) => {
        if let Some(mesh) = $worker.setup.mesh.clone() {
            let keys = mesh.keys.load();
            let $rules = InboundTerms {
                poller: &$worker.poller,
                keys: &keys,
                times: mesh.inbound.times,
                max_unproven: $worker.shared.share(mesh.inbound.max_unproven) as usize,
                max_ready: $worker.shared.share(mesh.inbound.max_ready) as usize,
                metrics: &$worker.io.metrics,
                relays: $worker.shared.relays.as_deref(),
                now: $worker.io.now,
            };
            let $inbound = &mut $worker.inbound;
            Some($do)
        } else {
            None
        }
    };
}

impl Worker {
    // === connections to other relays ===

    /// Gets the session a connection to its peer: one from the pool at first, later only fresh
    /// ones, since what made one of the pool useless may have hit them all.
    pub(super) fn ask(&mut self, slot: Slot, at_first: bool, last: Errno) {
        let Some(entry) = self.sessions.get_mut(slot.0 as usize) else {
            return;
        };
        let waiter = (slot, entry.generation);
        let DialPlan::Ask {
            peer, tries_left, ..
        } = &mut entry.plan
        else {
            return;
        };
        if *tries_left == 0 {
            self.end(slot, End::of_connect(last), Close::Reset);
            return;
        }
        *tries_left -= 1;
        let peer = peer.id;
        let spare = with_terms!(self, mesh, |pools, terms| {
            let spare = at_first.then(|| pools.take(peer, &terms)).flatten();
            if spare.is_none() {
                pools.dial_for(peer, waiter, &terms);
            }
            spare
        });
        match spare.flatten() {
            Some(spare) => self.join(slot, spare, true),
            None => {
                if !at_first {
                    self.io.metrics.pool_retries.add(1);
                }
                if let Some(entry) = self.sessions.get_mut(slot.0 as usize) {
                    let until = self.io.now + entry.timeouts.connect;
                    entry.session.awaits(until);
                }
                self.set_deadline(slot);
            }
        }
    }

    /// A connection for a session that is foreseen; with none ready one is made, so that it is
    /// when the client comes.
    pub(super) fn spare_or_dial(&mut self, peer: usize) -> Option<Spare> {
        with_terms!(self, mesh, |pools, terms| {
            let spare = pools.take(peer, &terms);
            if spare.is_none() {
                pools.dial_ahead(peer, &terms);
            }
            spare
        })
        .flatten()
    }

    /// Says the session's hello on a connection and makes it the onward leg.
    fn join(&mut self, slot: Slot, spare: Spare, made_before: bool) {
        let now = self.io.now;
        let Some(entry) = self.sessions.get_mut(slot.0 as usize) else {
            return;
        };
        let DialPlan::Ask { hello, .. } = &entry.plan else {
            return;
        };
        let token = Token::Leg(slot, entry.generation, Side::Onward).encode();
        let message = spare.ready.hello(hello);
        let said = match spare.stream.send(&message) {
            Ok(n) if n == message.len() => {
                self.poller
                    .modify(&spare.stream, token, Interest::StreamEdges)
            }
            Ok(_) => Err(Errno::NOBUFS),
            Err(e) => Err(e),
        };
        match said {
            Ok(()) => {
                entry.session.joined(spare.stream, made_before, now);
                if !std::mem::replace(&mut entry.queued, true) {
                    self.ready.push_back(slot);
                }
            }
            Err(e) => self.ask(slot, false, e),
        }
    }

    /// A connection that no session uses yet is reported.
    pub(super) fn prepare(&mut self, slot: Slot, generation: Generation, ready: Readiness) {
        with_terms!(self, mesh, |pools, terms| {
            pools.handle(slot, generation, ready, &terms);
        });
    }

    /// Everything of the mesh that is due.
    pub(super) fn poll_mesh(&mut self) {
        if self.pools.next().is_some_and(|at| at <= self.io.now) {
            with_terms!(self, mesh, |pools, terms| pools.poll(&terms));
        }
        if self.inbound.next().is_some_and(|at| at <= self.io.now) {
            with_rules!(self, |inbound, rules| inbound.expire(&rules));
        }
        while let Some(outcome) = self.pools.next_outcome() {
            match outcome {
                Outcome::Serve(waiter, spare) => {
                    if self.waits(waiter) {
                        self.join(waiter.0, spare, false);
                    }
                }
                Outcome::Fail(waiter, error) => {
                    if self.waits(waiter) {
                        self.ask(waiter.0, false, error);
                    }
                }
            }
        }
    }

    /// Whether the session is still there and still without an onward leg.
    fn waits(&self, (slot, generation): Waiter) -> bool {
        self.sessions
            .get(slot.0 as usize)
            .is_some_and(|e| e.generation == generation && e.session.is_waiting())
    }

    /// The node takes no more sessions.
    pub(super) fn retire_mesh(&mut self) {
        with_terms!(self, mesh, |pools, terms| pools.close(&terms));
        let requests = with_rules!(self, |inbound, rules| inbound.retire(&rules));
        for request in requests.into_iter().flatten() {
            self.serve(request);
        }
    }

    /// Another configuration is at work.
    pub(super) fn reload_mesh(&mut self) {
        with_terms!(self, mesh, |pools, terms| pools.adopt(&mesh.peers, &terms));
        let listens = self
            .setup
            .mesh
            .as_ref()
            .is_some_and(|m| !m.listen.is_empty());
        if !listens {
            with_rules!(self, |inbound, rules| inbound.retire(&rules));
        }
        self.drop_old_keys();
    }

    /// The mesh has other keys.
    pub(super) fn drop_old_keys(&mut self) {
        with_terms!(self, mesh, |pools, terms| pools.drop_old_keys(&terms));
        with_rules!(self, |inbound, rules| inbound.drop_old_keys(&rules));
    }

    // === connections from other relays ===

    /// A connection has come to the mesh port.
    pub(super) fn take_in(&mut self, stream: Stream, from: SocketAddr) {
        let Some(mesh) = self.setup.mesh.clone() else {
            return;
        };
        if let Some(stream) = self.let_in(stream, from, &mesh.sources) {
            with_rules!(self, |inbound, rules| inbound.admit(stream, from, &rules));
        }
    }

    /// A connection without a hello is reported.
    pub(super) fn on_mesh_readable(
        &mut self,
        slot: Slot,
        generation: Generation,
        ready: Readiness,
    ) {
        let request = with_rules!(self, |inbound, rules| {
            inbound.handle(slot, generation, ready, &rules)
        });
        if let Some(request) = request.flatten() {
            self.serve(request);
        }
    }

    /// Begins the session that another relay asks for, if it may go where it wants to.
    fn serve(&mut self, request: SessionRequest) {
        let Some(mesh) = self.setup.mesh.clone() else {
            return;
        };
        let SessionRequest {
            stream,
            from,
            hello,
        } = request;
        self.io.metrics.mesh_hellos.add(1);
        let origin = Origin::Mesh {
            relay: from.ip(),
            session: hello.session,
            // Nobody asks for it otherwise.
            destination: match self.shared.log {
                Some(_) => hello.destination.to_string(),
                None => String::new(),
            },
        };
        match plan(&mesh, *hello) {
            Ok((client, plan)) => self.open(stream, client, plan, &origin, Vec::new()),
            Err(refusal) => {
                self.io.metrics.mesh_refused[refusal.index()].add(1);
                tracing::info!(%from, cause = refusal.label(), "refused a session from the mesh");
                stream.abort();
            }
        }
    }

    /// Orders the addresses of the session's destination.
    pub(super) fn look_up(&mut self, slot: Slot) {
        let Some(entry) = self.sessions.get_mut(slot.0 as usize) else {
            return;
        };
        let DialPlan::LookUp { name } = &entry.plan else {
            return;
        };
        let ordered = name.parse::<Destination>().is_ok_and(|destination| {
            let order = LookUp {
                destination,
                mailbox: self.mailbox.clone(),
                slot,
                generation: entry.generation,
            };
            self.shared
                .resolver
                .get()
                .is_some_and(|resolver| resolver.order(order))
        });
        if !ordered {
            self.end(slot, End::NoResources, Close::Reset);
            return;
        }
        entry.session.awaits(self.io.now + entry.timeouts.connect);
        self.set_deadline(slot);
    }

    /// The addresses are there; each is judged as if it had been asked for itself.
    pub(super) fn resolved(
        &mut self,
        slot: Slot,
        generation: Generation,
        addrs: Result<Addrs, ResolveError>,
    ) {
        if !self.waits((slot, generation)) {
            return;
        }
        let Some(mesh) = self.setup.mesh.clone() else {
            return;
        };
        let Some(entry) = self.sessions.get_mut(slot.0 as usize) else {
            return;
        };
        let DialPlan::LookUp { name } = &entry.plan else {
            return;
        };
        let found = match addrs {
            Ok(found) => found,
            Err(error) => {
                tracing::info!(%error, "a session from the mesh ends");
                self.end(slot, End::LookUpFailed, Close::Reset);
                return;
            }
        };
        let host = name.parse::<Destination>().map(|d| d.host).ok();
        let allowed: Addrs = found
            .iter()
            .copied()
            .filter(|addr| mesh.access.check_addr(addr.0, host.as_deref()).is_allowed())
            .collect();
        if allowed.is_empty() {
            tracing::info!(%name, addrs = ?found, "its addresses are not allowed");
            self.end(slot, End::NotAllowed, Close::Reset);
            return;
        }
        entry.plan = DialPlan::Dial {
            addrs: allowed,
            next: 0,
            options: mesh.onward.clone(),
            borrow: mesh.borrow,
        };
        self.dial(slot, Errno::HOSTUNREACH);
    }
}

/// Whose session a hello asks for and how it is to be got on its way.
fn plan(mesh: &Arc<Mesh>, hello: Hello) -> Result<(ClientAddr, DialPlan), MeshRefusal> {
    let client = ClientAddr(hello.source);
    if let Some((next, onward)) = hello.next_hop().map_err(|_| MeshRefusal::HopLimit)? {
        let peer = mesh.peer(&next).ok_or(MeshRefusal::NextRelay)?.clone();
        let plan = DialPlan::Ask {
            tries_left: tries(&peer),
            peer,
            hello: Box::new(onward),
        };
        return Ok((client, plan));
    }
    let plan = match hello.destination {
        Target::Addr(addr) => {
            let verdict = mesh.access.check_addr(addr, None);
            if !verdict.is_allowed() {
                return Err(refused(&addr, verdict));
            }
            DialPlan::Dial {
                addrs: [OnwardAddr(addr)].into(),
                next: 0,
                options: mesh.onward.clone(),
                borrow: mesh.borrow,
            }
        }
        Target::Name { ref host, port } => {
            let verdict = mesh.access.check_name(host, port);
            if !verdict.is_allowed() {
                return Err(refused(&hello.destination, verdict));
            }
            DialPlan::LookUp {
                name: hello.destination.to_string(),
            }
        }
    };
    Ok((client, plan))
}

fn refused(destination: &impl std::fmt::Display, verdict: DestinationVerdict) -> MeshRefusal {
    tracing::info!(%destination, cause = verdict.label(), "not an allowed destination");
    MeshRefusal::Destination
}
