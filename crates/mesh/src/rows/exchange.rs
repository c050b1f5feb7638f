//! Decides which rows a relay sends on which link, and when.
//!
//! A link begins with a summary from each end: the versions of the rows that it has. From then on
//! each end sends the rows that the other lacks, as they come, and remembers what the other has.
//! All links share one rate. What does not fit waits, and a row that waits is sent in its newest
//! version. Rows of a member that has taken more than its share of the rate wait behind those of
//! others ([`super::shares`]).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::frame::{Frame, FrameError, Frames};
use super::key::MemberId;
use super::message::{MessageError, RowMessage};
use super::row::take;
use super::shares::Shares;
use super::table::{Learned, RowFault, Table};

/// The bytes that a relay sends a second on all links, TLS and TCP not counted.
pub const RATE: u32 = 8_000;

/// The bytes that it may send at once after a pause.
const BURST: f64 = 65_536.0;

/// The largest number of links, made and accepted.
pub const MAX_LINKS: usize = 64;

/// The interval of pings. Their answers carry the acknowledgements, so that the kernel measures the
/// path and not the delay of an acknowledgement (RFC 1122 section 4.2.3.2).
const PING_EVERY: Duration = Duration::from_secs(5);

/// The time without a byte after which the other end is taken to be gone.
const PATIENCE: Duration = Duration::from_secs(20);

/// The shortest time between two pings that are answered.
const PONG_EVERY: Duration = Duration::from_millis(500);

/// The rows without a true signature, or larger than their share, that a link may bring at once,
/// and the time in which one of them is forgiven. Each costs the check of a signature. Honest
/// relays send some while a list with other keys is being distributed.
const MAX_FALSE: u32 = 32;
const FORGIVEN_IN: Duration = Duration::from_secs(1);

/// The length of a summary's entry: an ID and a version.
const ENTRY: usize = 12;

/// A link, numbered in the order in which they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(u64);

/// Decides which rows are sent on each link.
#[derive(Debug)]
pub struct Exchange {
    links: BTreeMap<LinkId, Link>,
    next_id: u64,
    /// The link that is served next.
    turn: LinkId,
    /// The bytes that may be sent; less than 0 after a message that was longer.
    tokens: f64,
    filled: Instant,
    shares: Shares,
    traffic: Traffic,
}

/// The bytes sent and received on all links, without those of TLS and TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Rows sent, whole and changes.
    pub rows_sent: u64,
    /// Rows received that were news.
    pub news: u64,
    /// Rows received that were known.
    pub known: u64,
    /// Rows received and not accepted.
    pub refused: u64,
}

#[derive(Debug)]
struct Link {
    frames: Frames,
    /// The versions of rows that the other end has.
    known: HashMap<MemberId, u64>,
    /// The other end has said which rows it has.
    synced: bool,
    /// The rows that wait, each once.
    queue: VecDeque<MemberId>,
    queued: HashSet<MemberId>,
    /// The rows whose versions are told next; `None`: all.
    summary: Option<Summary>,
    pong: Option<[u8; 8]>,
    ponged: Option<Instant>,
    ping_at: Instant,
    ping: Option<([u8; 8], Instant)>,
    heard: Instant,
    /// The false rows that are not forgiven yet, as of `forgiven`.
    false_rows: u32,
    forgiven: Instant,
}

#[derive(Debug)]
enum Summary {
    All,
    Of(HashSet<MemberId>),
}

/// A result of bytes that have been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The row of this member is newer.
    News(MemberId),
    /// This relay's own row came back with this version: the next one needs a higher one.
    Own(u64),
    /// A ping has been answered after this time.
    Rtt(Duration),
    /// A row was not accepted.
    Refused(RowFault),
}

/// Why a link cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkFault {
    /// The bytes are not frames.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A message is not a row.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A summary is malformed.
    #[error("a summary of {0} bytes")]
    Summary(usize),
    /// Too many rows that their relays have not signed, or that are larger than their share.
    #[error("more than {MAX_FALSE} rows that are not signed by their relays or too large")]
    FalseRows,
}

