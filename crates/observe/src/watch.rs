//! Connections from when they are seen to their end: what `taut watch` tells.
//!
//! A look says what each connection is doing; the kernel says when one has ended, with all that went over it
//! ([`ends`]). One that came and went between two looks is told of at its end only, without an owner and without
//! a verdict. One that is not in a list any more, and of whose end nothing is heard for two seconds, is told of
//! with what was seen last.

mod ends;
pub mod files;
pub mod line;
pub mod metrics;
pub mod parquet;
pub mod run;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use taut_sys::sock_diag::Connection;

use crate::filter::Filter;
use crate::observer::Observer;
use crate::observer::Tracked;
use crate::owner::Process;
use crate::scan::{ScanError, ScanSummary};
use crate::verdict::{Factor, Verdict};
use crate::window::Sample;
use ends::Listeners;

/// So long the kernel may take to tell of the end of one that is not in its list any more.
const UNHEARD: Duration = Duration::from_secs(2);
/// For so long at least it is known of whose end was told without hearing of it.
const REMEMBERED: Duration = Duration::from_secs(30);

/// What is told of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It has ended.
    End,
    /// It is open.
    Open,
}

/// A connection's time so far, as it was seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Life {
    /// When it was first seen, since the observation began.
    pub since: Duration,
    /// Seconds that each factor limited it, in the order of [`Factor::ALL`].
    pub limited: [f64; Factor::ALL.len()],
    /// When it was last seen.
    last: Duration,
}

/// What is told.
#[derive(Debug)]
pub struct Told<'a> {
    /// Whether it has ended.
    pub event: Event,
    /// The kernel's name of the socket.
    pub cookie: u64,
    /// What was seen of it.
    pub tracked: &'a Tracked,
    /// Who had it, if that is known.
    pub process: Option<&'a Process>,
    /// Its time; nothing of one that was in no look.
    pub life: Option<&'a Life>,
    /// What limits it, or did at last; nothing of one that was seen only once.
    pub verdict: Option<Verdict>,
}

/// Who is told.
pub trait Audience {
    /// Of a connection.
    fn told(&mut self, told: &Told<'_>);

    /// That a factor has limited a connection of this process for so many seconds more.
    fn limited(&mut self, process: Option<&Process>, factor: Factor, seconds: f64);
}

/// What has been told, and what could not be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ends that were told of.
    pub ended: u64,
    /// Of these, connections that were in no look.
    pub unseen: u64,
    /// Of these, those of whose end the kernel was not heard.
    pub unheard: u64,
    /// How often the kernel had no room for ends that were not read in time.
    pub missed: u64,
}

/// One that is not in the list any more.
#[derive(Debug)]
struct Gone {
    tracked: Tracked,
    process: Option<Arc<Process>>,
    life: Life,
    /// When it was missed first.
    since: Duration,
}

/// Follows connections from look to look.
#[derive(Debug)]
pub struct Watcher {
    observer: Observer,
    filter: Filter,
    listeners: Listeners,
    lives: HashMap<u64, Life>,
    /// Whose end should be heard of soon.
    gone: HashMap<u64, Gone>,
    /// Of whose end was told without hearing of it, lately and before.
    told: [HashSet<u64>; 2],
    /// When the first of these was begun.
    told_since: Duration,
    counts: Counts,
}

// === impl Watcher ===

impl Watcher {
    /// Has not looked yet.
    pub fn new(observer: Observer, filter: Filter) -> Self {
        Self {
            observer,
            filter,
            listeners: Listeners::default(),
            lives: HashMap::new(),
            gone: HashMap::new(),
            told: Default::default(),
            told_since: Duration::ZERO,
            counts: Counts::default(),
        }
    }

