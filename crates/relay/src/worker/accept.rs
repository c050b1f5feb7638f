//! Connections become sessions, or are turned away.

use std::net::SocketAddr;

use taut_sys::Errno;
use taut_sys::epoll::Interest;
use taut_sys::socket::Stream;

use super::Worker;
use super::dial::{DialPlan, plan_of};
use super::pending_record::{Origin, PendingRecord, Timeline};
use super::sessions::{Close, SessionEntry, slot};
use crate::access;
use crate::access::identity::Introduction;
use crate::event::token::Token;
use crate::forwarding::session::Session;
use crate::net::addr::ClientAddr;
use crate::outcome::refusal::ClientRefusal;
use crate::outcome::session_end::{End, Side};
use crate::route::table::Route;

impl Worker {
    /// Resets a connection whose source may not come.
    pub(super) fn let_in(
        &self,
        stream: Stream,
        from: SocketAddr,
        sources: &access::Sources,
    ) -> Option<Stream> {
        match ClientRefusal::of(sources.check(from.ip())) {
            None => Some(stream),
            Some(cause) => {
                self.refuse(stream, cause);
                None
            }
        }
    }

    fn refuse(&self, stream: Stream, cause: ClientRefusal) {
        self.io.metrics.refused[cause.index()].add(1);
        stream.abort();
    }

    /// A client has come. `to`: what it connected to, if that was another machine, which told us.
    pub(super) fn admit(
        &mut self,
        client: Stream,
        addr: ClientAddr,
        to: Option<SocketAddr>,
        route: &Route,
    ) {
        self.io.metrics.accepted.add(1);
        let local = || to.or_else(|| client.local_addr().ok());
        let plan = match plan_of(route, addr, local, &self.setup) {
            Ok(plan) => plan,
            Err(verdict) => {
                self.io.metrics.intercept_refused.add(1);
                tracing::info!(
                    client = %addr.0, to = ?local(), cause = verdict.label(),
                    "not an allowed destination"
                );
                client.abort();
                return;
            }
        };
        let introduction = route.identity.send_proxy.then(local).flatten().map(|to| {
            let client = addr.0;
            Introduction { client, to }.header()
        });
        self.open(
            client,
            addr,
            plan,
            &Origin::Forward(route),
            introduction.unwrap_or_default(),
        );
    }

    /// Begins a session; its destination is told `introduction` first.
    pub(super) fn open(
        &mut self,
        client: Stream,
        addr: ClientAddr,
        plan: DialPlan,
        origin: &Origin<'_>,
        introduction: Vec<u8>,
    ) {
        if let Some(key) = self.seat(client, addr, plan, origin) {
            if let Some(entry) = self.sessions.get_mut(key) {
                entry.session.introduce(introduction);
            }
            self.go_on(slot(key), true, Errno::HOSTUNREACH);
        }
    }

    /// Gives a session its place, or resets the client when there is none.
    pub(super) fn seat(
        &mut self,
        client: Stream,
        addr: ClientAddr,
        plan: DialPlan,
        origin: &Origin<'_>,
    ) -> Option<usize> {
        // Of a session from the mesh: the client that the hello names.
        let Some(permit) = self.shared.sources.admit(addr.0.ip()) else {
            self.refuse(client, ClientRefusal::SourceLimit);
            return None;
        };
        if !self.shared.admit() {
            // First: who sees the reset and tries again must not meet its own trace.
            drop(permit);
            self.refuse(client, ClientRefusal::Full);
            return None;
        }
        let log = self.shared.log.is_some();
        let record = log.then(|| Box::new(PendingRecord::new(origin, &client, &plan)));
        let visit = match (&self.shared.relays, origin) {
            (Some(relays), Origin::Mesh { relay, .. }) => relays.visit(*relay),
            _ => None,
        };
        self.generation = self.generation.next();
        let generation = self.generation;
        let vacant = self.sessions.vacant_entry();
        let key = vacant.key();
        let token = Token::Leg(slot(key), generation, Side::Client).encode();
        // A connection from another relay is watched already.
        let watched = match self.poller.add(&client, token, Interest::StreamEdges) {
            Err(Errno::EXIST) => self.poller.modify(&client, token, Interest::StreamEdges),
            other => other,
        };
        vacant.insert(SessionEntry {
            session: Session::new(client, self.io.now),
            generation,
            client: addr,
            plan,
            timeouts: self.setup.timeouts.clone(),
            timeline: Timeline::new(self.io.now),
            record,
            deadline: None,
            queued: false,
            permit,
            _visit: visit,
        });
        self.io.metrics.sessions.add(1);
        match watched {
            Ok(()) => Some(key),
            Err(e) => {
                self.end(slot(key), End::of_connect(e), Close::Reset);
                None
            }
        }
    }
}
