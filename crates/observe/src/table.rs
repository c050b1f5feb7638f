//! What is known of all connections, look after look.

use std::cell::Cell;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;
use taut_sys::sock_diag::{Connection, SocketId};
use taut_sys::tcp_info::TcpInfo;

use crate::window::{Sample, Window};

/// A look at a connection, at most; they are kept in rooms of powers of two.
const SAMPLE_BYTES: usize = 896;
const _: () = assert!(size_of::<Sample>() <= SAMPLE_BYTES);

/// What is kept of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Connections; more are counted.
    pub connections: usize,
    /// Looks at each.
    pub samples: usize,
}

/// The connections of the last look, with what was seen of them before. `M`: what its user derives from each.
#[derive(Debug)]
pub struct Table<M: Copy> {
    keep: Keep,
    tracked: FxHashMap<u64, Tracked<M>>,
    /// Those that are not kept.
    aside: FxHashMap<u64, Aside>,
    look: u64,
    /// The look of which this one takes the place.
    instead: Option<u64>,
    seen: usize,
    left_out: usize,
}

/// One that is not kept.
#[derive(Clone, Copy, Debug)]
struct Aside {
    /// The look in which it was read.
    read: u64,
    /// The last look that found it.
    look: u64,
    /// It is meant, and there is no room for it.
    is_left_out: bool,
}

/// Those that are not kept of which something is known, at most.
const ASIDE: usize = 1_000_000;

/// A connection.
#[derive(Debug)]
pub struct Tracked<M: Copy> {
    /// Its namespace's name.
    pub netns: Arc<str>,
    id: SocketId,
    samples: VecDeque<Sample>,
    /// The last look that found it.
    look: u64,
    /// The last look in which all of it was read.
    read: u64,
    /// Looks since then: all of them found it as it was.
    rested: usize,
    /// What [`Tracked::derived`] derived from samples that are all alike; it holds until the connection is read again.
    memo: Cell<Option<M>>,
}

/// Looks for which there is room from the beginning on, at most.
const ROOM: usize = 8;

// === impl Table ===

impl<M: Copy> Table<M> {
    /// Empty.
    pub fn new(keep: Keep) -> Self {
        Self {
            keep,
            tracked: FxHashMap::default(),
            aside: FxHashMap::default(),
            look: 0,
            instead: None,
            seen: 0,
            left_out: 0,
        }
    }

    /// A look begins: its number. `again`: it takes the place of the last.
    pub fn begin(&mut self, again: bool) -> NonZeroU64 {
        self.instead = again.then_some(self.look);
        self.look += 1;
        self.seen = 0;
        self.left_out = 0;
        NonZeroU64::new(self.look).unwrap_or(NonZeroU64::MIN)
    }

    /// It is as it was in the look of that number and in all since. `false`: it was not seen then.
    pub fn rests(
        &mut self,
        netns: &Arc<str>,
        at: Duration,
        cookie: u64,
        since: NonZeroU64,
    ) -> bool {
        if let Some(aside) = self.aside.get_mut(&cookie) {
            let has_room = self.seen < self.keep.connections;
            let is_known = aside.read >= since.get() && !(aside.is_left_out && has_room);
            if is_known && aside.look != self.look {
                self.left_out += usize::from(aside.is_left_out);
                aside.look = self.look;
            }
            return is_known;
        }
        let Some(tracked) = self.tracked.get_mut(&cookie) else {
            return false;
        };
        if tracked.read < since.get() {
            return false;
        }
        if tracked.look != self.look {
            // It has its sample of this look if that was begun before.
            let has_sample = self.instead == Some(tracked.look);
            tracked.look = self.look;
            self.seen += 1;
            if !has_sample {
                tracked.is_in(netns);
                tracked.rest(at, self.keep);
            }
        }
        true
    }

    /// It is not kept, whatever happens while it is as it is now.
    pub fn put_aside(&mut self, cookie: u64) {
        self.set_aside(cookie, false);
    }

    fn set_aside(&mut self, cookie: u64, is_left_out: bool) {
        let has_room = self.aside.len() < ASIDE;
        let aside = Aside {
            read: self.look,
            look: self.look,
            is_left_out,
        };
        match self.aside.entry(cookie) {
            Entry::Vacant(_) if !has_room => {}
            entry => drop(entry.insert_entry(aside)),
        }
    }