// === impl Exchange ===

impl Exchange {
    /// Returns an exchange without links.
    pub fn new(now: Instant) -> Self {
        Self {
            links: BTreeMap::new(),
            next_id: 0,
            turn: LinkId(0),
            tokens: BURST,
            filled: now,
            shares: Shares::of(RATE),
            traffic: Traffic::default(),
        }
    }

    /// Adds a link to another relay, or returns `None` if there are [`MAX_LINKS`].
    pub fn open(&mut self, now: Instant) -> Option<LinkId> {
        if self.links.len() >= MAX_LINKS {
            return None;
        }
        let id = LinkId(self.next_id);
        self.next_id += 1;
        self.links.insert(id, Link::new(now));
        Some(id)
    }

    /// Removes a link.
    pub fn close(&mut self, link: LinkId) {
        self.links.remove(&link);
    }

    /// Returns what has been sent and received.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Returns the links on which nothing was heard for 20 seconds.
    pub fn silent(&self, now: Instant) -> Vec<LinkId> {
        let silent = |link: &Link| now.saturating_duration_since(link.heard) >= PATIENCE;
        let links = self.links.iter().filter(|(_, link)| silent(link));
        links.map(|(id, _)| *id).collect()
    }

    /// Processes bytes that have arrived on a link.
    ///
    /// # Errors
    /// [`LinkFault`]; close the link.
    pub fn receive(
        &mut self,
        id: LinkId,
        bytes: &[u8],
        now: Instant,
        table: &mut Table,
    ) -> Result<Vec<Received>, LinkFault> {
        let mut received = Vec::new();
        let Some(link) = self.links.get_mut(&id) else {
            return Ok(received);
        };
        self.traffic.received += bytes.len() as u64;
        link.heard = now;
        let mut frames = Vec::new();
        let whole = link.frames.receive(bytes, &mut frames);
        for frame in frames {
            let Some(link) = self.links.get_mut(&id) else {
                break;
            };
            match frame {
                Frame::Summary(entries) => link.on_summary(&entries, table)?,
                Frame::Ping(nonce) => link.on_ping(nonce, now),
                Frame::Pong(nonce) => received.extend(link.on_pong(nonce, now).map(Received::Rtt)),
                Frame::Row(message) => {
                    let message = RowMessage::decode(&message)?;
                    received.extend(self.on_row(id, message, now, table)?);
                }
            }
        }
        whole?;
        Ok(received)
    }

    fn on_row(
        &mut self,
        id: LinkId,
        message: RowMessage,
        now: Instant,
        table: &mut Table,
    ) -> Result<Option<Received>, LinkFault> {
        let (origin, version) = (message.origin, message.version());
        let learned = table.learn(message, now);
        let Some(link) = self.links.get_mut(&id) else {
            return Ok(None);
        };
        Ok(match learned {
            Ok(Learned::Old) => {
                self.traffic.known += 1;
                link.has(origin, version);
                None
            }
            Ok(Learned::Own(version)) => {
                link.has(origin, version);
                Some(Received::Own(version))
            }
            Ok(Learned::News) => {
                self.traffic.news += 1;
                link.has(origin, version);
                self.changed(origin, table);
                Some(Received::News(origin))
            }
            Err(fault) => {
                self.traffic.refused += 1;
                if fault.is_false() && !link.forgives(now) {
                    return Err(LinkFault::FalseRows);
                }
                if matches!(fault, RowFault::NoBase | RowFault::Changes) {
                    // The other end then sends the changes since the version that is here, or the
                    // whole row.
                    link.summarise(origin);
                }
                Some(Received::Refused(fault))
            }
        })
    }

