//! The thread: waits for events, and carries out what the pure parts decide.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use taut_mesh::members::{Member, MemberName};
use taut_mesh::onward::Policy;
use taut_mesh::rows::{Exchange, Key, MemberId, OwnRow, Received, Table, neighbours};
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Poller, Readiness};
use taut_sys::socket::{LegOptions, Stream};

use super::destinations::{Destinations, to_measure};
use super::link::{Advance, Link, PATIENCE, State};
use super::links::Links;
use super::names::Names;
use super::probe::{Measured, Probes, What};
use super::replan::Replan;
use crate::forwarding::direction::Scratch;
use crate::forwarding::leg::CIPHER;
use crate::route::table::{Mesh, Setup};
use crate::rows_mailbox::{
    PathSample, PeerFigure, Published, RowLink, RowsMailbox, SampledPath, ToRows,
};
use crate::worker::mailbox::{Mailbox, Message};
use crate::worker::{Order, Shared};

/// The interval of what is done without an event.
const TICK: Duration = Duration::from_secs(1);

/// The interval at which workers are asked for samples of their connections.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);

/// The interval at which the path to a member without a connection is measured: this, or so long that no
/// more than 3.3 handshakes a second are begun.
const PROBE_EVERY: Duration = Duration::from_secs(30);
const PROBE_EACH: Duration = Duration::from_millis(300);

/// The interval at which a member that cannot be reached is tried.
const RETRY_EVERY: Duration = Duration::from_secs(5);

/// The largest number of measurements of members that begin in a tick.
const PROBES_A_TICK: usize = 8;

/// The time that a link waits for the answer of the other end to a segment.
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// The memory to read through.
const PLAIN: usize = 64 << 10;

/// Kinds of tokens.
const WAKER: u64 = 0;
const LINK: u64 = 1 << 32;
const PROBE: u64 = 2 << 32;

/// Starts the thread. It ends when the mailbox is stopped.
pub(crate) fn start(
    mailbox: &Arc<RowsMailbox>,
    shared: &Arc<Shared>,
    mailboxes: Vec<Arc<Mailbox>>,
) -> std::io::Result<Option<JoinHandle<()>>> {
    let setup = shared.setup();
    let Some(mesh) = setup.mesh.clone() else {
        return Ok(None);
    };
    let poller = Poller::new().and_then(|poller| {
        poller.add(mailbox.waker(), WAKER, Interest::Read)?;
        Ok(poller)
    })?;
    let now = Instant::now();
    let work = Work {
        table: Table::new(&mesh.local.name, &mesh.local.members),
        own: OwnRow::default(),
        exchange: Exchange::new(now),
        floor: 0,
        overtakings: 0,
        links: Links::default(),
        unread: Vec::new(),
        probes: Probes::default(),
        probed: HashMap::new(),
        failures: HashMap::new(),
        destinations: Destinations::default(),
        names: Names::default(),
        counts: Counts::default(),
        replan: Replan::default(),
        left_out: 0,
        poller,
        mailbox: mailbox.clone(),
        shared: shared.clone(),
        mailboxes,
        adopted: None,
        setup,
        mesh,
        tick_at: now,
        sample_at: now,
        now,
        plain: vec![0; PLAIN].into(),
        cipher: vec![0; CIPHER].into(),
    };
    let thread = std::thread::Builder::new().name("relay-rows".into());
    thread.spawn(move || work.run()).map(Some)
}

#[derive(Default)]
struct Counts {
    probes: u64,
    probes_failed: u64,
    destinations_refused: u64,
}

