//! Makes, reads and ends row links.

use std::net::SocketAddr;
use std::time::Duration;

use taut_mesh::members::{Member, MemberName};
use taut_mesh::rows::{MemberId, Received, neighbours};
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Readiness};
use taut_sys::socket::{LegOptions, Stream};

use super::link::{Advance, Link, PATIENCE, State};
use super::thread::{LINK, Work};
use crate::forwarding::direction::Scratch;
use crate::rows_mailbox::RowLink;
use crate::worker::Order;

/// The time that a link waits for the answer of the other end to a segment.
const USER_TIMEOUT: Duration = Duration::from_secs(10);

impl Work {
    /// Makes the links that this relay should have and has not.
    pub(super) fn make_links(&mut self) {
        let mesh = self.mesh.clone();
        let down = |name: &MemberName| self.own.is_down(MemberId::of(name));
        for name in neighbours(&mesh.local.name, &mesh.local.members, down) {
            if !self.links.is_due(&name, self.now) {
                continue;
            }
            let Some(member) = mesh.local.members.by_name(name.as_str()) else {
                continue;
            };
            let Some(to) = self.address_of(member) else {
                continue;
            };
            let dialled = Stream::connect(to, &self.options());
            let dialled = dialled.map(|stream| {
                let trusted = mesh.trusts(to.ip());
                Link::dial(stream, to, member, &mesh.key, trusted, self.now)
            });
            match dialled {
                Ok(link) => drop(self.add(link)),
                Err(error) => tracing::debug!(peer = %name, %error, "cannot make a row link"),
            }
        }
    }

    pub(super) fn options(&self) -> LegOptions {
        LegOptions {
            user_timeout: Some(USER_TIMEOUT),
            ..LegOptions::new(self.mesh.upstream.keepalive)
        }
    }

    pub(super) fn address_of(&mut self, member: &Member) -> Option<SocketAddr> {
        let known = self.mesh.peer(&member.name).map(|peer| peer.addrs());
        if let Some(addr) = known.iter().flatten().next() {
            return Some(addr.0);
        }
        let (mailbox, now) = (self.mailbox.clone(), self.now);
        let addresses = member.addresses.iter();
        let mut found = addresses.flat_map(|target| self.names.of(target, &mailbox, now));
        found.next()
    }

    /// Adds a link and returns its place.
    pub(super) fn add(&mut self, link: Link) -> Option<usize> {
        let vacant = self.links.all.vacant_entry();
        let place = vacant.key();
        match self
            .poller
            .add(&link.stream, LINK | place as u64, Interest::StreamEdges)
        {
            Ok(()) => {
                vacant.insert(link);
                Some(place)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot watch a row link");
                None
            }
        }
    }

    /// Takes a link that another relay has made. Of two links between the same relays, both keep that which
    /// the one whose name comes first has made.
    pub(super) fn accept(&mut self, link: RowLink) {
        let mesh = self.mesh.clone();
        let is_member = mesh.local.members.by_name(link.member.as_str()).is_some();
        if !is_member || !mesh.measure || self.shared.ordered() != Order::Run {
            return;
        }
        if let Some(place) = self.links.to(&link.member) {
            let own_link = self.links.all[place].dialled;
            if own_link && mesh.local.name < link.member {
                return;
            }
            self.close(place);
        }
        let Some(place) = self.add(Link::accept(link, self.now)) else {
            return;
        };
        self.open_if_ready(place);
        self.on_link(place, Readiness::DATA);
    }

    pub(super) fn on_link(&mut self, place: usize, ready: Readiness) {
        let Some(link) = self.links.all.get_mut(place) else {
            return;
        };
        let mut scratch = Scratch {
            plain: &mut self.plain,
            cipher: &mut self.cipher,
        };
        let mut received = Vec::new();
        let advanced = link.advance(ready, &mut scratch, &mut received, self.now);
        self.open_if_ready(place);
        if !received.is_empty() {
            self.on_frames(place, &received);
        }
        match advanced {
            Ok(Advance::Drained) => {}
            Ok(Advance::MoreToRead) if self.unread.contains(&place) => {}
            Ok(Advance::MoreToRead) => self.unread.push(place),
            Err(error) => self.lose(place, error),
        }
    }

    pub(super) fn open_if_ready(&mut self, place: usize) {
        let Some(link) = self.links.all.get_mut(place) else {
            return;
        };
        if !matches!(link.state, State::Ready { .. }) {
            return;
        }
        let Some(number) = self.exchange.open(self.now) else {
            self.close(place);
            return;
        };
        let early = link.open(number);
        if !early.is_empty() {
            self.on_frames(place, &early);
        }
    }

    pub(super) fn on_frames(&mut self, place: usize, bytes: &[u8]) {
        let Some(link) = self.links.all.get_mut(place) else {
            return;
        };
        let Some(number) = link.link() else {
            return;
        };
        link.heard = true;
        let peer = link.peer.clone();
        self.links.works(&peer);
        match self
            .exchange
            .receive(number, bytes, self.now, &mut self.table)
        {
            Ok(received) => {
                for what in received {
                    self.on_received(what);
                }
            }
            Err(fault) => {
                tracing::debug!(%peer, %fault, "ending a row link");
                self.lose(place, Errno::PROTO);
            }
        }
    }

    pub(super) fn on_received(&mut self, what: Received) {
        match what {
            Received::News(_) => self.routes_may_differ(),
            Received::Own(version) => self.floor = self.floor.max(version),
            Received::Rtt(_) => {}
            Received::Refused(fault) => tracing::debug!(%fault, "a row was not accepted"),
        }
    }

    /// Ends a link that has failed, and finds out whether its relay still works.
    pub(super) fn lose(&mut self, place: usize, error: Errno) {
        let Some(link) = self.links.all.get(place) else {
            return;
        };
        tracing::debug!(peer = %link.peer, %error, "a row link has ended");
        let (id, peer, connecting) = (
            link.id,
            link.peer.clone(),
            matches!(link.state, State::Connecting { .. }),
        );
        self.links.failed(place, self.now);
        self.close(place);
        if connecting {
            self.set_down(id, true);
        } else if let Some(member) = self.mesh.local.members.by_name(peer.as_str()).cloned() {
            self.probe(&member);
        }
    }

    pub(super) fn close(&mut self, place: usize) {
        if let Some(link) = self.links.all.try_remove(place) {
            if let Some(number) = link.link() {
                self.exchange.close(number);
            }
            link.stream.abort();
        }
    }

    pub(super) fn end_silent_links(&mut self) {
        let silent = self.exchange.silent(self.now);
        let late = |link: &Link| match link.link() {
            Some(number) => silent.contains(&number),
            None => self.now >= link.begun + PATIENCE,
        };
        let all = self.links.all.iter().filter(|(_, link)| late(link));
        for place in all.map(|(place, _)| place).collect::<Vec<_>>() {
            self.lose(place, Errno::TIMEDOUT);
        }
    }

    /// Sends what the exchange has to send.
    pub(super) fn flush(&mut self) {
        while let Some((number, bytes)) = self.exchange.poll(self.now, &self.table) {
            let mut all = self.links.all.iter();
            let Some((place, _)) = all.find(|(_, link)| link.link() == Some(number)) else {
                continue;
            };
            if let Err(error) = self.links.all[place].send(&bytes) {
                self.lose(place, error);
            }
        }
    }
}