    /// Looks at all connections, and tells of the ends of those that are not there any more.
    ///
    /// # Errors
    /// [`ScanError`]: there is nothing to see.
    pub fn scan(&mut self, to: &mut impl Audience) -> Result<ScanSummary, ScanError> {
        let (lives, gone) = (&mut self.lives, &mut self.gone);
        let since = self.observer.elapsed();
        let looked = self
            .observer
            .scan_and(&self.filter, |cookie, tracked, process| {
                let life = lives.remove(&cookie).unwrap_or_default();
                let left = Gone {
                    tracked,
                    process,
                    life,
                    since,
                };
                gone.insert(cookie, left);
            })?;
        // However long the look took, it was missed at its end.
        let missed = self.observer.elapsed();
        let new = self.gone.values_mut().filter(|gone| gone.since == since);
        new.for_each(|gone| gone.since = missed);
        self.listeners.listen(self.observer.namespaces());
        self.live(to);
        self.hear(to);
        let now = self.observer.elapsed();
        if now.saturating_sub(self.told_since) > REMEMBERED {
            self.told.swap(0, 1);
            self.told[0].clear();
            self.told_since = now;
        }
        let unheard = self
            .gone
            .extract_if(|_, gone| now.saturating_sub(gone.since) > UNHEARD);
        for (cookie, gone) in unheard.collect::<Vec<_>>() {
            if self.means(&gone) {
                self.counts.unheard += 1;
                self.told[0].insert(cookie);
                self.end(cookie, &gone, to);
            }
        }
        Ok(looked)
    }

    /// Tells of connections whose end the kernel has told since. To be called several times between two looks where
    /// many come and go.
    pub fn hear(&mut self, to: &mut impl Audience) {
        let mut heard = Vec::new();
        let began = self.observer.elapsed();
        self.counts.missed += self
            .listeners
            .hear(|netns, connection| heard.push((netns.clone(), connection)));
        for (netns, connection) in heard {
            self.ended(&netns, began, connection, to);
        }
    }

    /// Tells of all that are open and meant.
    pub fn open(&self, to: &mut impl Audience) {
        for seen in self.observer.seen(&self.filter) {
            to.told(&Told {
                event: Event::Open,
                cookie: seen.cookie,
                tracked: seen.tracked,
                process: seen.process,
                life: self.lives.get(&seen.cookie),
                verdict: self.observer.verdict(&seen),
            });
        }
    }

    /// What has been told so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Who looks.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Adds the time since the last look to what limits each.
    fn live(&mut self, to: &mut impl Audience) {
        for seen in self.observer.seen(&self.filter) {
            let at = seen.tracked.last().at;
            // It is there after all.
            if let Some(gone) = self.gone.remove(&seen.cookie) {
                self.lives.insert(seen.cookie, gone.life);
            }
            for told in &mut self.told {
                told.remove(&seen.cookie);
            }
            let life = self.lives.entry(seen.cookie).or_insert_with(|| Life {
                since: at,
                last: at,
                ..Life::default()
            });
            let time = at.saturating_sub(life.last).as_secs_f64();
            life.last = at;
            if let Some((factor, _)) = self.observer.limit(&seen) {
                life.limited[factor.index()] += time;
                to.limited(seen.process, factor, time);
            }
        }
    }

    /// The kernel has told of an end.
    fn ended(
        &mut self,
        netns: &Arc<str>,
        at: Duration,
        connection: Connection,
        to: &mut impl Audience,
    ) {
        let cookie = connection.cookie;
        if self.told.iter().any(|told| told.contains(&cookie)) {
            return;
        }
        let known = self.gone.remove(&cookie).or_else(|| {
            let (tracked, process) = self.observer.take(cookie)?;
            let life = self.lives.remove(&cookie).unwrap_or_default();
            Some(Gone {
                tracked,
                process,
                life,
                since: at,
            })
        });
        let sample = Sample { at, connection };
        if let Some(mut gone) = known {
            // By the state that it was in.
            let meant = self.means(&gone);
            gone.tracked.finish(sample);
            if meant {
                self.end(cookie, &gone, to);
            }
            return;
        }
        let tracked = Tracked::only(netns.clone(), sample);
        if !self.observer.is_meant(&self.filter, &tracked, None) {
            return;
        }
        self.counts.ended += 1;
        self.counts.unseen += 1;
        to.told(&Told {
            event: Event::End,
            cookie,
            tracked: &tracked,
            process: None,
            life: None,
            verdict: None,
        });
    }

    /// Of a filter that asks for an owner all were kept.
    fn means(&self, gone: &Gone) -> bool {
        let process = gone.process.as_deref();
        self.observer.is_meant(&self.filter, &gone.tracked, process)
    }

    fn end(&mut self, cookie: u64, gone: &Gone, to: &mut impl Audience) {
        self.counts.ended += 1;
        to.told(&Told {
            event: Event::End,
            cookie,
            tracked: &gone.tracked,
            process: gone.process.as_deref(),
            life: Some(&gone.life),
            verdict: self.observer.verdict_of(&gone.tracked),
        });
    }
}

// === impl Life ===

