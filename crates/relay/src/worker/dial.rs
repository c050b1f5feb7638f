//! Dials upstream legs according to a [`DialPlan`]: those of sessions, and early ones, which begin
//! at a client's SYN.

use std::sync::Arc;

use taut_mesh::dials::{Asked, Asking, Fault};
use taut_mesh::proxy::Tlvs;
use taut_sys::Errno;
use taut_sys::epoll::Interest;

use super::attempts::{Dial, Pick};
use super::client::Client;
use super::dial_plan::DialPlan;
use super::dial_race::{Driven, SessionRace};
use super::early::{EarlyLeg, Upstream};
use super::pending_record::Origin;
use super::session_table::Admission;
use super::sessions::Close;
use super::slots::slot;
use super::{MAX_EXTRA, Worker};
use crate::early_syn::FourTuple;
use crate::event::token::{Generation, Slot, Token};
use crate::forwarding::leg::TcpLeg;
use crate::forwarding::session::RelayFault;
use crate::mesh::pool::{DialOutcome, Spare};
use crate::net::addr::{ClientAddr, Destination};
use crate::net::backend::{Backend, Backends};
use crate::net::names::{self, ResolveError};
use crate::outcome::session_end::{End, Side};
use crate::route::table::Route;
use crate::worker::mailbox::Message;

impl Worker {
    /// Returns the tie-breaking values for the next plan; `turn` differs at each call.
    pub(super) fn pick(&mut self) -> Pick {
        self.turn = self.turn.wrapping_add(1);
        Pick {
            now: self.io.now,
            turn: self.turn,
        }
    }

    /// Takes the next step of the session's plan. If the plan has none left, the session falls back
    /// to its next way, or ends with `last`. `at_first`: no step of this plan has been taken.
    pub(super) fn dial(&mut self, slot: Slot, at_first: bool, last: Errno) {
        match self.sessions.get(slot).map(|e| &e.plan) {
            Some(DialPlan::Dial(_)) => {
                if !at_first && let Some(entry) = self.sessions.get_mut(slot) {
                    entry.fail_own(last, self.io.now);
                }
                self.race(slot, last);
            }
            Some(DialPlan::LookUp { .. }) if at_first => self.look_up(slot),
            Some(DialPlan::LookUp { .. }) => self.end(slot, End::of_connect(last), Close::Reset),
            Some(DialPlan::Ask { .. }) => self.ask_relay(slot, at_first, last),
            None => {}
        }
    }

    /// Takes the next steps of a session's race. If no attempt is in progress and no address is
    /// left, the session takes its next way, or ends with the `last` error.
    pub(super) fn race(&mut self, slot: Slot, mut last: Errno) {
        let Some(entry) = self.sessions.get_mut(slot) else {
            return;
        };
        let patience = entry.plan.patience(entry.timeouts.connect, &self.setup);
        let mut race = SessionRace {
            slot,
            entry,
            attempts: &mut self.attempts,
            io: &self.io,
            max_extra: self.shared.share(MAX_EXTRA) as usize,
            patience,
        };
        match race.drive(&mut last) {
            Driven::InProgress => self.set_deadline(slot),
            Driven::Promoted => {
                self.sessions.queue(slot);
                self.set_deadline(slot);
            }
            Driven::Lost => self.take_next_way(slot, last),
            Driven::Ended(end) => self.end(slot, end, Close::Reset),
        }
    }

    /// Takes a connection to the plan's peer from the pool, or waits for one. If the session must
    /// leave the peer, takes its next way.
    fn ask_relay(&mut self, slot: Slot, at_first: bool, last: Errno) {
        let Some(entry) = self.sessions.get_mut(slot) else {
            return;
        };
        let session = (slot, entry.generation);
        let may_leave = entry.plan.has_another_way();
        let wait = entry.plan.patience(entry.timeouts.connect, &self.setup);
        let DialPlan::Ask { peer, attempt, .. } = &mut entry.plan else {
            return;
        };
        let (peer, mut tried) = (peer.id, *attempt);
        let asking = Asking {
            session,
            attempt: &mut tried,
            at_first,
            may_leave,
        };
        let asked = self.with_pools(|pools, terms| pools.ask(peer, asking, terms));
        let Some(entry) = self.sessions.get_mut(slot) else {
            return;
        };
        if let DialPlan::Ask { attempt, .. } = &mut entry.plan {
            *attempt = tried;
        }
        match asked.unwrap_or(Asked::Leaves { is_broken: false }) {
            Asked::Ready(spare) => self.join(slot, spare, true),
            Asked::Waits(_) => {
                entry.session.awaits(self.io.now + wait);
                self.set_deadline(slot);
            }
            Asked::Leaves { is_broken } => {
                // A relay that fails resets all its sessions. Only a reset by a working relay is a
                // refusal of this session.
                if matches!(last, Errno::CONNRESET | Errno::PIPE) && !is_broken {
                    entry.plan.on_refusal(self.io.now, &self.io.metrics);
                }
                self.take_next_way(slot, last);
            }
        }
    }