    /// Sends the row of `origin`, which is new in the table, to the links that lack it.
    pub fn changed(&mut self, origin: MemberId, table: &Table) {
        let Some(version) = table.row(origin).map(|row| row.version) else {
            return;
        };
        for link in self.links.values_mut().filter(|link| link.synced) {
            link.want(origin, version);
        }
    }

    /// Returns the next bytes to send. Call it until it returns `None`.
    pub fn poll(&mut self, now: Instant, table: &Table) -> Option<(LinkId, Vec<u8>)> {
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + elapsed * f64::from(RATE)).min(BURST);
        self.filled = now;
        let may = self.tokens > 0.0;
        let (before, after): (Vec<_>, Vec<_>) = self.links.keys().partition(|id| **id < self.turn);
        let turns: Vec<_> = after.into_iter().chain(before).copied().collect();
        let (id, origin, frame) = self.next_frame(&turns, may, now, table)?;
        self.traffic.rows_sent += u64::from(origin.is_some());
        let bytes = frame.encode();
        if let Some(origin) = origin {
            self.shares.sent(origin, bytes.len(), now);
        }
        #[expect(clippy::cast_precision_loss, reason = "a frame is short")]
        let len = bytes.len() as f64;
        self.tokens -= len;
        self.traffic.sent += bytes.len() as u64;
        self.turn = LinkId(id.0 + 1);
        Some((id, bytes))
    }

    /// Returns the next frame of the first link of `turns` that has one, and the member whose row
    /// it brings.
    fn next_frame(
        &mut self,
        turns: &[LinkId],
        may: bool,
        now: Instant,
        table: &Table,
    ) -> Option<(LinkId, Option<MemberId>, Frame)> {
        let within_share = |origin| !self.shares.is_over(origin, now);
        for id in turns {
            let Some(link) = self.links.get_mut(id) else {
                continue;
            };
            // A delayed ping or answer would measure this relay.
            if let Some(frame) = link.next_urgent(now) {
                return Some((*id, None, frame));
            }
            if may && let Some((origin, frame)) = link.next_frame(now, table, within_share) {
                return Some((*id, origin, frame));
            }
        }
        let mut turns = turns.iter().filter(|_| may);
        turns.find_map(|id| {
            let (origin, frame) = self.links.get_mut(id)?.next_frame(now, table, |_| true)?;
            Some((*id, origin, frame))
        })
    }

    /// Returns when [`Exchange::poll`] has something to send even if nothing happens; `None`
    /// without links.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let ping = self.links.values().map(|link| link.ping_at).min()?;
        if !self.links.values().any(Link::waits) {
            return Some(ping);
        }
        let lacking = (-self.tokens).max(0.0) / f64::from(RATE);
        // Rounded up, so that the poll is not too early.
        Some(ping.min(now + Duration::from_secs_f64(lacking) + Duration::from_millis(1)))
    }
}

// === impl Link ===

impl Link {
    fn new(now: Instant) -> Self {
        Self {
            frames: Frames::default(),
            known: HashMap::new(),
            synced: false,
            queue: VecDeque::new(),
            queued: HashSet::new(),
            summary: Some(Summary::All),
            pong: None,
            ponged: None,
            ping_at: now,
            ping: None,
            heard: now,
            false_rows: 0,
            forgiven: now,
        }
    }