/// The state of the thread.
pub(super) struct Work {
    pub(super) table: Table,
    pub(super) own: OwnRow,
    pub(super) exchange: Exchange,
    /// The version above which the next row of this relay must be.
    floor: u64,
    /// The rows so far that had to be above that of another process.
    overtakings: u64,
    pub(super) links: Links,
    /// The links from which more is to be read: one link must not keep the others waiting.
    unread: Vec<usize>,
    probes: Probes,
    /// When the path to a member was measured last.
    probed: HashMap<MemberId, Instant>,
    /// The failed and the successful dials of the pools to a peer, as of the last tick.
    failures: HashMap<MemberName, (u64, u64)>,
    destinations: Destinations,
    names: Names,
    counts: Counts,
    pub(super) replan: Replan,
    /// Members that the last choice of routes left out.
    pub(super) left_out: u64,
    poller: Poller,
    mailbox: Arc<RowsMailbox>,
    pub(super) shared: Arc<Shared>,
    mailboxes: Vec<Arc<Mailbox>>,
    /// The setup that has been adopted.
    adopted: Option<Arc<Setup>>,
    pub(super) setup: Arc<Setup>,
    pub(super) mesh: Arc<Mesh>,
    tick_at: Instant,
    sample_at: Instant,
    pub(super) now: Instant,
    plain: Box<[u8]>,
    cipher: Box<[u8]>,
}

impl Work {
    fn run(mut self) {
        let mut reports = Vec::new();
        while !self.mailbox.is_stopped() {
            let wait = self.next().saturating_duration_since(Instant::now());
            if let Err(error) = self.poller.wait(Some(wait), &mut reports) {
                tracing::error!(%error, "measuring paths has stopped; restart the relay to measure again");
                return;
            }
            self.now = Instant::now();
            for &(token, ready) in &reports {
                self.on_event(token, ready);
            }
            for place in std::mem::take(&mut self.unread) {
                self.on_link(place, Readiness::DATA);
            }
            for measured in self.probes.expire(self.now) {
                self.on_measured(measured);
            }
            for message in self.mailbox.take() {
                self.on_message(message);
            }
            if self.now >= self.tick_at {
                self.tick_at = self.now + TICK;
                self.tick();
            }
            self.measure();
            self.tell();
            self.flush();
            self.replan();
        }
    }

    /// Returns the time at which there is something to do without an event.
    fn next(&self) -> Instant {
        if !self.unread.is_empty() {
            return self.now;
        }
        // A destination may be due and wait for others.
        let soon = self.now + Duration::from_millis(20);
        let others = [
            self.exchange.next(self.now),
            self.probes.next(),
            self.replan.next(self.now),
            self.destinations.next().map(|at| at.max(soon)),
        ];
        others
            .into_iter()
            .flatten()
            .fold(self.tick_at, Instant::min)
    }

    fn on_event(&mut self, token: u64, ready: Readiness) {
        let place = (token & 0xffff_ffff) as usize;
        match token & !0xffff_ffff {
            LINK => self.on_link(place, ready),
            PROBE => {
                if let Some(measured) = self.probes.finish(place, self.now) {
                    self.on_measured(measured);
                }
            }
            _ => {}
        }
    }

    fn on_message(&mut self, message: ToRows) {
        match message {
            ToRows::Link(link) => self.accept(*link),
            ToRows::Samples(samples) => samples.into_iter().for_each(|s| self.on_sample(s)),
            ToRows::Found(target, addrs) => self.names.found(&target, addrs),
            ToRows::Ask(question, reply) => {
                // The operator may have gone.
                let _ = reply.send(self.answer(&question));
            }
        }
    }

    fn tick(&mut self) {
        self.adopt();
        if self.shared.ordered() != Order::Run || !self.mesh.measure {
            // Others notice that this relay's links end, and that its port does.
            for place in self
                .links
                .all
                .iter()
                .map(|(place, _)| place)
                .collect::<Vec<_>>()
            {
                self.close(place);
            }
            self.probes.clear();
            self.measure_destinations(Vec::new());
            return;
        }
        if self.now >= self.sample_at {
            self.sample_at = self.now + SAMPLE_EVERY;
            for mailbox in &self.mailboxes {
                let _ = mailbox.post(Message::Sample);
            }
        }
        self.sample_links();
        self.notice_failed_dials();
        self.end_silent_links();
        self.make_links();
        self.probe_members();
        if !self.table.forget_old(self.now).is_empty() {
            self.routes_may_differ();
        }
        self.choose_destinations();
        self.publish();
    }

