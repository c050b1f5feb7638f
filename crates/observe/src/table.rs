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

    /// Returns the payload sent and received between the first sample and the last, in bytes.
    pub(crate) fn carried(&self) -> u64 {
        self.window().map_or(0, |window| {
            window.more(|info| info.bytes_acked) + window.more(|info| info.bytes_received)
        })
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
mod tests {
    use super::*;
    use crate::window::tests::sample;

    type Table = super::Table<u8>;
    type Tracked = super::Tracked<u8>;

    fn table(connections: usize) -> Table {
        Table::new(Retention {
            connections,
            samples: 3,
        })
    }

    fn scan(table: &mut Table, second: u64, cookies: &[u64]) -> Vec<u64> {
        table.begin(false);
        for &cookie in cookies {
            let mut connection = sample(0, |_| {}).connection;
            connection.cookie = cookie;
            table.add(&"-".into(), Duration::from_secs(second), connection);
        }
        let mut ended = Vec::new();
        table.end(|cookie, _| ended.push(cookie));
        ended.sort_unstable();
        ended
    }

    #[test]
    fn a_connection_that_a_scan_does_not_find_has_ended() {
        let mut table = table(10);
        assert!(scan(&mut table, 0, &[1, 2, 3]).is_empty());
        assert_eq!(scan(&mut table, 1, &[2, 4]), [1, 3]);
        let mut cookies: Vec<_> = table.iter().map(|(cookie, _)| cookie).collect();
        cookies.sort_unstable();
        assert_eq!(cookies, [2, 4]);
    }

    #[test]
    fn the_table_keeps_no_more_than_its_limits() {
        let mut table = table(2);
        for second in 0..10 {
            scan(&mut table, second, &[1, 2, 3]);
            assert_eq!((table.iter().count(), table.left_out()), (2, 1));
        }
        assert_eq!(table.get(1).unwrap().samples.len(), 3);
        assert_eq!(
            table.get(1).unwrap().window().unwrap().elapsed(),
            Duration::from_secs(2)
        );
        assert_eq!(
            table.get(1).unwrap().step().unwrap().elapsed(),
            Duration::from_secs(1)
        );
    }

    /// A connection that has been idle since the first second.
    fn silent(second: u64) -> Connection {
        let set = |info: &mut TcpInfo| {
            let since = Duration::from_secs(second);
            (info.last_data_sent, info.last_ack_recv) = (since, since);
            info.last_data_recv = since + Duration::from_secs(1);
            info.busy_time = Some(Duration::from_secs(7));
        };
        let mut connection = sample(0, set).connection;
        connection.cookie = 1;
        connection
    }

    #[test]
    fn an_unchanged_connection_has_the_samples_that_reading_gives() {
        let (mut unchanged, mut read) = (table(10), table(10));
        for second in 0..9 {
            let at = Duration::from_secs(second);
            let first = unchanged.begin(false).get() - second;
            read.begin(false);
            let since = NonZeroU64::new(first).unwrap();
            match second {
                0 => {
                    assert!(
                        !unchanged.reuse(&"-".into(), at, 1, since),
                        "it was never read"
                    );
                    unchanged.add(&"-".into(), at, silent(second));
                }
                _ => assert!(unchanged.reuse(&"-".into(), at, 1, since)),
            }
            // A second report in the same scan adds no sample.
            assert!(unchanged.reuse(&"-".into(), at, 1, since));
            read.add(&"-".into(), at, silent(second));
            let (one, other) = (unchanged.get(1).unwrap(), read.get(1).unwrap());
            assert_eq!(one.samples.all(), other.samples.all());
            assert_eq!(one.is_idle(), second > 0);
            for table in [&mut unchanged, &mut read] {
                table.end(|cookie, _| panic!("{cookie} has ended"));
            }
        }
        let number = unchanged.begin(false);
        let at = Duration::from_secs(9);
        assert!(
            !unchanged.reuse(&"-".into(), at, 1, number),
            "it has changed since"
        );
        unchanged.add(&"-".into(), at, silent(9));
        assert!(!unchanged.get(1).unwrap().is_idle());
    }

    #[test]
    fn a_value_is_derived_once_while_all_samples_are_alike() {
        let mut table = table(10);
        let at = Duration::from_secs;
        let first = table.begin(false);
        table.add(&"-".into(), at(0), silent(0));
        let derived = |table: &Table, value| table.get(1).unwrap().derived(|| value);
        assert_eq!(derived(&table, Some(1)), Some(1));
        assert_eq!(
            derived(&table, Some(2)),
            Some(2),
            "the connection has only one sample"
        );
        for second in 1..4 {
            table.end(|_, _| {});
            table.begin(false);
            assert!(table.reuse(&"-".into(), at(second), 1, first));
        }
        assert_eq!(derived(&table, None), None);
        assert_eq!(derived(&table, Some(3)), Some(3));
        assert_eq!(derived(&table, Some(4)), Some(3));
        table.end(|_, _| {});
        table.begin(false);
        table.add(&"-".into(), at(4), silent(4));
        assert_eq!(derived(&table, Some(5)), Some(5));
    }

    #[test]
    fn a_connection_that_may_exist_stays_unchanged() {
        let mut table = table(10);
        let netns: Arc<str> = "-".into();
        table.begin(false);
        for cookie in [1, 2, 3] {
            let mut connection = silent(0);
            connection.cookie = cookie;
            if cookie == 1 {
                // The peer's handshake is not complete.
                connection.info = None;
            }
            table.add(&netns, Duration::ZERO, connection);
        }
        table.end(|_, _| {});
        table.begin(false);
        table.keep_handshakes();
        table.keep(2);
        table.keep(9);
        assert_eq!(table.missing().count(), 1);
        let mut ended = Vec::new();
        table.end(|cookie, _| ended.push(cookie));
        assert_eq!(ended, [3]);
        assert_eq!(table.get(2).unwrap().samples.len(), 1);
    }

    #[test]
    fn a_connection_without_room_is_counted_while_unchanged_and_read_when_there_is_room() {
        let mut table = table(1);
        let netns: Arc<str> = "-".into();
        let connection = |cookie| {
            let mut connection = silent(0);
            connection.cookie = cookie;
            connection
        };
        let first = table.begin(false);
        table.add(&netns, Duration::ZERO, connection(1));
        table.add(&netns, Duration::ZERO, connection(2));
        assert_eq!(table.left_out(), 1);
        table.end(|_, _| {});
        table.begin(false);
        for _ in 0..2 {
            assert!(table.reuse(&netns, Duration::ZERO, 1, first));
            assert!(table.reuse(&netns, Duration::ZERO, 2, first));
        }
        assert_eq!(table.left_out(), 1);
        table.end(|_, _| {});
        // The connection has changed and is read; then the list contains it a second time.
        let number = table.begin(false);
        assert!(table.reuse(&netns, Duration::ZERO, 1, first));
        assert!(!table.reuse(&netns, Duration::ZERO, 2, number));
        for _ in 0..2 {
            table.add(&netns, Duration::ZERO, connection(2));
            assert_eq!(table.left_out(), 1);
        }
        assert!(table.reuse(&netns, Duration::ZERO, 2, number));
        assert_eq!(table.left_out(), 1);
        table.end(|_, _| {});
        table.begin(false);
        assert!(
            !table.reuse(&netns, Duration::ZERO, 2, first),
            "there is room"
        );
        table.add(&netns, Duration::ZERO, connection(2));
        table.end(|_, _| {});
        assert!(table.get(2).is_some() && table.skipped.is_empty());
    }

    #[test]
    fn a_scan_that_replaces_another_adds_one_sample_each() {
        let netns: Arc<str> = "-".into();
        let mut table = table(10);
        let at = Duration::from_secs;
        let of = |table: &mut Table, cookie, second| {
            let mut connection = silent(second);
            connection.cookie = cookie;
            table.add(&netns, at(second), connection);
        };
        let first = table.begin(false);
        for cookie in [1, 2, 3] {
            of(&mut table, cookie, 0);
        }
        table.end(|_, _| {});
        // The abandoned scan has found connection 1 unchanged and has read connections 2 and 3.
        table.begin(false);
        assert!(table.reuse(&"-".into(), at(1), 1, first));
        of(&mut table, 2, 1);
        of(&mut table, 3, 1);
        let again = table.begin(true);
        assert_eq!(table.missing().count(), 3);
        // Before the second attempt, connection 1 changes and connection 3 ends.
        assert!(!table.reuse(&"-".into(), at(2), 1, again));
        of(&mut table, 1, 2);
        assert!(table.reuse(&"-".into(), at(2), 2, first));
        assert_eq!(table.missing().count(), 1);
        let mut ended = Vec::new();
        table.end(|cookie, _| ended.push(cookie));
        assert_eq!(ended, [3]);
        let times = |cookie| {
            let samples = table.get(cookie).unwrap().samples.all();
            samples
                .iter()
                .map(|sample| sample.at.as_secs())
                .collect::<Vec<_>>()
        };
        assert_eq!((times(1), times(2)), (vec![0, 2], vec![0, 1]));
    }

    #[test]
    fn namespaces_are_those_in_which_the_last_scan_has_found_a_connection_kept_or_not() {
        let mut table = table(1);
        table.begin(false);
        table.skip(&"skipped".into(), 7);
        assert_eq!(table.begin(false).get(), 2);
        assert_eq!(
            table.namespaces(true),
            FxHashMap::from_iter([("skipped", false)])
        );
        let since = NonZeroU64::MIN;
        assert!(table.reuse(&"renamed".into(), Duration::ZERO, 7, since));
        table.begin(false);
        assert_eq!(
            table.namespaces(true),
            FxHashMap::from_iter([("renamed", false)])
        );
        assert!(table.namespaces(false).is_empty());
        table.begin(false);
        assert!(table.namespaces(true).is_empty());
    }

    #[test]
    fn a_skipped_connection_is_not_read_again_until_it_changes() {
        let mut table = table(10);
        let first = table.begin(false);
        table.skip(&"-".into(), 7);
        table.end(|_, _| {});
        for _ in 0..2 {
            table.begin(false);
            assert!(table.reuse(&"-".into(), Duration::ZERO, 7, first));
            table.end(|_, _| {});
            assert!(table.get(7).is_none());
        }
        let number = table.begin(false);
        assert!(!table.reuse(&"-".into(), Duration::ZERO, 7, number));
        let mut connection = silent(0);
        connection.cookie = 7;
        table.add(&"-".into(), Duration::ZERO, connection);
        assert!(table.reuse(&"-".into(), Duration::ZERO, 7, number));
        table.end(|_, _| {});
        assert!(table.get(7).is_some() && table.skipped.is_empty());
        // A skipped connection is forgotten once a scan does not find it.
        table.begin(false);
        table.skip(&"-".into(), 8);
        table.end(|_, _| {});
        table.begin(false);
        table.end(|_, _| {});
        assert!(table.skipped.is_empty());
    }

    #[test]
    fn ended_connections_take_no_room_from_new_ones() {
        let mut table = table(2);
        scan(&mut table, 0, &[1, 2]);
        assert_eq!(scan(&mut table, 1, &[3, 4]), [1, 2]);
        assert_eq!((table.iter().count(), table.left_out()), (2, 0));
    }

    #[test]
    fn a_connection_that_is_listed_twice_counts_once() {
        let mut table = table(10);
        scan(&mut table, 0, &[1, 1]);
        assert_eq!(table.get(1).unwrap().samples.len(), 1);
        assert!(table.get(1).unwrap().window().is_none());
    }

    #[test]
    fn an_end_that_the_kernel_has_cleared_changes_no_figure() {
        let of = |segs, acked| {
            sample(segs, |info| {
                info.segs_out = Some(segs as u32);
                info.bytes_acked = Some(acked);
            })
        };
        let acked = |tracked: &Tracked| tracked.last().info().unwrap().bytes_acked;
        let mut tracked = Tracked::only("-".into(), of(9, 700));
        let mut finish = |segs, acked| {
            let end = of(segs, acked);
            tracked.finish(end.at, Some(end.connection), None)
        };
        assert_eq!(finish(12, 900), Figures::End);
        assert_eq!(finish(0, 0), Figures::Scan);
        assert_eq!(acked(&tracked), Some(900));
    }
}