    /// Records a false row. Returns whether the link may go on.
    fn forgives(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.forgiven);
        let forgiven = u32::try_from(elapsed.as_secs() / FORGIVEN_IN.as_secs());
        let forgiven = forgiven.unwrap_or(u32::MAX);
        if forgiven > 0 {
            self.forgiven = now;
        }
        self.false_rows = self.false_rows.saturating_sub(forgiven) + 1;
        self.false_rows <= MAX_FALSE
    }

    fn on_summary(&mut self, entries: &[u8], table: &Table) -> Result<(), LinkFault> {
        if !entries.len().is_multiple_of(ENTRY) {
            return Err(LinkFault::Summary(entries.len()));
        }
        let first = !std::mem::replace(&mut self.synced, true);
        let mut rest = entries;
        let mut told = HashSet::new();
        while let (Some(id), Some(version)) = (take(&mut rest).map(MemberId), take(&mut rest)) {
            // Of strangers nothing is sent, and nothing must be remembered.
            if table.name(id).is_some() {
                self.known.insert(id, u64::from_be_bytes(version));
                told.insert(id);
            }
        }
        for (id, version) in table.versions() {
            if first || told.contains(&id) {
                self.want(id, version);
            }
        }
        Ok(())
    }

    fn on_ping(&mut self, nonce: [u8; 8], now: Instant) {
        let early = |at: Instant| now.saturating_duration_since(at) < PONG_EVERY;
        if !self.ponged.is_some_and(early) {
            self.pong = Some(nonce);
            self.ponged = Some(now);
        }
    }

    fn on_pong(&mut self, nonce: [u8; 8], now: Instant) -> Option<Duration> {
        let (_, sent) = self.ping.take_if(|(expected, _)| *expected == nonce)?;
        Some(now.saturating_duration_since(sent))
    }

    /// Records that the other end has this version of a row, or a newer one.
    fn has(&mut self, origin: MemberId, version: u64) {
        let known = self.known.entry(origin).or_default();
        *known = (*known).max(version);
    }

    /// Queues a row if the other end lacks this version.
    fn want(&mut self, origin: MemberId, version: u64) {
        let known = self.known.get(&origin).copied().unwrap_or(0);
        if known < version && self.queued.insert(origin) {
            self.queue.push_back(origin);
        }
    }

    /// Has the version of a row told.
    fn summarise(&mut self, origin: MemberId) {
        match &mut self.summary {
            Some(Summary::All) => {}
            Some(Summary::Of(ids)) => {
                ids.insert(origin);
            }
            None => self.summary = Some(Summary::Of([origin].into())),
        }
    }

    fn waits(&self) -> bool {
        self.pong.is_some() || self.summary.is_some() || !self.queue.is_empty()
    }

    fn next_urgent(&mut self, now: Instant) -> Option<Frame> {
        if let Some(nonce) = self.pong.take() {
            return Some(Frame::Pong(nonce));
        }
        if now < self.ping_at {
            return None;
        }
        self.ping_at = now + PING_EVERY;
        let before = self.ping.map_or(0, |(nonce, _)| u64::from_be_bytes(nonce));
        let nonce = before.wrapping_add(1).to_be_bytes();
        self.ping = Some((nonce, now));
        Some(Frame::Ping(nonce))
    }

    /// Returns the next summary, or the next row of a member that `may` have one sent, with that
    /// member.
    fn next_frame(
        &mut self,
        now: Instant,
        table: &Table,
        may: impl Fn(MemberId) -> bool,
    ) -> Option<(Option<MemberId>, Frame)> {
        if let Some(summary) = self.summary.take() {
            return Some((None, Frame::Summary(encode(&summary, table))));
        }
        while let Some(place) = self.queue.iter().position(|origin| may(*origin)) {
            let origin = self.queue.remove(place)?;
            self.queued.remove(&origin);
            let known = self.known.get(&origin).copied().unwrap_or(0);
            let newer = table.row(origin).is_some_and(|row| row.version > known);
            if let Some(message) = table.message(origin, known, now).filter(|_| newer) {
                self.known.insert(origin, message.version());
                return Some((Some(origin), Frame::Row(message.encode())));
            }
        }
        None
    }
}

fn encode(summary: &Summary, table: &Table) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut push = |id: MemberId, version: u64| {
        entries.extend_from_slice(&id.0);
        entries.extend_from_slice(&version.to_be_bytes());
    };
    match summary {
        Summary::All => table.versions().for_each(|(id, version)| push(id, version)),
        Summary::Of(ids) => {
            for id in ids {
                push(*id, table.row(*id).map_or(0, |row| row.version));
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests;
