//! Dials a session's upstream leg according to its [`DialPlan`].

use std::sync::Arc;

use taut_mesh::dials::{Asked, Asking, Fault};
use taut_sys::Errno;
use taut_sys::epoll::Interest;

use super::Worker;
use super::attempts::Dial;
use super::dial_plan::DialPlan;
use super::sessions::Close;
use crate::event::token::{Generation, Slot, Token};
use crate::forwarding::session::RelayFault;
use crate::mesh::pool::{DialOutcome, Spare};
use crate::net::addr::Destination;
use crate::net::backend::{Backend, Backends};
use crate::net::names::{self, ResolveError};
use crate::outcome::session_end::{End, Side};
use crate::worker::mailbox::Message;

impl Worker {
    /// Takes the next step of the session's plan. If no step is left, the session ends with the
    /// `last` error. `at_first` means that no step has been taken before.
    pub(super) fn dial(&mut self, slot: Slot, at_first: bool, last: Errno) {
        match self.sessions.get(slot).map(|e| &e.plan) {
            Some(DialPlan::Dial(_)) => {
                if !at_first {
                    self.fail_own(slot, last);
                }
                self.race(slot, last);
            }
            Some(DialPlan::LookUp { .. }) if at_first => self.look_up(slot),
            Some(DialPlan::LookUp { .. }) => self.end(slot, End::of_connect(last), Close::Reset),
            Some(DialPlan::Ask { .. }) => self.ask_relay(slot, at_first, last),
            None => {}
        }
    }

    /// Gets the session a connection to its peer.
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
                // A relay that breaks or restarts resets all its sessions, which is no refusal.
                if matches!(last, Errno::CONNRESET | Errno::PIPE) && !is_broken {
                    entry.plan.on_refusal(self.io.now, &self.io.metrics);
                }
                self.take_next_way(slot, last);
            }
        }
    }

    /// Has the session take its next way, or ends it with the `last` error if none is left.
    pub(super) fn take_next_way(&mut self, slot: Slot, last: Errno) {
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

    /// Records that the relay of a session does not work for this reason.
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
                        // A relay that refuses this one's key says so only after the handshake. If
                        // the session has another way, it takes that.
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

    /// Asks for the addresses of the session's destination, on behalf of the member that it comes from.
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
                tracing::debug!(%error, "a session from the mesh ends");
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
            tracing::debug!(%name, ?addrs, "its addresses are not allowed");
            self.end(slot, End::NotAllowed, Close::Reset);
            return;
        }
        let mut dial = Dial::new(&[&allowed], &mesh.upstream, mesh.borrow, entry.client, pick);
        // The header is written before the race has a winner. One that trusts this relay's headers and got none
        // would take what the client sends for one.
        dial.keep_like_the_first(|addr| mesh.proxy_version(addr));
        if let Some(first) = dial.backends.first() {
            let header = mesh.introduction(entry.client, first.addr, passed);
            entry.session.introduce(header);
        }
        entry.plan = DialPlan::Dial(Box::new(dial));
        self.race(slot, Errno::HOSTUNREACH);
    }
}
