//! Makes, reads and ends row links.

use std::net::SocketAddr;
use std::time::Duration;

use taut_mesh::members::{Member, MemberName};
use taut_mesh::rows::{MemberId, Received, RowFault, neighbours};
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Readiness};
use taut_sys::socket::{LegOptions, Stream};

use super::link::{Advance, Link, PATIENCE, State};
use super::thread::{LINK, Work};
use crate::counters::log_limit::{Line, UNWATCHED};
use crate::forwarding::direction::Scratch;
use crate::rows_mailbox::RowLink;
use crate::worker::Order;

/// The time for which a segment of a link may stay unacknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// The shortest interval between two warnings of wrong clocks.
const WARN_EVERY: Duration = Duration::from_secs(3600);

impl Work {
    /// Makes the links that are missing.
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
            let addresses = self.addresses_of(member);
            let Some(to) = self.failed_links.next(MemberId::of(&name), &addresses) else {
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

    /// Returns the addresses of a member as far as they are known, in the order in which they are
    /// tried.
    pub(super) fn addresses_of(&mut self, member: &Member) -> Vec<SocketAddr> {
        let known = self.mesh.peer(&member.name).map(|peer| peer.addrs());
        let known: Vec<_> = known.into_iter().flatten().map(|addr| addr.0).collect();
        if !known.is_empty() {
            return known;
        }
        let (mailbox, now) = (self.mailbox.clone(), self.now);
        let addresses = member.addresses.iter();
        addresses
            .flat_map(|target| self.member_names.of(target, &mailbox, now))
            .collect()
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
                if let Some(Line { left_out }) = UNWATCHED.line(self.now) {
                    tracing::warn!(%error, left_out, "cannot watch a connection of the mesh");
                }
                None
            }
        }
    }

    /// Takes a link that another relay has made. If two relays have made one to each other, both keep
    /// the link of the relay whose name comes first.
    pub(super) fn accept(&mut self, link: RowLink) {
        let mesh = self.mesh.clone();
        let is_member = mesh.local.members.by_name(link.member.as_str()).is_some();
        if !is_member || !mesh.measure || self.shared.ordered() != Order::Run {
            return;
        }
        if let Some(place) = self.links.to(&link.member) {
            let own_link = self.links.all[place].dialled.is_some();
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
        let (peer, id) = (link.peer.clone(), link.id);
        self.links.works(&peer);
        self.failed_links.worked(id);
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
            Received::Refused(RowFault::Stale) if self.warn_at <= self.now => {
                self.warn_at = self.now + WARN_EVERY;
                tracing::warn!(
                    "rows were made more than an hour ago by the clocks of their relays, and are not used: set the \
                     clocks of all relays (`timedatectl` shows whether one is synchronized)"
                );
            }
            Received::Refused(fault) => tracing::debug!(%fault, "a row was not accepted"),
        }
    }

    /// Ends a link that has failed, and finds out whether its relay still works.
    pub(super) fn lose(&mut self, place: usize, error: Errno) {
        let Some(link) = self.links.all.get(place) else {
            return;
        };
        tracing::debug!(peer = %link.peer, %error, "a row link has ended");
        let (id, peer) = (link.id, link.peer.clone());
        let connecting = matches!(link.state, State::Connecting { .. });
        let failed = link.dialled.filter(|_| link.link().is_none());
        self.links.failed(place, self.now);
        self.close(place);
        let Some(member) = self.mesh.local.members.by_name(peer.as_str()).cloned() else {
            return;
        };
        let addresses = self.addresses_of(&member);
        let all_failed = failed.is_some_and(|to| self.failed_links.failed(id, to, &addresses));
        if connecting && all_failed {
            self.set_down(id, true);
        } else {
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
