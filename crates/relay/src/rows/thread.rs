//! The thread: waits for events, and carries out what the pure parts decide.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use taut_mesh::auto::Replan;
use taut_mesh::members::MemberName;
use taut_mesh::onward::Policy;
use taut_mesh::rows::{Exchange, MemberId, OwnRow, Table};
use taut_sys::epoll::{Interest, Poller, Readiness};

use super::addresses::FailedAddresses;
use super::destinations::MeasuredDestinations;
use super::links::Links;
use super::names::Names;
use super::probe::Probes;
use super::routes_file::RoutesFile;
use crate::forwarding::leg::CIPHER;
use crate::route::table::{Mesh, Setup};
use crate::rows_mailbox::{NameKind, PeerFigure, Published, RowsMailbox, ToRows};
use crate::worker::mailbox::{Mailbox, Message};
use crate::worker::{Order, Shared};

/// The interval of what is done without an event.
const TICK: Duration = Duration::from_secs(1);

/// The interval at which workers are asked for samples of their connections.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);

/// The memory to read through.
const PLAIN: usize = 64 << 10;

/// Kinds of tokens.
const WAKER: u64 = 0;
pub(super) const LINK: u64 = 1 << 32;
pub(super) const PROBE: u64 = 2 << 32;

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
    let mut table = Table::new(&mesh.local.name, &mesh.local.members);
    table.set_time(wall());
    let mut work = Work {
        table,
        own: OwnRow::default(),
        exchange: Exchange::new(now),
        floor: 0,
        overtakings: 0,
        links: Links::default(),
        unread: Vec::new(),
        probes: Probes::default(),
        probed: HashMap::new(),
        failed_probes: FailedAddresses::default(),
        failed_links: FailedAddresses::default(),
        failures: HashMap::new(),
        destinations: MeasuredDestinations::default(),
        member_names: Names::new(NameKind::Member),
        destination_names: Names::new(NameKind::Destination),
        counts: Counts::default(),
        replan: Replan::default(),
        started: now,
        routes_file: RoutesFile::new(now),
        left_out: 0,
        warn_at: now,
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
    // Before sessions come.
    work.recall();
    let thread = std::thread::Builder::new().name("relay-rows".into());
    thread.spawn(move || work.run()).map(Some)
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) probes: u64,
    pub(super) probes_failed: u64,
    pub(super) destinations_refused: u64,
}

/// The state of the thread.
pub(super) struct Work {
    pub(super) table: Table,
    pub(super) own: OwnRow,
    pub(super) exchange: Exchange,
    /// The version above which the next row of this relay must be.
    pub(super) floor: u64,
    /// [`OwnRow::overtakings`] at the last row.
    pub(super) overtakings: u64,
    pub(super) links: Links,
    /// The links with more to read, after those that have had their turn.
    pub(super) unread: Vec<usize>,
    pub(super) probes: Probes,
    /// When the path to a member was measured last.
    pub(super) probed: HashMap<MemberId, Instant>,
    /// The addresses of members that have not answered a measurement, and those to which no link
    /// could be made.
    pub(super) failed_probes: FailedAddresses,
    pub(super) failed_links: FailedAddresses,
    /// The failed and the successful dials of the pools to a peer, as of the last tick.
    pub(super) failures: HashMap<MemberName, (u64, u64)>,
    pub(super) destinations: MeasuredDestinations,
    pub(super) member_names: Names,
    pub(super) destination_names: Names,
    pub(super) counts: Counts,
    pub(super) replan: Replan,
    pub(super) started: Instant,
    pub(super) routes_file: RoutesFile,
    /// Members that the last choice of routes left out.
    pub(super) left_out: u64,
    /// When the operator may be warned of wrong clocks again.
    pub(super) warn_at: Instant,
    pub(super) poller: Poller,
    pub(super) mailbox: Arc<RowsMailbox>,
    pub(super) shared: Arc<Shared>,
    pub(super) mailboxes: Vec<Arc<Mailbox>>,
    /// The setup that has been adopted.
    pub(super) adopted: Option<Arc<Setup>>,
    pub(super) setup: Arc<Setup>,
    pub(super) mesh: Arc<Mesh>,
    pub(super) tick_at: Instant,
    pub(super) sample_at: Instant,
    pub(super) now: Instant,
    pub(super) plain: Box<[u8]>,
    pub(super) cipher: Box<[u8]>,
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
        self.save_routes(true);
    }

    /// Returns when the thread has something to do even without an event.
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
            ToRows::Found(kind, target, addrs) => {
                let names = match kind {
                    NameKind::Member => &mut self.member_names,
                    NameKind::Destination => &mut self.destination_names,
                };
                names.found(&target, addrs);
            }
            ToRows::Ask(question, reply) => {
                // The operator may have gone.
                let _ = reply.send(self.answer(&question));
            }
        }
    }

    fn tick(&mut self) {
        self.adopt();
        if self.shared.ordered() != Order::Run || !self.mesh.measure {
            // Other relays notice that the links and the port of this one close.
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
        self.table.set_time(wall());
        self.save_routes(false);
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
        // The row tells others to which members this relay passes sessions on.
        let passes = |name: &MemberName| mesh.leads_to(name);
        self.own
            .adopt(others.map(|m| (MemberId::of(&m.name), passes(&m.name))));
        let is_member = |name: &MemberName| mesh.local.members.by_name(name.as_str()).is_some();
        self.links.adopt(is_member);
        let is_known = |id: MemberId| self.table.name(id).is_some();
        self.failed_probes.adopt(is_known);
        self.failed_links.adopt(is_known);
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

    // === publishing ===

    /// Signs this relay's row if it has changed enough, and gives it to the links.
    fn tell(&mut self) {
        if self.adopted.is_none() || !self.mesh.measure {
            return;
        }
        let Some(row) = self.own.poll(wall(), self.floor, self.now) else {
            return;
        };
        let overtakings = self.own.overtakings();
        if overtakings > self.overtakings {
            self.overtakings = overtakings;
            // The first ones may come from this relay before a restart, or from the process that
            // takes over from it.
            if overtakings >= 4 && overtakings.is_power_of_two() {
                tracing::warn!(
                    "another process announces paths with this relay's key ({overtakings} times so far); give each \
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
    pub(super) fn routes_may_differ(&mut self) {
        self.replan.is_due = true;
    }
}

/// Returns the milliseconds since 1970.
fn wall() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(wall.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}
