//! What is known of all connections, look after look.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use taut_sys::sock_diag::Connection;
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

/// The connections of the last look, with what was seen of them before.
#[derive(Debug)]
pub struct Table {
    keep: Keep,
    tracked: HashMap<u64, Tracked>,
    look: u64,
    seen: usize,
    left_out: usize,
}

/// A connection.
#[derive(Debug)]
pub struct Tracked {
    /// Its namespace's name.
    pub netns: Arc<str>,
    samples: VecDeque<Sample>,
    look: u64,
}

// === impl Table ===

impl Table {
    /// Empty.
    pub fn new(keep: Keep) -> Self {
        Self {
            keep,
            tracked: HashMap::new(),
            look: 0,
            seen: 0,
            left_out: 0,
        }
    }

    /// A look begins.
    pub fn begin(&mut self) {
        self.look += 1;
        self.seen = 0;
        self.left_out = 0;
    }

    /// A connection was seen, so long after the observation began.
    pub fn see(&mut self, netns: &str, at: Duration, connection: Connection) {
        let cookie = connection.cookie;
        // What has ended meanwhile takes no room: it goes at the end of the look.
        let room = self.seen < self.keep.connections;
        let tracked = match self.tracked.entry(cookie) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if !room => {
                self.left_out += 1;
                return;
            }
            Entry::Vacant(entry) => entry.insert(Tracked {
                netns: netns.into(),
                samples: VecDeque::new(),
                look: 0,
            }),
        };
        // A list may have a connection twice when others come and go meanwhile.
        if tracked.look == self.look {
            return;
        }
        tracked.look = self.look;
        self.seen += 1;
        if *tracked.netns != *netns {
            tracked.netns = netns.into();
        }
        if tracked.samples.len() == self.keep.samples.max(2) {
            tracked.samples.pop_front();
        }
        tracked.samples.push_back(Sample { at, connection });
    }

    /// The look is over: what was not seen in it has ended, and is handed over.
    pub fn end(&mut self, mut ended: impl FnMut(u64, Tracked)) {
        let look = self.look;
        for (cookie, tracked) in self.tracked.extract_if(|_, tracked| tracked.look != look) {
            ended(cookie, tracked);
        }
    }

    /// Takes the one of this cookie out: it has ended.
    pub fn take(&mut self, cookie: u64) -> Option<Tracked> {
        self.tracked.remove(&cookie)
    }

    /// Connections of the last look, by cookie.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Tracked)> {
        self.tracked
            .iter()
            .map(|(&cookie, tracked)| (cookie, tracked))
    }

    /// The one of this cookie.
    pub fn get(&self, cookie: u64) -> Option<&Tracked> {
        self.tracked.get(&cookie)
    }

    /// Connections of the last look for which there was no room.
    pub fn left_out(&self) -> usize {
        self.left_out
    }
}

// === impl Tracked ===

impl Tracked {
    /// One that was seen once.
    pub fn only(netns: Arc<str>, sample: Sample) -> Self {
        Self {
            netns,
            samples: VecDeque::from([sample]),
            look: 0,
        }
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

    fn table(connections: usize) -> Table {
        Table::new(Keep {
            connections,
            samples: 3,
        })
    }

    fn look(table: &mut Table, second: u64, cookies: &[u64]) -> Vec<u64> {
        table.begin();
        for &cookie in cookies {
            let mut connection = sample(0, |_| {}).connection;
            connection.cookie = cookie;
            table.see("-", Duration::from_secs(second), connection);
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
