//! The table of connections: the last samples of each.

mod samples;

use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};
use taut_sys::sock_diag::{Connection, SocketId, State};
use taut_sys::tcp_info::TcpInfo;

use self::samples::Samples;
use crate::ended::EndCounts;
use crate::window::{Sample, Window};

/// The limits of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The maximum number of connections; others are only counted.
    pub connections: usize,
    /// The maximum number of samples of each connection.
    pub samples: usize,
}

/// The connections of the last scan, with their samples. `M` is the type of the value that the
/// table's user derives from a connection's samples.
#[derive(Debug)]
pub struct Table<M: Copy> {
    keep: Retention,
    tracked: FxHashMap<u64, Tracked<M>>,
    /// Connections that are not kept, by cookie.
    skipped: FxHashMap<u64, Skipped>,
    /// The names of the namespaces in which this scan, and the last one, have found connections.
    found_in: FxHashSet<Arc<str>>,
    found_in_before: FxHashSet<Arc<str>>,
    scan: u64,
    /// The scan that this one replaces.
    replaces: Option<u64>,
    /// Connections that this scan has found.
    found: usize,
    left_out: usize,
}

/// A connection that is not kept.
#[derive(Clone, Copy, Debug)]
struct Skipped {
    /// The last scan that read it.
    read: u64,
    /// The last scan that found it.
    scan: u64,
    /// The filter matches it, but the table is full.
    is_left_out: bool,
}

/// The maximum number of skipped connections to remember, so that a scan does not read them again.
const SKIPPED: usize = 1_000_000;

/// A connection of the table.
#[derive(Debug)]
pub struct Tracked<M: Copy> {
    /// The name of its network namespace.
    pub netns: Arc<str>,
    id: SocketId,
    samples: Samples,
    /// The last scan that found it.
    scan: u64,
    /// The last scan that read it.
    read: u64,
    /// Number of scans since then, all of which found it unchanged.
    unchanged: usize,
    /// The value that [`Tracked::derived`] derived from identical samples. Valid until the
    /// connection is read again.
    memo: Cell<Option<M>>,
}

/// Where the figures of an ended connection are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figures {
    /// All are from the kernel's report of the end.
    End,
    /// The counts of bytes, of data segments and of retransmitted segments are those at the end. All
    /// others are from the last scan that found the connection.
    Counts,
    /// All are from the last scan that found the connection.
    Scan,
}

// === impl Table ===

impl<M: Copy> Table<M> {
    /// Returns an empty table.
    pub fn new(keep: Retention) -> Self {
        Self {
            keep,
            tracked: FxHashMap::default(),
            skipped: FxHashMap::default(),
            found_in: FxHashSet::default(),
            found_in_before: FxHashSet::default(),
            scan: 0,
            replaces: None,
            found: 0,
            left_out: 0,
        }
    }

    /// Returns the limits of the table.
    pub fn retention(&self) -> Retention {
        self.keep
    }

    /// Begins a scan and returns its number. `again`: the scan replaces the last one.
    pub fn begin(&mut self, again: bool) -> NonZeroU64 {
        self.replaces = again.then_some(self.scan);
        if !again {
            self.found_in_before = std::mem::take(&mut self.found_in);
        }
        self.scan += 1;
        self.found = 0;
        self.left_out = 0;
        NonZeroU64::new(self.scan).unwrap_or(NonZeroU64::MIN)
    }

    /// Repeats the last sample of a connection that has not changed since scan `since`. Returns
    /// `false` if the table has no sample that recent, so that the connection must be read.
    pub fn reuse(
        &mut self,
        netns: &Arc<str>,
        at: Duration,
        cookie: u64,
        since: NonZeroU64,
    ) -> bool {
        self.note(netns);
        if let Some(skipped) = self.skipped.get_mut(&cookie) {
            let has_room = self.found < self.keep.connections;
            let is_known = skipped.read >= since.get() && !(skipped.is_left_out && has_room);
            if is_known && skipped.scan != self.scan {
                self.left_out += usize::from(skipped.is_left_out);
                skipped.scan = self.scan;
            }
            return is_known;
        }
        let Some(tracked) = self.tracked.get_mut(&cookie) else {
            return false;
        };
        if tracked.read < since.get() {
            return false;
        }
        if tracked.scan != self.scan {
            // The replaced scan may have added the sample already.
            let has_sample = self.replaces == Some(tracked.scan);
            tracked.scan = self.scan;
            self.found += 1;
            if !has_sample {
                tracked.set_netns(netns);
                tracked.samples.repeat_last(at, self.keep.samples);
                tracked.unchanged += 1;
            }
        }
        true
    }

