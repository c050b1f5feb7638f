//! A worker's part in the mesh: its pools of connections to other relays, and the connections that
//! other relays make to it.

use std::net::{IpAddr, SocketAddr};

use taut_mesh::arrivals::Bounds;
use taut_mesh::members::MemberName;
use taut_sys::epoll::Readiness;
use taut_sys::socket::Stream;

use super::dial_plan::DialPlan;
use super::pending_record::Origin;
use super::session_table::Admission;
use super::{Shared, Worker};
use crate::config::{InboundLimits, PoolLimits, Removed};
use crate::event::token::{Generation, Slot};
use crate::forwarding::direction::Scratch;
use crate::forwarding::leg::TcpLeg;
use crate::mesh::inbound::{Inbound, InboundTerms, Request, SessionRequest};
use crate::mesh::pool::{PoolTerms, Pools};
use crate::outcome::refusal::ClientRefusal;
use crate::outcome::session_end::End;
use crate::rows_mailbox::ToRows;
use crate::worker::mailbox::Message;

/// Connections between relays that carry no session yet.
#[derive(Default)]
pub(super) struct MeshConns {
    /// Accepted connections without a hello.
    pub(super) inbound: Inbound,
    /// Dialled connections.
    pub(super) pools: Pools,
}

/// Returns one worker's share of the node's pools.
pub(super) fn share_of_pool(pool: PoolLimits, shared: &Shared) -> PoolLimits {
    let max = shared.share(pool.max);
    let min = match shared.early {
        // Of one connection, none could be spared for an early leg.
        Some(_) if pool.min > 0 => shared.share(pool.min).max(2).min(max),
        _ => shared.share(pool.min),
    };
    PoolLimits { min, max, ..pool }
}

