//! Looks, owners and what was seen before, put together.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::collector::Collector;
use crate::descheduled::DescheduledMeter;
use crate::filter::{Filter, Subject};
use crate::namespaces::Namespace;
use crate::owner::{Owners, Process};
use crate::scan::{ScanError, ScanSummary, Scanner, Scope};
use crate::steal::Steal;
use crate::table::{self, Keep, Table};
use crate::verdict::{Confidence, Context, Factor, Verdict, limit, verdict};

/// A connection of the table, with the limit that was found while it rests.
pub type Tracked = table::Tracked<(Factor, Confidence)>;

/// Observes the connections of the machine, look by look.
#[derive(Debug)]
pub struct Observer {
    scanner: Scanner,
    table: Table<(Factor, Confidence)>,
    owners: Owners,
    began: Instant,
    context: Context,
    steal: Steal,
    descheduled: Option<DescheduledMeter>,
    /// What it measured until the last scan.
    descheduled_share: Option<f64>,
}

/// A connection of the last look.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The kernel's name of the socket.
    pub cookie: u64,
    /// What was seen of it.
    pub tracked: &'a Tracked,
    /// Who has it, if that is known.
    pub process: Option<&'a Process>,
}

// === impl Observer ===

impl Observer {
    /// Has not looked yet. `events`: also what happens between looks is counted ([`Scanner::new`]).
    pub fn new(scope: Scope, keep: Keep, events: bool) -> Self {
        Self {
            scanner: Scanner::new(scope, events),
            table: Table::new(keep),
            owners: Owners::default(),
            began: Instant::now(),
            context: context(),
            steal: Steal::default(),
            descheduled: None,
            descheduled_share: None,
        }
    }

    /// Also measures from now on how much of the time this machine is descheduled.
    pub fn measure_descheduling(&mut self) {
        self.descheduled = DescheduledMeter::start();
    }

    /// Looks at all connections, and keeps those that are meant, as far as that can be told without their owner.
    ///
    /// # Errors
    /// [`ScanError`]: there is nothing to see.
    pub fn scan(&mut self, filter: &Filter) -> Result<ScanSummary, ScanError> {
        self.scan_and(filter, |_, _, _| {})
    }

    /// The same, and hands over those that are not there any more.
    pub(crate) fn scan_and(
        &mut self,
        filter: &Filter,
        mut ended: impl FnMut(u64, Tracked, Option<Arc<Process>>),
    ) -> Result<ScanSummary, ScanError> {
        self.steal.look();
        self.descheduled_share = self.descheduled.as_ref().map(DescheduledMeter::share);
        let mut collector = Collector {
            table: &mut self.table,
            began: self.began,
            filter: (!filter.asks_for_owner()).then_some(filter),
        };
        let summary = collector.scan(&mut self.scanner)?;
        let owners = &self.owners;
        self.table
            .end(|cookie, tracked| ended(cookie, tracked, owners.of(cookie).cloned()));
        let sockets = self.table.iter();
        self.owners
            .look(sockets.map(|(cookie, tracked)| (cookie, tracked.last().connection.inode)));
        Ok(summary)
    }

    /// Those of the last look that are meant, in no order.
    pub fn seen<'a>(&'a self, filter: &'a Filter) -> impl Iterator<Item = Seen<'a>> {
        let seen = self.table.iter().map(|(cookie, tracked)| Seen {
            cookie,
            tracked,
            process: self.owners.of(cookie).map(|process| &**process),
        });
        let all = filter.takes_all();
        seen.filter(move |seen| {
            if all {
                return true;
            }
            let connection = &seen.tracked.last().connection;
            filter.takes(&Subject::of(&seen.tracked.netns, connection, seen.process))
        })
    }