    /// Skips a connection in later scans until it changes.
    pub fn skip(&mut self, netns: &Arc<str>, cookie: u64) {
        self.note(netns);
        self.set_skipped(cookie, false);
    }

    /// Notes that a namespace has a connection.
    fn note(&mut self, netns: &Arc<str>) {
        if !self.found_in.contains(netns) {
            self.found_in.insert(netns.clone());
        }
    }

    fn set_skipped(&mut self, cookie: u64, is_left_out: bool) {
        let has_room = self.skipped.len() < SKIPPED;
        let skipped = Skipped {
            read: self.scan,
            scan: self.scan,
            is_left_out,
        };
        match self.skipped.entry(cookie) {
            Entry::Vacant(_) if !has_room => {}
            entry => drop(entry.insert_entry(skipped)),
        }
    }

    /// Keeps connections whose handshake is not complete. Only a walk lists handshakes, so
    /// their absence from a quick scan means nothing.
    pub fn keep_handshakes(&mut self) {
        for tracked in self.tracked.values_mut() {
            if tracked.scan != self.scan && tracked.last().info().is_none() {
                tracked.scan = self.scan;
                self.found += 1;
            }
        }
    }

    /// Returns the names of the namespaces with connections, and whether there is a handshake that is not complete
    /// among them. `also_skipped`: also with connections that are not kept.
    pub fn namespaces(&self, also_skipped: bool) -> FxHashMap<&str, bool> {
        let found = self.found_in_before.iter().filter(|_| also_skipped);
        let mut all: FxHashMap<&str, bool> = found.map(|netns| (&**netns, false)).collect();
        for tracked in self.tracked.values() {
            *all.entry(&*tracked.netns).or_default() |= tracked.last().info().is_none();
        }
        all
    }

    /// Keeps a connection that may still exist.
    pub fn keep(&mut self, cookie: u64) {
        if let Some(tracked) = self.tracked.get_mut(&cookie)
            && tracked.scan != self.scan
        {
            tracked.scan = self.scan;
            self.found += 1;
        }
    }

    /// Adds a sample. `at`: the time since the observation began.
    pub fn add(&mut self, netns: &Arc<str>, at: Duration, mut connection: Connection) {
        self.note(netns);
        let cookie = connection.cookie;
        let skipped = self.skipped.remove(&cookie);
        // Connections that have ended do not count: they are removed at the end of the scan.
        let room = self.found < self.keep.connections;
        let tracked = match self.tracked.entry(cookie) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if !room => {
                // A connection that was listed twice, or read after it was found unchanged, is
                // counted already.
                let is_counted =
                    |skipped: Skipped| skipped.is_left_out && skipped.scan == self.scan;
                self.left_out += usize::from(!skipped.is_some_and(is_counted));
                self.set_skipped(cookie, true);
                return;
            }
            Entry::Vacant(entry) => entry.insert(Tracked {
                netns: netns.clone(),
                id: connection.id(),
                samples: Samples::with_room(self.keep.samples),
                scan: 0,
                read: 0,
                unchanged: 0,
                memo: Cell::new(None),
            }),
        };
        // A list may contain a connection twice if others open and close meanwhile.
        if tracked.scan == self.scan {
            return;
        }
        if self.replaces == Some(tracked.scan) {
            tracked.samples.pop();
        }
        // If the BPF list missed the connection and sock_diag found it, the internals of the last
        // scan still apply.
        if connection.internals.is_none()
            && let Some(last) = tracked.samples.last()
        {
            connection.internals = last.connection.internals;
        }
        tracked.id = connection.id();
        (tracked.scan, tracked.read) = (self.scan, self.scan);
        self.found += 1;
        tracked.unchanged = 0;
        tracked.memo.set(None);
        tracked.set_netns(netns);
        let sample = Sample { at, connection };
        tracked.samples.push(sample, self.keep.samples);
    }

    /// Returns the connections of the last scan that this scan has not found.
    pub fn missing(&self) -> impl Iterator<Item = &Tracked<M>> {
        let tracked = self.tracked.values();
        tracked.filter(|tracked| tracked.scan != self.scan)
    }

    /// Ends the scan. Removes the connections that it did not find and passes them to `ended`.
    pub fn end(&mut self, mut ended: impl FnMut(u64, Tracked<M>)) {
        let scan = self.scan;
        self.skipped.retain(|_, skipped| skipped.scan == scan);
        for (cookie, tracked) in self.tracked.extract_if(|_, tracked| tracked.scan != scan) {
            ended(cookie, tracked);
        }
    }

    /// Removes the connection with this cookie.
    pub fn take(&mut self, cookie: u64) -> Option<Tracked<M>> {
        self.tracked.remove(&cookie)
    }

    /// Returns the connections of the last scan, by cookie.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Tracked<M>)> {
        self.tracked
            .iter()
            .map(|(&cookie, tracked)| (cookie, tracked))
    }

    /// Returns the connection with this cookie.
    pub fn get(&self, cookie: u64) -> Option<&Tracked<M>> {
        self.tracked.get(&cookie)
    }

    /// Returns the number of connections of the last scan that did not fit into the table.
    pub fn left_out(&self) -> usize {
        self.left_out
    }
}