    /// Adopts the present configuration and list of members.
    fn adopt(&mut self) {
        let setup = self.shared.setup();
        if self
            .adopted
            .as_ref()
            .is_some_and(|before| Arc::ptr_eq(before, &setup))
        {
            return;
        }
        self.adopted = Some(setup.clone());
        let Some(mesh) = setup.mesh.clone() else {
            return;
        };
        self.table.adopt(&mesh.local.members);
        let others = mesh
            .local
            .members
            .iter()
            .filter(|m| m.name != mesh.local.name);
        // What the row says is what this relay does with a session.
        let passes = |name: &MemberName| mesh.leads_to(name);
        self.own
            .adopt(others.map(|m| (MemberId::of(&m.name), passes(&m.name))));
        let is_member = |name: &MemberName| mesh.local.members.by_name(name.as_str()).is_some();
        self.links.adopt(is_member);
        let former = self
            .links
            .all
            .iter()
            .filter(|(_, link)| !is_member(&link.peer));
        let former: Vec<_> = former.map(|(place, _)| place).collect();
        (self.setup, self.mesh) = (setup, mesh);
        for place in former {
            self.close(place);
        }
        self.routes_may_differ();
    }

    // === links ===

    /// Makes the links that this relay should have and has not.
    fn make_links(&mut self) {
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

    fn options(&self) -> LegOptions {
        LegOptions {
            user_timeout: Some(USER_TIMEOUT),
            ..LegOptions::new(self.mesh.upstream.keepalive)
        }
    }

    fn address_of(&mut self, member: &Member) -> Option<SocketAddr> {
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
    fn add(&mut self, link: Link) -> Option<usize> {
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
    fn accept(&mut self, link: RowLink) {
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

    fn on_link(&mut self, place: usize, ready: Readiness) {
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

    fn open_if_ready(&mut self, place: usize) {
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

    fn on_frames(&mut self, place: usize, bytes: &[u8]) {
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

    fn on_received(&mut self, what: Received) {
        match what {
            Received::News(_) => self.routes_may_differ(),
            Received::Own(version) => self.floor = self.floor.max(version),
            Received::Rtt(_) => {}
            Received::Refused(fault) => tracing::debug!(%fault, "a row was not accepted"),
        }
    }

    /// Ends a link that has failed, and finds out whether its relay still works.
    fn lose(&mut self, place: usize, error: Errno) {
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

    fn close(&mut self, place: usize) {
        if let Some(link) = self.links.all.try_remove(place) {
            if let Some(number) = link.link() {
                self.exchange.close(number);
            }
            link.stream.abort();
        }
    }

    fn end_silent_links(&mut self) {
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
    fn flush(&mut self) {
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

    // === measuring ===

    /// Reads what the kernel has measured of the links.
    fn sample_links(&mut self) {
        for (_, link) in &mut self.links.all {
            let Some(info) = link.link().and_then(|_| link.stream.info().ok()) else {
                continue;
            };
            let (Some(smoothed), least) = (info.rtt, info.min_rtt) else {
                continue;
            };
            let least = least.unwrap_or(smoothed);
            self.own.sample(link.id, least, smoothed, self.now);
            let segments = (info.segs_out.unwrap_or(0), info.total_retrans);
            let (sent, lost) = (segments.0 - link.counted.0, segments.1 - link.counted.1);
            link.counted = segments;
            self.own.segments(link.id, sent, lost, self.now);
            self.own.set_down(link.id, false);
        }
    }

    fn on_sample(&mut self, sample: PathSample) {
        let PathSample {
            path,
            least,
            smoothed,
            segments,
        } = sample;
        match path {
            SampledPath::Peer(name) => {
                let id = MemberId::of(&name);
                self.own.sample(id, least, smoothed, self.now);
                self.own.segments(id, segments.0, segments.1, self.now);
            }
            SampledPath::Outside(ip) => {
                let key = Key::prefix(ip);
                self.own
                    .sample_outside(key, least, smoothed, segments, self.now);
            }
        }
    }

    /// Measures the paths to members of which nothing has been heard for a while.
    fn probe_members(&mut self) {
        let mesh = self.mesh.clone();
        let n = u32::try_from(mesh.local.members.iter().len()).unwrap_or(u32::MAX);
        let interval = PROBE_EVERY.max(PROBE_EACH.saturating_mul(n));
        let mut begun = 0;
        for member in mesh.local.members.iter() {
            let id = MemberId::of(&member.name);
            if member.name == mesh.local.name || member.addresses.is_empty() {
                continue;
            }
            let every = match self.own.is_down(id) {
                true => RETRY_EVERY,
                false => interval,
            };
            let since = |at: Instant| self.now.saturating_duration_since(at);
            let recent = self.probed.get(&id).is_some_and(|at| since(*at) < every);
            let measured = !self.own.is_down(id)
                && self.own.idle(id, self.now).is_some_and(|idle| idle < every);
            if recent || measured || self.links.to(&member.name).is_some() {
                continue;
            }
            if begun >= PROBES_A_TICK {
                break;
            }
            begun += 1;
            self.probe(member);
        }
    }

    /// Measures the path to a member, unless that is under way.
    fn probe(&mut self, member: &Member) {
        let what = What::Member(MemberId::of(&member.name));
        if !self.probes.has_room() || self.probes.measures(what) {
            return;
        }
        self.probed.insert(MemberId::of(&member.name), self.now);
        if let Some(to) = self.address_of(member) {
            self.begin(what, to);
        }
    }

    fn begin(&mut self, what: What, to: SocketAddr) {
        self.counts.probes += 1;
        let options = self.options();
        let token = |place: usize| PROBE | place as u64;
        let begun = self
            .probes
            .begin(what, to, &options, &self.poller, token, self.now);
        if let Err(error) = begun {
            self.on_measured(Measured {
                what,
                outcome: Err(error),
            });
        }
    }

    fn on_measured(&mut self, measured: Measured) {
        match (measured.what, measured.outcome) {
            (What::Member(id), Ok((rtt, repeated))) => {
                self.own.sample(id, rtt, rtt, self.now);
                self.own.segments(id, 1 + repeated, repeated, self.now);
                self.set_down(id, false);
            }
            (What::Member(id), Err(error)) => {
                self.counts.probes_failed += 1;
                if !is_of_this_machine(error) {
                    self.set_down(id, true);
                }
            }
            // One that was withdrawn while its measurement was under way must not come back.
            (What::Destination(key), Ok((rtt, repeated))) => {
                if self.destinations.answered(key) {
                    let segments = (1 + repeated, repeated);
                    self.own.sample_outside(key, rtt, rtt, segments, self.now);
                }
            }
            (What::Destination(key), Err(error)) => {
                self.counts.probes_failed += 1;
                if !is_of_this_machine(error) && self.destinations.failed(key) {
                    self.own.forget(key);
                }
            }
        }
    }

    fn set_down(&mut self, id: MemberId, down: bool) {
        if self.own.is_down(id) != down {
            self.own.set_down(id, down);
            self.routes_may_differ();
        }
    }

    /// Measures peers to which the pools' dials have begun to fail.
    fn notice_failed_dials(&mut self) {
        for peer in self.mesh.peers.clone() {
            let failed = (0..crate::outcome::peer::PeerFailure::ALL.len())
                .map(|i| peer.stats.sum(|c| &c.failed[i]))
                .sum::<u64>();
            let dialled = peer.stats.sum(|c| &c.dialled);
            let before = self.failures.insert(peer.name.clone(), (failed, dialled));
            let Some((failed_before, dialled_before)) = before else {
                continue;
            };
            if failed > failed_before
                && dialled == dialled_before
                && let Some(member) = self.mesh.local.members.by_name(peer.name.as_str()).cloned()
            {
                self.probe(&member);
            }
        }
    }

    /// Decides which destinations this relay measures: those that its own automatic routes lead to directly,
    /// and those that other relays ask for and may reach through this one.
    fn choose_destinations(&mut self) {
        let mesh = self.mesh.clone();
        let by_member = !mesh.rules.is_empty();
        let autos = self.setup.autos();
        let name = &mesh.local.name;
        let direct = autos.iter().filter(|auto| auto.direct);
        let direct = direct.map(|auto| auto.route.destination.clone());
        let asked = self.table.rows().filter(|(of, _)| *of != name);
        let asked = asked.flat_map(|(of, row)| {
            let targets = row.wanted.iter();
            targets.map(move |target| (of.clone(), target.clone()))
        });
        let (mailbox, now) = (self.mailbox.clone(), self.now);
        let (wanted, refused) = to_measure(
            name,
            direct.collect(),
            asked.collect(),
            by_member,
            |of| mesh.access_of(of),
            |target| self.names.of(target, &mailbox, now),
        );
        self.counts.destinations_refused = refused;
        self.measure_destinations(wanted);
        let targets = autos
            .iter()
            .map(|auto| auto.route.destination.clone())
            .collect();
        self.own.set_destinations(targets, by_member);
    }

    /// Measures these destinations and no others.
    fn measure_destinations(&mut self, wanted: Vec<(Key, SocketAddr)>) {
        for key in self.destinations.adopt(wanted, self.now) {
            self.own.forget(key);
        }
    }

    /// Sends the SYNs that are due to destinations.
    fn measure(&mut self) {
        for (key, addr) in self.destinations.due(self.now) {
            if self.probes.has_room() {
                self.begin(What::Destination(key), addr);
            }
        }
    }

    // === telling ===

    /// Signs this relay's row if it has changed enough, and gives it to the links.
    fn tell(&mut self) {
        if self.adopted.is_none() || !self.mesh.measure {
            return;
        }
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let wall = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        let Some(row) = self.own.poll(wall, self.floor, self.now) else {
            return;
        };
        let overtakings = self.own.overtakings();
        if overtakings > self.overtakings {
            self.overtakings = overtakings;
            // The first ones may be of this relay before a restart, or of the process that took over from it.
            if overtakings >= 4 && overtakings.is_power_of_two() {
                tracing::warn!(
                    "{overtakings} times another process has announced paths with this relay's key; give every \
                     relay a key of its own"
                );
            }
        }
        let name = &self.mesh.local.name;
        self.table.publish(row.sign(name, &self.mesh.key), self.now);
        self.exchange.changed(MemberId::of(name), &self.table);
        self.routes_may_differ();
        self.publish();
    }

    /// Publishes figures for metrics.
    fn publish(&self) {
        let own = self.table.row(MemberId::of(&self.mesh.local.name));
        let entries = own.into_iter().flat_map(|row| &row.members);
        let peers = entries.filter_map(|entry| {
            let name = self.table.name(entry.id)?.clone();
            let figure = entry.figure;
            Some(PeerFigure { name, figure })
        });
        let mut peers: Vec<_> = peers.collect();
        peers.sort_by(|a, b| a.name.cmp(&b.name));
        self.mailbox.publish(Published {
            peers,
            traffic: self.exchange.traffic(),
            rows: self.table.rows().count() as u64,
            bytes: self.table.bytes() as u64,
            links: self
                .links
                .all
                .iter()
                .filter(|(_, l)| l.link().is_some())
                .count() as u64,
            probes: self.counts.probes,
            probes_failed: self.counts.probes_failed,
            destinations_refused: self.counts.destinations_refused,
            left_out: self.left_out,
        });
    }

    /// Has automatic routes chosen again.
    fn routes_may_differ(&mut self) {
        self.replan.is_due = true;
    }
}

/// Returns whether a measurement failed for a lack of resources here, which says nothing of the other end.
fn is_of_this_machine(error: Errno) -> bool {
    matches!(
        error,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::ADDRNOTAVAIL
    )
}