    /// Those that are being made are there until a look that would find them does not.
    pub fn keep_handshakes(&mut self) {
        for tracked in self.tracked.values_mut() {
            if tracked.look != self.look && tracked.last().info().is_none() {
                tracked.look = self.look;
                self.seen += 1;
            }
        }
    }

    /// It is not known whether it is there: it stays as it is.
    pub fn keep(&mut self, cookie: u64) {
        if let Some(tracked) = self.tracked.get_mut(&cookie)
            && tracked.look != self.look
        {
            tracked.look = self.look;
            self.seen += 1;
        }
    }

    /// A connection was seen, so long after the observation began.
    pub fn see(&mut self, netns: &Arc<str>, at: Duration, mut connection: Connection) {
        let cookie = connection.cookie;
        let aside = self.aside.remove(&cookie);
        // What has ended meanwhile takes no room: it goes at the end of the look.
        let room = self.seen < self.keep.connections;
        let tracked = match self.tracked.entry(cookie) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if !room => {
                // Listed twice, or read after it was found at rest: it has been counted.
                let is_counted = |aside: Aside| aside.is_left_out && aside.look == self.look;
                self.left_out += usize::from(!aside.is_some_and(is_counted));
                self.set_aside(cookie, true);
                return;
            }
            Entry::Vacant(entry) => entry.insert(Tracked {
                netns: netns.clone(),
                id: connection.id(),
                samples: VecDeque::with_capacity(self.keep.samples.min(ROOM)),
                look: 0,
                read: 0,
                rested: 0,
                memo: Cell::new(None),
            }),
        };
        // A list may have a connection twice when others come and go meanwhile.
        if tracked.look == self.look {
            return;
        }
        if self.instead == Some(tracked.look) {
            tracked.samples.pop_back();
        }
        // What this look's programs left out was asked for by name, and they told of it before.
        if connection.internals.is_none()
            && let Some(last) = tracked.samples.back()
        {
            connection.internals = last.connection.internals;
        }
        tracked.id = connection.id();
        (tracked.look, tracked.read) = (self.look, self.look);
        self.seen += 1;
        tracked.rested = 0;
        tracked.memo.set(None);
        tracked.is_in(netns);
        tracked.push(Sample { at, connection }, self.keep);
    }

    /// Those of the last look that this one has not found.
    pub fn missing(&self) -> impl Iterator<Item = &Tracked<M>> {
        let tracked = self.tracked.values();
        tracked.filter(|tracked| tracked.look != self.look)
    }

    /// The look is over: what was not seen in it has ended, and is handed over.
    pub fn end(&mut self, mut ended: impl FnMut(u64, Tracked<M>)) {
        let look = self.look;
        self.aside.retain(|_, aside| aside.look == look);
        for (cookie, tracked) in self.tracked.extract_if(|_, tracked| tracked.look != look) {
            ended(cookie, tracked);
        }
    }

    /// Takes the one of this cookie out: it has ended.
    pub fn take(&mut self, cookie: u64) -> Option<Tracked<M>> {
        self.tracked.remove(&cookie)
    }

    /// Connections of the last look, by cookie.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Tracked<M>)> {
        self.tracked
            .iter()
            .map(|(&cookie, tracked)| (cookie, tracked))
    }

    /// The one of this cookie.
    pub fn get(&self, cookie: u64) -> Option<&Tracked<M>> {
        self.tracked.get(&cookie)
    }

    /// Connections of the last look for which there was no room.
    pub fn left_out(&self) -> usize {
        self.left_out
    }
}

// === impl Tracked ===

impl<M: Copy> Tracked<M> {
    /// One that was seen once.
    pub fn only(netns: Arc<str>, sample: Sample) -> Self {
        Self {
            netns,
            id: sample.connection.id(),
            samples: VecDeque::from([sample]),
            look: 0,
            read: 0,
            rested: 0,
            memo: Cell::new(None),
        }
    }