/// Whether the kernel has not cleared `tcp_info` before it reported the end, as it does with
/// SO_LINGER of 0.
pub(crate) fn is_final(info: &TcpInfo) -> bool {
    info.segs_out != Some(0)
}

// === impl Tracked ===

impl<M: Copy> Tracked<M> {
    /// Returns a connection with one sample.
    pub fn only(netns: Arc<str>, sample: Sample) -> Self {
        let id = sample.connection.id();
        let mut samples = Samples::with_room(2);
        samples.push(sample, 2);
        Self {
            netns,
            id,
            samples,
            scan: 0,
            read: 0,
            unchanged: 0,
            memo: Cell::new(None),
        }
    }

    /// Sets the name of the namespace, which can change.
    fn set_netns(&mut self, netns: &Arc<str>) {
        if !Arc::ptr_eq(&self.netns, netns) {
            self.netns = netns.clone();
        }
    }

    /// Whether all samples are identical, except for elapsed times.
    pub fn is_idle(&self) -> bool {
        self.unchanged + 1 >= self.samples.len() && self.unchanged > 0
    }

    /// Returns the value that `derive` computes from the samples. Calls `derive` only once while
    /// all samples are identical.
    pub(crate) fn derived(&self, derive: impl FnOnce() -> Option<M>) -> Option<M> {
        if let Some(memo) = self.memo.get() {
            return Some(memo);
        }
        let derived = derive();
        if self.is_idle() {
            self.memo.set(derived);
        }
        derived
    }

    /// Whether the last scan found the connection unchanged.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.unchanged > 0
    }

    /// Returns the identity that sock_diag takes.
    pub fn id(&self) -> SocketId {
        self.id
    }

    /// Adds the sample of the connection's end, from the kernel's report and the counts of a BPF
    /// program, as far as there are any. What neither has keeps its last value.
    pub(crate) fn finish(
        &mut self,
        at: Duration,
        report: Option<Connection>,
        counts: Option<&EndCounts>,
    ) -> Figures {
        if report.is_none() && counts.is_none() {
            return Figures::Scan;
        }
        let mut sample = self.last().clone();
        sample.move_to(at.max(sample.at));
        sample.at = at;
        let connection = &mut sample.connection;
        connection.state = State::Closed;
        if let Some(report) = &report {
            connection.recv_queue = report.recv_queue;
            connection.send_queue = report.send_queue;
        }
        let reported = report.and_then(|report| report.info).filter(is_final);
        let figures = match (reported, counts, &mut connection.info) {
            (Some(reported), _, info) => {
                *info = Some(reported);
                Figures::End
            }
            (None, Some(counts), Some(info)) => {
                counts.update(info);
                Figures::Counts
            }
            (None, Some(_), None) => Figures::Counts,
            (None, None, _) => Figures::Scan,
        };
        self.samples.push(sample, usize::MAX);
        figures
    }

    /// Keeps only the last two samples, for a connection that has ended.
    pub(crate) fn shorten(&mut self) {
        self.samples.shorten(2);
    }

    /// Returns the last sample.
    pub fn last(&self) -> &Sample {
        self.samples
            .last()
            .expect("every constructor adds a sample")
    }

    /// Returns a window over all samples.
    pub fn window(&self) -> Option<Window<'_>> {
        Window::of(self.samples.range(0))
    }

    /// Returns a window over the last two samples.
    pub fn step(&self) -> Option<Window<'_>> {
        Window::of(self.samples.range(self.samples.len().saturating_sub(2)))
    }
}

#[cfg(test)]
mod tests;