    /// The one of this cookie, if it was there at the last look.
    pub fn get(&self, cookie: u64) -> Option<Seen<'_>> {
        Some(Seen {
            cookie,
            tracked: self.table.get(cookie)?,
            process: self.owners.of(cookie).map(|process| &**process),
        })
    }

    /// What limits it; nothing before the second look.
    pub fn verdict(&self, seen: &Seen<'_>) -> Option<Verdict> {
        self.verdict_of(seen.tracked)
    }

    /// The same in brief.
    pub fn limit(&self, seen: &Seen<'_>) -> Option<(Factor, Confidence)> {
        let tracked = seen.tracked;
        tracked.derived(|| Some(limit(&tracked.window()?, &self.context_of(tracked))))
    }

    /// The same, also of one that has ended.
    pub(crate) fn verdict_of(&self, tracked: &Tracked) -> Option<Verdict> {
        let window = tracked.window()?;
        Some(verdict(&window, &self.context_of(tracked)))
    }

    /// Takes out the one of this cookie, with its owner: it has ended.
    pub(crate) fn take(&mut self, cookie: u64) -> Option<(Tracked, Option<Arc<Process>>)> {
        let tracked = self.table.take(cookie)?;
        Some((tracked, self.owners.of(cookie).cloned()))
    }

    /// Whether it is one that the filter means.
    pub(crate) fn is_meant(
        &self,
        filter: &Filter,
        tracked: &Tracked,
        process: Option<&Process>,
    ) -> bool {
        filter.takes(&Subject::of(
            &tracked.netns,
            &tracked.last().connection,
            process,
        ))
    }

    /// Whether a segment may have come, or a connection may have been opened, since the last look began: `false` only where that is known.
    pub fn may_have_changed(&self) -> bool {
        self.scanner.may_have_changed()
    }

    /// Where it looks.
    pub fn namespaces(&self) -> &[Namespace] {
        self.scanner.namespaces()
    }

    /// What else is known where this one is.
    fn context_of(&self, tracked: &Tracked) -> Context {
        let bounds = match &*tracked.netns {
            "-" => self.context,
            // Others have bounds of their own.
            _ => Context::default(),
        };
        Context {
            steal: self.steal.share(),
            descheduled: self.descheduled_share,
            ..bounds
        }
    }

    /// Since the first look.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// How many connections were kept at the last look.
    pub fn kept(&self) -> usize {
        self.table.iter().count()
    }

    /// Connections for which there was no room at the last look.
    pub fn left_out(&self) -> usize {
        self.table.left_out()
    }

    /// Processes whose descriptors the caller may not see.
    pub fn denied(&self) -> usize {
        self.owners.denied()
    }
}

/// The bounds that the kernel sets in the caller's own namespace.
fn context() -> Context {
    Context {
        wmem_max: third("/proc/sys/net/ipv4/tcp_wmem"),
        rmem_max: third("/proc/sys/net/ipv4/tcp_rmem"),
        steal: None,
        descheduled: None,
    }
}

fn third(path: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.split_ascii_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const KEEP: Keep = Keep {
        connections: 100_000,
        samples: 6,
    };

    fn cookies(observer: &Observer, end: &TcpStream) -> Vec<u64> {
        let local = end.local_addr().unwrap();
        let all = Filter::all();
        let seen = observer.seen(&all);
        seen.filter(|seen| seen.tracked.last().connection.local == local)
            .map(|seen| seen.cookie)
            .collect()
    }

    #[test]
    fn looks_by_places_miss_nothing_and_end_what_has_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let open = || {
            (
                TcpStream::connect(to).unwrap(),
                listener.accept().unwrap().0,
            )
        };
        let filter = Filter::all();
        let mut observer = Observer::new(Scope::Own, KEEP, true);
        let (mut first, mut peer) = open();
        observer.scan(&filter).unwrap();
        let [cookie] = cookies(&observer, &first)[..] else {
            panic!("it was there");
        };
        // One that was opened since is found without a walk, and so is what the first has done.
        let second = open();
        first.write_all(&[7; 100]).unwrap();
        peer.read_exact(&mut [0; 100]).unwrap();
        observer.scan(&filter).unwrap();
        assert!(!observer.scanner.has_quick_failed());
        assert_eq!(cookies(&observer, &second.0).len(), 1);
        let sent = |observer: &Observer| {
            let seen = observer.get(cookie).unwrap();
            seen.tracked.last().info().unwrap().bytes_sent
        };
        assert_eq!(sent(&observer), Some(100));
        // One that lists leave out is asked for by name.
        observer.scanner.bpf().take_place(&first);
        first.write_all(&[7; 100]).unwrap();
        for _ in 0..3 {
            observer.scan(&filter).unwrap();
            assert_eq!(sent(&observer), Some(200));
            assert!(
                observer
                    .get(cookie)
                    .unwrap()
                    .tracked
                    .last()
                    .connection
                    .internals
                    .is_some()
            );
        }
        // And one that has ended is not there.
        let mut ended = Vec::new();
        drop((first, peer));
        while observer.get(cookie).is_some() {
            observer
                .scan_and(&filter, |cookie, _, _| ended.push(cookie))
                .unwrap();
        }
        assert!(ended.contains(&cookie));
        assert!(!observer.scanner.has_quick_failed());
        assert_eq!(cookies(&observer, &second.0).len(), 1);
    }

    #[test]
    fn a_table_that_is_full_leaves_out_the_same_with_every_kind_of_look() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let _ends: Vec<_> = (0..4)
            .map(|_| (TcpStream::connect(to).unwrap(), listener.accept().unwrap()))
            .collect();
        let keep = Keep {
            connections: 3,
            samples: 6,
        };
        let filter: Filter = format!("port {}", to.port()).parse().unwrap();
        let mut observer = Observer::new(Scope::Own, keep, true);
        for _ in 0..4 {
            observer.scan(&filter).unwrap();
            assert_eq!((observer.kept(), observer.left_out()), (3, 5));
        }
    }
}