    /// Has the session take its next way, or ends it with the `last` error if none is left.
    fn take_next_way(&mut self, slot: Slot, last: Errno) {
        let pick = self.pick();
        let Some(entry) = self.sessions.get_mut(slot) else {
            return;
        };
        let has_no_address = entry.plan.has_no_address();
        let Some(plan) = entry.plan.fall_back(pick) else {
            let end = match has_no_address {
                true => End::LookUpFailed,
                false => End::of_connect(last),
            };
            self.end(slot, end, Close::Reset);
            return;
        };
        entry.change_plan(plan, self.io.worker);
        self.io.metrics.fall_backs.add(1);
        self.dial(slot, true, last);
    }

    /// Reports to the pools that the session's relay does not answer or rejects this relay's key.
    pub(super) fn on_broken_relay(&mut self, slot: Slot, fault: RelayFault) {
        let Some(DialPlan::Ask { peer, .. }) = self.sessions.get(slot).map(|e| &e.plan) else {
            return;
        };
        let RelayFault { error, since } = fault;
        let peer = peer.id;
        self.with_pools(|pools, terms| pools.on_fault(Fault { peer, error, since }, terms));
    }

    /// Hands the results of dials to the sessions that wait for a connection to a relay.
    pub(super) fn serve_waiters(&mut self) {
        while let Some(outcome) = self.mesh.pools.next_outcome() {
            match outcome {
                DialOutcome::Serve(waiter, spare) => {
                    if self.sessions.is_waiting(waiter) {
                        // A relay can reject this relay's key after the handshake is complete. A
                        // session with another way therefore treats even a fresh connection as one
                        // from the pool: it redials if the connection breaks before a byte is sent.
                        let plan = self.sessions.get(waiter.0).map(|entry| &entry.plan);
                        let may_leave = plan.is_some_and(DialPlan::has_another_way);
                        self.join(waiter.0, spare, may_leave);
                    }
                }
                DialOutcome::Fail(waiter, error) => {
                    if self.sessions.is_waiting(waiter) {
                        self.ask_relay(waiter.0, false, error);
                    }
                }
            }
        }
    }

    /// Sends the session's hello on a connection and makes it the upstream leg.
    fn join(&mut self, slot: Slot, spare: Spare, made_before: bool) {
        let now = self.io.now;
        let Some(entry) = self.sessions.get_mut(slot) else {
            return;
        };
        let DialPlan::Ask { hello, .. } = &entry.plan else {
            return;
        };
        let token = Token::Leg(slot, entry.generation, Side::Upstream).encode();
        let leg = spare.begin(hello, &self.io.metrics).and_then(|leg| {
            let poller = &self.io.poller;
            poller.modify(leg.stream(), token, Interest::StreamEdges)?;
            Ok(leg)
        });
        match leg {
            Ok(leg) => {
                entry.session.joined(leg, made_before, now);
                if let Some(mesh) = &self.setup.mesh {
                    entry.session.expect_answer(mesh.pool.patience, now);
                }
                self.sessions.queue(slot);
            }
            Err(e) => self.ask_relay(slot, false, e),
        }
    }

    /// Looks up the destination's addresses; the look-up counts towards the quota of the member
    /// that sent the session.
    fn look_up(&mut self, slot: Slot) {
        let Some(entry) = self.sessions.get_mut(slot) else {
            return;
        };
        let DialPlan::LookUp { name, member, .. } = &entry.plan else {
            return;
        };
        let Ok(destination) = name.parse::<Destination>() else {
            self.end(slot, End::LookUpFailed, Close::Reset);
            return;
        };
        let (mailbox, backends) = (self.mailbox.clone(), self.shared.backends.clone());
        let (generation, member) = (entry.generation, member.clone());
        names::ask(&destination.clone(), &Some(member), move |found| {
            let backends = found.map(|addrs| backends.of_name(destination, &addrs));
            let _ = mailbox.post(Message::Resolved {
                slot,
                generation,
                backends,
            });
        });
        entry.session.awaits(self.io.now + entry.timeouts.connect);
        self.set_deadline(slot);
    }