impl Worker {
    /// Calls `act` with the pools and their terms. Returns `None` without a mesh.
    pub(super) fn with_pools<T>(
        &mut self,
        act: impl FnOnce(&mut Pools, &mut PoolTerms<'_>) -> T,
    ) -> Option<T> {
        let mesh = self.setup.mesh.as_deref()?;
        let mut terms = PoolTerms {
            poller: &self.io.poller,
            mesh,
            scratch: Scratch {
                plain: &mut self.io.plain,
                cipher: &mut self.io.cipher,
            },
            limits: share_of_pool(mesh.pool, &self.shared),
            timeout: self.setup.timeouts.connect,
            metrics: &self.io.metrics,
            worker: self.io.worker,
            now: self.io.now,
        };
        Some(act(&mut self.mesh.pools, &mut terms))
    }

    /// Calls `act` with the inbound connections and their terms. Returns `None` without a mesh.
    fn with_inbound<T>(
        &mut self,
        act: impl FnOnce(&mut Inbound, &mut InboundTerms<'_>) -> T,
    ) -> Option<T> {
        let mesh = self.setup.mesh.as_deref()?;
        let mut terms = InboundTerms {
            poller: &self.io.poller,
            mesh,
            scratch: Scratch {
                plain: &mut self.io.plain,
                cipher: &mut self.io.cipher,
            },
            times: mesh.inbound.times,
            bounds: Bounds {
                unproven: self.shared.share(mesh.inbound.max_unproven) as usize,
                ready: self.shared.share(mesh.inbound.max_ready) as usize,
            },
            metrics: &self.io.metrics,
            relays: self.shared.relays.as_deref(),
            arrivals: &self.shared.unproven_arrivals,
            now: self.io.now,
        };
        Some(act(&mut self.mesh.inbound, &mut terms))
    }

    /// Performs all work of the mesh that is due.
    pub(super) fn poll_mesh(&mut self) {
        let is_due = |at| at <= self.io.now;
        let (pools, inbound) = (
            self.mesh.pools.next().is_some_and(is_due),
            self.mesh.inbound.next().is_some_and(is_due),
        );
        if pools {
            self.with_pools(|pools, terms| pools.poll(terms));
        }
        self.mesh.inbound.begin_round();
        if inbound {
            let requests = self.with_inbound(|inbound, terms| {
                inbound.expire(terms);
                inbound.handle_postponed(terms)
            });
            for request in requests.into_iter().flatten() {
                self.on_request(request);
            }
        }
        self.mesh.inbound.begin_round();
        self.report_faults();
        self.serve_waiters();
        self.serve_early();
    }

    /// Tells the other workers of relays that do not answer, so that their sessions need not find out.
    fn report_faults(&mut self) {
        for fault in self.mesh.pools.take_faults() {
            let all = self.shared.mailboxes().iter().enumerate();
            for (_, other) in all.filter(|(worker, _)| *worker != self.io.worker) {
                // A worker that has ended has no pools.
                let _ = other.post(Message::PeerFault(fault));
            }
        }
    }

    /// Closes the unused connections of the pools, and tells the relays whose connections wait at the mesh
    /// port to close them: the node accepts no more sessions.
    pub(super) fn drain_mesh(&mut self) {
        self.with_pools(|pools, terms| pools.close(terms));
        self.drain_inbound();
    }

    fn drain_inbound(&mut self) {
        let requests = self.with_inbound(|inbound, terms| inbound.drain(terms));
        for request in requests.into_iter().flatten() {
            self.on_request(request);
        }
    }

    /// Adopts the peers and limits of another configuration.
    pub(super) fn reload_mesh(&mut self) {
        if let Some(mesh) = self.setup.mesh.clone() {
            self.with_pools(|pools, terms| pools.adopt(&mesh.peers, terms));
        }
        let listens = self
            .setup
            .mesh
            .as_ref()
            .is_some_and(|m| !m.listen.is_empty());
        if !listens {
            self.drain_inbound();
        }
        self.drop_former_members();
    }

    /// Ends what the list of members no longer allows: unused connections made with a former key, and,
    /// as configured, the sessions of former members.
    fn drop_former_members(&mut self) {
        self.with_pools(|pools, terms| pools.drop_old_keys(terms));
        self.with_inbound(|inbound, terms| inbound.drop_old_keys(terms));
        let Some(mesh) = self.setup.mesh.clone() else {
            return;
        };
        if mesh.removed == Removed::Reset {
            let is_former = |name: &MemberName| mesh.local.members.by_name(name.as_str()).is_none();
            let of_former = self
                .sessions
                .slots_where(|entry| entry.is_of_former(is_former));
            self.end_all(of_former, End::MemberRemoved);
        }
    }

    // === connections to other relays ===

    /// Handles an event of a connection that no session uses yet.
    pub(super) fn on_pool_ready(&mut self, slot: Slot, generation: Generation, ready: Readiness) {
        self.with_pools(|pools, terms| pools.handle(slot, generation, ready, terms));
    }

    // === connections from other relays ===

    /// Adds a connection that was accepted at the mesh port.
    pub(super) fn accept_relay(&mut self, stream: Stream, from: SocketAddr) {
        let Some(mesh) = self.setup.mesh.clone() else {
            return;
        };
        let Some(stream) = self.check_source(stream, from, &mesh.sources, &mesh.stats) else {
            return;
        };
        // In a trusted network the address is the proof.
        let ip = from.ip();
        let is_proven = mesh.trusted_member(ip).is_some();
        if !is_proven && !self.shared.unproven_arrivals.admit(ip, self.io.now) {
            self.refuse(stream, ip, ClientRefusal::UnprovenRate, &mesh.stats);
            return;
        }
        self.with_inbound(|inbound, terms| inbound.admit(stream, from, terms));
    }

    /// Handles an event of a connection without a hello.
    pub(super) fn on_mesh_readable(
        &mut self,
        slot: Slot,
        generation: Generation,
        ready: Readiness,
    ) {
        let request =
            self.with_inbound(|inbound, terms| inbound.handle(slot, generation, ready, terms));
        if let Some(request) = request.flatten() {
            self.on_request(request);
        }
    }

    fn on_request(&mut self, request: Request) {
        match (request, &self.shared.rows) {
            (Request::Session(request), _) => self.serve(request),
            (Request::Rows(link), Some(rows)) => rows.post(ToRows::Link(Box::new(link))),
            // Dropping the connection resets it.
            (Request::Rows(_), None) => {}
        }
    }

    /// Starts the session that another relay requests, if its destination is allowed.
    fn serve(&mut self, request: SessionRequest) {
        let Some(mesh) = self.setup.mesh.clone() else {
            return;
        };
        let SessionRequest {
            stream,
            from,
            hello,
            member,
            channel,
            early,
        } = request;
        self.io.metrics.mesh_hellos.add(1);
        let origin = Origin::Mesh {
            relay: from.ip(),
            session: hello.session,
            stats: &mesh.stats,
            // Only the session log needs the name.
            destination: match self.shared.log {
                Some(_) => hello.destination.to_string(),
                None => String::new(),
            },
        };
        match DialPlan::for_hello(&mesh, &member, *hello) {
            Ok((client, plan, header)) => {
                let leg = TcpLeg::new(stream, channel, &self.io.metrics);
                let ip = client.0.ip();
                match self.admit_session(ip, &member, &mesh.inbound) {
                    Ok(admission) => {
                        self.open_session((leg, admission), client, plan, &origin, header, early);
                    }
                    Err(cause) => self.refuse(leg, ip, cause, &mesh.stats),
                }
            }
            Err(refusal) => {
                self.io.metrics.mesh_refused[refusal.index()].add(1);
                let counters = mesh.stats.worker(self.io.worker);
                counters.destination_refused.add(1);
                counters.last_refused.set(from.ip());
                tracing::debug!(%member, %from, cause = refusal.label(), "refused a session from the mesh");
                stream.abort();
            }
        }
    }

    /// Takes the places of a session that a relay asks for.
    fn admit_session(
        &mut self,
        client: IpAddr,
        member: &MemberName,
        limits: &InboundLimits,
    ) -> Result<Admission, ClientRefusal> {
        // The first relay has counted the rate of the client's connections.
        let permit = self.shared.sources.admit_shared(client);
        let permit = permit.ok_or(ClientRefusal::SourceLimit)?;
        // Before anybody makes room for it.
        let Some(of_member) = self.shared.admit_member(member, limits) else {
            self.io.metrics.mesh_member_limit.add(member);
            return Err(ClientRefusal::MemberLimit);
        };
        let place = self.place(&permit).ok_or(ClientRefusal::Full)?;
        Ok(Admission {
            permit,
            member: Some(of_member),
            _place: place,
        })
    }
}