    /// Its namespace may have another name now.
    fn is_in(&mut self, netns: &Arc<str>) {
        if !Arc::ptr_eq(&self.netns, netns) {
            self.netns = netns.clone();
        }
    }

    /// It is as it was at the last look.
    fn rest(&mut self, at: Duration, keep: Keep) {
        if self.rests() && self.samples.len() == keep.samples.max(2) {
            // All of them are alike: the first becomes the last, and nothing is copied.
            let last = self.last();
            let by = at.saturating_sub(last.at);
            let times = last.info().map(TcpInfo::idle_times);
            self.samples.rotate_left(1);
            if let Some(sample) = self.samples.back_mut() {
                sample.at = at;
                if let (Some(info), Some(times)) = (&mut sample.connection.info, times) {
                    info.set_idle_times(times.aged(by));
                }
            }
        } else {
            let connection = self.last().later(at);
            self.push(Sample { at, connection }, keep);
        }
        self.rested += 1;
    }

    /// All looks that are kept found it as it is.
    pub fn rests(&self) -> bool {
        self.rested + 1 >= self.samples.len() && self.rested > 0
    }

    /// Returns what `derive` makes of the samples. While they are all alike it is called once.
    pub(crate) fn derived(&self, derive: impl FnOnce() -> Option<M>) -> Option<M> {
        if let Some(memo) = self.memo.get() {
            return Some(memo);
        }
        let derived = derive();
        if self.rests() {
            self.memo.set(derived);
        }
        derived
    }

    /// The last look found it as it was at the one before.
    pub(crate) fn is_as_before(&self) -> bool {
        self.rested > 0
    }

    /// By this it is found again.
    pub fn id(&self) -> SocketId {
        self.id
    }