    /// Dials the addresses that a look-up found and the configuration allows.
    pub(super) fn on_resolved(
        &mut self,
        slot: Slot,
        generation: Generation,
        found: Result<Backends, ResolveError>,
    ) {
        if !self.sessions.is_waiting((slot, generation)) {
            return;
        }
        let Some(mesh) = self.setup.mesh.clone() else {
            return;
        };
        let pick = self.pick();
        let Some(entry) = self.sessions.get_mut(slot) else {
            return;
        };
        let DialPlan::LookUp {
            name,
            member,
            passed,
        } = &entry.plan
        else {
            return;
        };
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "cannot look up the destination of a session from the mesh");
                self.end(slot, End::LookUpFailed, Close::Reset);
                return;
            }
        };
        let host = name.parse::<Destination>().map(|d| d.host).ok();
        let access = mesh.access_of(member);
        let is_allowed = |backend: &&Arc<Backend>| {
            let verdict = access.check_addr(backend.addr.0, host.as_deref());
            verdict.is_allowed()
        };
        let allowed: Vec<_> = found.iter().filter(is_allowed).cloned().collect();
        if allowed.is_empty() {
            let addrs: Vec<_> = found.iter().map(|backend| backend.addr.0).collect();
            tracing::debug!(%name, ?addrs, "no address of this destination is allowed");
            self.end(slot, End::NotAllowed, Close::Reset);
            return;
        }
        let mut dial = Dial::new(&[&allowed], &mesh.upstream, mesh.borrow, entry.client, pick);
        // The PROXY header is queued before it is known which address wins the race, so only
        // addresses that expect the same header are dialled. A server that expects a header and
        // gets none would parse the client's bytes as one.
        dial.keep_like_the_first(|addr| mesh.proxy_version(addr));
        if let Some(first) = dial.backends.first() {
            let header = mesh.introduction(entry.client, first.addr, passed);
            entry.session.introduce(header);
        }
        entry.plan = DialPlan::Dial(Box::new(dial));
        self.race(slot, Errno::HOSTUNREACH);
    }

    // === early legs ===

    /// Dials the upstream leg of a client whose SYN has arrived.
    pub(super) fn on_syn(&mut self, connection: FourTuple, forward: u32) {
        let Some(table) = self.shared.early.clone() else {
            return;
        };
        let route = self.setup.routes.iter().find(|r| r.id == forward).cloned();
        // The client may have been accepted before this message was read. A dial started now would
        // leak: its session already dials for itself.
        if !table.is_awaited(connection, self.io.worker) {
            return;
        }
        match route.and_then(|route| self.begin(&route, connection)) {
            Some(leg) => {
                match leg.upstream {
                    Upstream::Awaited => self.io.metrics.early_ahead.add(1),
                    _ => self.io.metrics.early_begun.add(1),
                }
                self.early.insert(connection, leg);
            }
            None => {
                self.io.metrics.early_declined.add(1);
                table.give_up(connection);
            }
        }
    }

    /// Starts an early upstream leg: connects, or sends a hello on a pooled connection, or dials
    /// one for it.
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

    /// Advances the plan past relays that cannot be reached. Returns the plan and the number
    /// skipped. If every way is through such a relay, the last one is kept.
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

    /// Sends the hello on a pooled connection. Returns `Some(None)` if sessions can spare none, and
    /// `None` if sending fails or there is no mesh.
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

    /// Sends the hellos of early legs that wait for a connection to a relay, as far as connections
    /// have become ready.
    pub(super) fn serve_early(&mut self) {
        if !self.mesh.pools.has_gained() {
            return;
        }
        let is_awaited = |leg: &EarlyLeg| matches!(leg.upstream, Upstream::Awaited);
        let awaited: Vec<_> = self.early.extract_if(|_, leg| is_awaited(leg)).collect();
        for (connection, mut leg) in awaited {
            // If none is left or sending fails, the client's session asks the pool itself.
            if let Some(Some(upstream)) = self.tell_early(&mut leg.plan) {
                self.io.metrics.early_begun.add(1);
                leg.upstream = Upstream::HelloSent(upstream);
            }
            self.early.insert(connection, leg);
        }
    }

    /// Drops the early leg of a client that did not complete its handshake in time, or that is
    /// still awaited when early SYN stops.
    pub(super) fn on_no_client(&mut self, connection: FourTuple) {
        // Dropping the leg resets it, so its peer learns that no data will follow.
        match self.early.remove(&connection).map(|leg| leg.upstream) {
            Some(Upstream::Dialled(_) | Upstream::HelloSent(_)) => {
                self.io.metrics.early_unused.add(1);
            }
            Some(Upstream::Awaited) | None => {}
        }
    }

    /// Registers the session of a client whose upstream leg this worker has, and gives it the leg.
    pub(super) fn join_early(&mut self, mut client: Client, connection: FourTuple) {
        let leg = self.early.remove(&connection);
        // Dropping a leg resets it.
        let Some(leg) = leg.filter(|leg| leg.is_for(&client.route, &self.setup)) else {
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
        // The client may have to queue; a leg cannot wait with it and is dropped.
        let Ok(place) = self.place_for(&client) else {
            self.io.metrics.early_unused.add(1);
            return self.start(client);
        };
        self.io.metrics.accepted.add(1);
        self.io.metrics.early_joined.add(1);
        self.io.metrics.fall_backs.add(leg.passed_over);
        // A directly dialled destination has received no byte so far: only now has the client
        // proven its address. (A relay that got the hello may already have sent the destination a
        // PROXY header.)
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