impl Life {
    /// What limited it for longest; nothing where nothing did.
    pub fn longest(&self) -> Option<Factor> {
        let each = Factor::ALL.into_iter().zip(self.limited);
        let longest = each.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (longest.1 > 0.0).then_some(longest.0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::time::Instant;

    use super::*;
    use crate::scan::Scope;
    use crate::table::Keep;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[derive(Default)]
    struct Heard(Vec<(Event, SocketAddr, bool, Option<u64>)>);

    impl Audience for Heard {
        fn told(&mut self, told: &Told<'_>) {
            let connection = &told.tracked.last().connection;
            self.0.push((
                told.event,
                connection.local,
                told.life.is_some(),
                connection.info.as_ref().and_then(|info| info.bytes_acked),
            ));
        }

        fn limited(&mut self, _: Option<&Process>, _: Factor, _: f64) {}
    }

    /// A connection over which some bytes have gone, and this end of it.
    fn connection(listener: &TcpListener, bytes: usize) -> (TcpStream, TcpStream) {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&vec![7; bytes]).unwrap();
        server.read_exact(&mut vec![0; bytes]).unwrap();
        (client, server)
    }

    fn watcher(port: u16) -> Watcher {
        let keep = Keep {
            connections: 100,
            samples: 6,
        };
        let filter = format!("dport {port}").parse().unwrap();
        Watcher::new(Observer::new(Scope::Own, keep, false), filter)
    }

    /// Until so many ends were told of.
    fn hear(watcher: &mut Watcher, heard: &mut Heard, ends: usize) {
        let began = Instant::now();
        let ended = |heard: &Heard| heard.0.iter().filter(|told| told.0 == Event::End).count();
        while ended(heard) < ends {
            assert!(began.elapsed() < PATIENCE, "{:?}", heard.0);
            watcher.hear(heard);
            std::thread::yield_now();
        }
    }

    #[test]
    fn each_end_is_told_once_with_its_last_figures_seen_before_or_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut watcher = watcher(listener.local_addr().unwrap().port());
        let mut heard = Heard::default();
        watcher.scan(&mut heard).unwrap();

        let (mut client, mut server) = connection(&listener, 1000);
        let seen = client.local_addr().unwrap();
        watcher.scan(&mut heard).unwrap();
        watcher.scan(&mut heard).unwrap();
        watcher.open(&mut heard);
        assert_eq!(heard.0, [(Event::Open, seen, true, Some(1001))]);
        client.write_all(&[7; 500]).unwrap();
        server.read_exact(&mut [0; 500]).unwrap();
        drop((client, server));
        hear(&mut watcher, &mut heard, 1);
        // One that comes and goes between two looks.
        let (client, server) = connection(&listener, 300);
        let short = client.local_addr().unwrap();
        drop((client, server));
        hear(&mut watcher, &mut heard, 2);
        for _ in 0..4 {
            watcher.scan(&mut heard).unwrap();
        }
        let (open, ends) = heard.0.split_at(1);
        assert_eq!(open[0].0, Event::Open);
        // What was sent, the SYN and the FIN.
        assert_eq!(
            ends,
            [
                (Event::End, seen, true, Some(1502)),
                (Event::End, short, false, Some(302)),
            ]
        );
        let counts = watcher.counts();
        assert_eq!((counts.ended, counts.unseen, counts.unheard), (2, 1, 0));
    }

    #[test]
    fn what_is_not_meant_is_not_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut watcher = watcher(listener.local_addr().unwrap().port());
        let mut heard = Heard::default();
        watcher.scan(&mut heard).unwrap();
        let stranger = connection(&other, 10);
        watcher.scan(&mut heard).unwrap();
        drop(stranger);
        drop(connection(&other, 10));
        drop(connection(&listener, 10));
        hear(&mut watcher, &mut heard, 1);
        for _ in 0..3 {
            watcher.scan(&mut heard).unwrap();
        }
        assert_eq!(heard.0.len(), 1, "{:?}", heard.0);
    }

    #[test]
    fn what_limited_longest_is_the_one_with_most_time() {
        let mut life = Life::default();
        assert_eq!(life.longest(), None);
        life.limited[Factor::Queue.index()] = 1.0;
        life.limited[Factor::Loss.index()] = 2.0;
        assert_eq!(life.longest(), Some(Factor::Loss));
        for (index, factor) in Factor::ALL.into_iter().enumerate() {
            assert_eq!(factor.index(), index);
        }
    }
}