    fn push(&mut self, sample: Sample, keep: Keep) {
        if self.samples.len() == keep.samples.max(2) {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// It has ended so. What the kernel does not tell at an end stays as it was last.
    pub fn finish(&mut self, end: Sample) {
        let last = &self.last().connection;
        let mut connection = Connection {
            state: end.connection.state,
            recv_queue: end.connection.recv_queue,
            send_queue: end.connection.send_queue,
            ..last.clone()
        };
        // The kernel clears what its application throws away (SO_LINGER of 0) before it tells of it.
        let whole = |info: &TcpInfo| info.segs_out != Some(0);
        if end.connection.info.as_ref().is_some_and(whole) {
            connection.info = end.connection.info;
        }
        self.samples.push_back(Sample {
            at: end.at,
            connection,
        });
    }

    /// The last look at it.
    pub fn last(&self) -> &Sample {
        self.samples.back().expect("it was made when it was seen")
    }

    /// The looks that are kept.
    pub fn window(&self) -> Option<Window<'_>> {
        Window::of(&self.samples)
    }

    /// The last two looks.
    pub fn step(&self) -> Option<Window<'_>> {
        Window::of(self.samples.range(self.samples.len().saturating_sub(2)..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::tests::sample;

    type Table = super::Table<u8>;
    type Tracked = super::Tracked<u8>;

    fn table(connections: usize) -> Table {
        Table::new(Keep {
            connections,
            samples: 3,
        })
    }

    fn look(table: &mut Table, second: u64, cookies: &[u64]) -> Vec<u64> {
        table.begin(false);
        for &cookie in cookies {
            let mut connection = sample(0, |_| {}).connection;
            connection.cookie = cookie;
            table.see(&"-".into(), Duration::from_secs(second), connection);
        }
        let mut ended = Vec::new();
        table.end(|cookie, _| ended.push(cookie));
        ended.sort_unstable();
        ended
    }

    #[test]
    fn what_is_not_seen_any_more_has_ended() {
        let mut table = table(10);
        assert!(look(&mut table, 0, &[1, 2, 3]).is_empty());
        assert_eq!(look(&mut table, 1, &[2, 4]), [1, 3]);
        let mut cookies: Vec<_> = table.iter().map(|(cookie, _)| cookie).collect();
        cookies.sort_unstable();
        assert_eq!(cookies, [2, 4]);
    }

    #[test]
    fn no_more_is_kept_than_was_said() {
        let mut table = table(2);
        for second in 0..10 {
            look(&mut table, second, &[1, 2, 3]);
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

    /// One that has done nothing since the first second.
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
    fn one_that_rests_looks_as_if_it_were_read() {
        let (mut resting, mut read) = (table(10), table(10));
        for second in 0..9 {
            let at = Duration::from_secs(second);
            let first = resting.begin(false).get() - second;
            read.begin(false);
            let since = NonZeroU64::new(first).unwrap();
            match second {
                0 => {
                    assert!(
                        !resting.rests(&"-".into(), at, 1, since),
                        "it was never read"
                    );
                    resting.see(&"-".into(), at, silent(second));
                }
                _ => assert!(resting.rests(&"-".into(), at, 1, since)),
            }
            // Twice in one look is once.
            assert!(resting.rests(&"-".into(), at, 1, since));
            read.see(&"-".into(), at, silent(second));
            let (one, other) = (resting.get(1).unwrap(), read.get(1).unwrap());
            assert_eq!(one.samples, other.samples);
            assert_eq!(one.rests(), second > 0);
            for table in [&mut resting, &mut read] {
                table.end(|cookie, _| panic!("{cookie} has ended"));
            }
        }
        let number = resting.begin(false);
        let at = Duration::from_secs(9);
        assert!(
            !resting.rests(&"-".into(), at, 1, number),
            "it has changed since"
        );
        resting.see(&"-".into(), at, silent(9));
        assert!(!resting.get(1).unwrap().rests());
    }

    #[test]
    fn what_is_derived_is_derived_once_while_a_connection_rests() {
        let mut table = table(10);
        let at = Duration::from_secs;
        let first = table.begin(false);
        table.see(&"-".into(), at(0), silent(0));
        let derived = |table: &Table, value| table.get(1).unwrap().derived(|| value);
        assert_eq!(derived(&table, Some(1)), Some(1));
        assert_eq!(derived(&table, Some(2)), Some(2), "it has not rested yet");
        for second in 1..4 {
            table.end(|_, _| {});
            table.begin(false);
            assert!(table.rests(&"-".into(), at(second), 1, first));
        }
        assert_eq!(derived(&table, None), None);
        assert_eq!(derived(&table, Some(3)), Some(3));
        assert_eq!(derived(&table, Some(4)), Some(3));
        table.end(|_, _| {});
        table.begin(false);
        table.see(&"-".into(), at(4), silent(4));
        assert_eq!(derived(&table, Some(5)), Some(5));
    }

    #[test]
    fn what_may_be_there_stays_as_it_is() {
        let mut table = table(10);
        let netns: Arc<str> = "-".into();
        table.begin(false);
        for cookie in [1, 2, 3] {
            let mut connection = silent(0);
            connection.cookie = cookie;
            if cookie == 1 {
                // A handshake of the peer's.
                connection.info = None;
            }
            table.see(&netns, Duration::ZERO, connection);
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
    fn one_for_which_there_is_no_room_is_counted_while_it_rests_and_read_when_there_is() {
        let mut table = table(1);
        let netns: Arc<str> = "-".into();
        let connection = |cookie| {
            let mut connection = silent(0);
            connection.cookie = cookie;
            connection
        };
        let first = table.begin(false);
        table.see(&netns, Duration::ZERO, connection(1));
        table.see(&netns, Duration::ZERO, connection(2));
        assert_eq!(table.left_out(), 1);
        table.end(|_, _| {});
        table.begin(false);
        for _ in 0..2 {
            assert!(table.rests(&netns, Duration::ZERO, 1, first));
            assert!(table.rests(&netns, Duration::ZERO, 2, first));
        }
        assert_eq!(table.left_out(), 1);
        table.end(|_, _| {});
        // It has changed, and is read; then the list has it once more.
        let number = table.begin(false);
        assert!(table.rests(&netns, Duration::ZERO, 1, first));
        assert!(!table.rests(&netns, Duration::ZERO, 2, number));
        for _ in 0..2 {
            table.see(&netns, Duration::ZERO, connection(2));
            assert_eq!(table.left_out(), 1);
        }
        assert!(table.rests(&netns, Duration::ZERO, 2, number));
        assert_eq!(table.left_out(), 1);
        table.end(|_, _| {});
        table.begin(false);
        assert!(
            !table.rests(&netns, Duration::ZERO, 2, first),
            "there is room"
        );
        table.see(&netns, Duration::ZERO, connection(2));
        table.end(|_, _| {});
        assert!(table.get(2).is_some() && table.aside.is_empty());
    }

    #[test]
    fn a_look_that_takes_anothers_place_has_one_sample_of_each() {
        let netns: Arc<str> = "-".into();
        let mut table = table(10);
        let at = Duration::from_secs;
        let of = |table: &mut Table, cookie, second| {
            let mut connection = silent(second);
            connection.cookie = cookie;
            table.see(&netns, at(second), connection);
        };
        let first = table.begin(false);
        for cookie in [1, 2, 3] {
            of(&mut table, cookie, 0);
        }
        table.end(|_, _| {});
        // Of the next look one has rested and two are read when it is given up.
        table.begin(false);
        assert!(table.rests(&"-".into(), at(1), 1, first));
        of(&mut table, 2, 1);
        of(&mut table, 3, 1);
        let again = table.begin(true);
        assert_eq!(table.missing().count(), 3);
        // By then the one has changed and one of the two rests, and one has ended.
        assert!(!table.rests(&"-".into(), at(2), 1, again));
        of(&mut table, 1, 2);
        assert!(table.rests(&"-".into(), at(2), 2, first));
        assert_eq!(table.missing().count(), 1);
        let mut ended = Vec::new();
        table.end(|cookie, _| ended.push(cookie));
        assert_eq!(ended, [3]);
        let times = |cookie| {
            let samples = table.get(cookie).unwrap().samples.iter();
            samples
                .map(|sample| sample.at.as_secs())
                .collect::<Vec<_>>()
        };
        assert_eq!((times(1), times(2)), (vec![0, 2], vec![0, 1]));
    }

    #[test]
    fn what_is_not_meant_is_not_read_again_while_it_rests() {
        let mut table = table(10);
        let first = table.begin(false);
        table.put_aside(7);
        table.end(|_, _| {});
        for _ in 0..2 {
            table.begin(false);
            assert!(table.rests(&"-".into(), Duration::ZERO, 7, first));
            table.end(|_, _| {});
            assert!(table.get(7).is_none());
        }
        let number = table.begin(false);
        assert!(!table.rests(&"-".into(), Duration::ZERO, 7, number));
        let mut connection = silent(0);
        connection.cookie = 7;
        table.see(&"-".into(), Duration::ZERO, connection);
        assert!(table.rests(&"-".into(), Duration::ZERO, 7, number));
        table.end(|_, _| {});
        assert!(table.get(7).is_some() && table.aside.is_empty());
        // What is not found any more is forgotten.
        table.begin(false);
        table.put_aside(8);
        table.end(|_, _| {});
        table.begin(false);
        table.end(|_, _| {});
        assert!(table.aside.is_empty());
    }

    #[test]
    fn what_has_ended_takes_no_room_from_what_is_new() {
        let mut table = table(2);
        look(&mut table, 0, &[1, 2]);
        assert_eq!(look(&mut table, 1, &[3, 4]), [1, 2]);
        assert_eq!((table.iter().count(), table.left_out()), (2, 0));
    }

    #[test]
    fn one_that_is_listed_twice_is_one() {
        let mut table = table(10);
        look(&mut table, 0, &[1, 1]);
        assert_eq!(table.get(1).unwrap().samples.len(), 1);
        assert!(table.get(1).unwrap().window().is_none());
    }

    #[test]
    fn an_end_that_the_kernel_has_cleared_tells_nothing_new() {
        let of = |segs, acked| {
            sample(segs, |info| {
                info.segs_out = Some(segs as u32);
                info.bytes_acked = Some(acked);
            })
        };
        let acked = |tracked: &Tracked| tracked.last().info().unwrap().bytes_acked;
        let mut tracked = Tracked::only("-".into(), of(9, 700));
        tracked.finish(of(12, 900));
        assert_eq!(acked(&tracked), Some(900));
        tracked.finish(of(0, 0));
        assert_eq!(acked(&tracked), Some(900));
    }
}
