//! One look at all connections: a list of each network namespace.
//!
//! A namespace is held for as long as its list takes, and not between looks, so that one that its
//! owner gives up goes away.

mod changed;

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use taut_sys::Errno;
use taut_sys::netns::{NetnsError, NetnsId};
use taut_sys::sock_diag::{Connection, DumpStats, SockDiag, SocketId};

use self::changed::Changed;
use crate::bpf_iter::TcpIter;
use crate::namespaces::{self, Namespace};

/// A namespace that came since is found this much later at most.
pub const FIND_EVERY: Duration = Duration::from_secs(5);

/// The kernel's table of connections is walked through so much later at most, which finds what has no place yet: connections that
/// somebody is opening to this machine.
const WALK_EVERY: Duration = FIND_EVERY;

/// All connections are read so much later at most, whether they seem to have changed or not: what the program in the kernel
/// compares need not be all that there is.
const ANEW_EVERY: Duration = Duration::from_secs(30);

/// So many that were not found are asked for by name; for more a list costs less.
const BY_NAME: usize = 2_000;

/// Who is told what a look finds.
pub trait ScanSink {
    /// A look begins: its number, more than that of the one before. `again`: what was told since the last call is told anew.
    fn begin(&mut self, again: bool) -> NonZeroU64;

    /// Those that were there and were not found, with the name of the namespace of each. `walked`: through the kernel's table, which
    /// has those that are being made, too; else they are there until a walk does not find them.
    fn missing(&mut self, walked: bool) -> Vec<(Arc<str>, SocketId)>;

    /// It is not known whether these are there: they have not ended.
    fn unknown(&mut self, ids: &[SocketId]);

    /// A connection, with its namespace and when that was looked into.
    fn see(&mut self, namespace: &Namespace, at: Instant, connection: Connection);

    /// The connection of this cookie is as it was in the look of this number and in all since. `false`: it was not seen
    /// then, and is to be read.
    fn rests(&mut self, namespace: &Namespace, at: Instant, cookie: u64, since: NonZeroU64)
    -> bool;
}

/// Where to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All namespaces that may be entered.
    Machine,
    /// The caller's own.
    Own,
    /// The one of this name in `/run/netns`.
    Named(String),
}

/// Looks, again and again.
#[derive(Debug)]
pub struct Scanner {
    scope: Scope,
    namespaces: Vec<Namespace>,
    left_out: usize,
    hidden: usize,
    found: Option<Instant>,
    /// Nothing without BPF.
    inside: Option<TcpIter>,
    events: bool,
    /// When the last walk began that was whole, and what it came to. Nothing: it was not.
    walked: Option<(Instant, ScanSummary)>,
    /// When it was tried last to do without a walk and that failed.
    failed: Option<Instant>,
    /// Namespaces that may not be entered.
    denied: HashSet<u64>,
    /// When all connections were read last.
    anew: Option<Instant>,
}

/// What a look came to, beside connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanSummary {
    /// Namespaces that were looked into.
    pub namespaces: usize,
    /// Namespaces that the caller may not enter.
    pub denied: usize,
    /// Namespaces beyond [`namespaces::NAMESPACES`].
    pub left_out: usize,
    /// Processes of which the caller may not know in which namespace they are.
    pub hidden: usize,
    /// Connections that were handed over.
    pub connections: usize,
    /// Connections whose events are not counted: there is no room for more.
    pub without_place: usize,
    /// Messages of the kernel that this code does not know, and lists that it calls not whole.
    pub incomplete: usize,
    /// What only BPF tells is missing.
    pub without_bpf: bool,
    /// Events between looks are to be counted, and cannot be.
    pub without_events: bool,
}

/// Why nothing can be seen.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The namespace.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The list.
    #[error(
        "the kernel does not list the connections of namespace {namespace}: {source} (it needs CONFIG_INET_DIAG)"
    )]
    List {
        /// Of which.
        namespace: String,
        /// What it says.
        source: Errno,
    },
}

// === impl Scanner ===

impl Scanner {
    /// Has not looked yet. `events`: what happens between looks is to be counted, which costs some time at each segment.
    pub fn new(scope: Scope, events: bool) -> Self {
        Self {
            scope,
            namespaces: Vec::new(),
            left_out: 0,
            hidden: 0,
            found: None,
            inside: load(events),
            events,
            walked: None,
            failed: None,
            denied: HashSet::new(),
            anew: None,
        }
    }

    /// Tells of every connection.
    ///
    /// # Errors
    /// [`ScanError`]: the caller's own namespace, or the one that was named, cannot be looked into.
    /// Another's only is counted.
    pub fn look(&mut self, to: &mut impl ScanSink) -> Result<ScanSummary, ScanError> {
        self.find()?;
        let mut missed = self.begin(to, false);
        let began = Instant::now();
        let is_within = |at: Instant| began.duration_since(at) < WALK_EVERY;
        if let Some((walked, looked)) = self.walked
            && is_within(walked)
            && missed == Some(0)
            && !self.failed.is_some_and(is_within)
        {
            if let Some(looked) = self.places(looked, to) {
                self.confirm(to, false);
                return Ok(looked);
            }
            self.failed = Some(began);
            missed = self.begin(to, true);
        }
        let is_past = |anew: Instant| began.duration_since(anew) >= ANEW_EVERY;
        // Nor does a program that was not told of this look know what has changed in it.
        let anew = self.anew.is_none_or(is_past) || missed.is_none();
        let mut looked = ScanSummary::default();
        let mut done = HashSet::new();
        self.denied.clear();
        if self.pass(&mut done, &mut looked, anew, to)? && self.scope == Scope::Machine {
            // The process by which one was known has ended; others may be in it.
            self.found = None;
            self.find()?;
            self.pass(&mut done, &mut looked, anew, to)?;
        }
        self.confirm(to, true);
        looked.left_out = self.left_out;
        looked.hidden = self.hidden;
        looked.without_bpf = self.inside.is_none();
        let counts_events = self.inside.as_ref().is_some_and(TcpIter::counts_events);
        looked.without_events = self.events && !counts_events;
        if !counts_events {
            looked.without_place = 0;
        }
        let is_whole = missed.is_some() && looked.incomplete == 0;
        self.walked = is_whole.then_some((began, looked));
        if anew {
            self.anew = Some(began);
        }
        Ok(looked)
    }

    /// Whether something may have happened since the last look began: `false` only where that is known.
    pub fn has_stirred(&self) -> bool {
        let inside = self.inside.as_ref().filter(|_| self.walked.is_some());
        inside.and_then(TcpIter::has_stirred).unwrap_or(true)
    }

    /// How many connections are known to have no place; nothing where that is not known.
    fn begin(&self, to: &mut impl ScanSink, again: bool) -> Option<u64> {
        let number = to.begin(again);
        self.inside.as_ref()?.begin(number.get(), self.only())
    }

    /// Asks for those that were not found. No list is a snapshot: one that is read while others end may leave
    /// out what there is, and one by places what has none.
    fn confirm(&mut self, to: &mut impl ScanSink, walked: bool) {
        let mut missing: FxHashMap<Arc<str>, Vec<SocketId>> = FxHashMap::default();
        for (netns, id) in to.missing(walked) {
            missing.entry(netns).or_default().push(id);
        }
        // Of a namespace that is not there any more there is nothing to confirm.
        for namespace in &self.namespaces {
            let Some(ids) = missing.get(&namespace.name) else {
                continue;
            };
            let at = Instant::now();
            let mut see = |connection| to.see(namespace, at, connection);
            let listed = match namespace.run(SockDiag::open) {
                Ok(Some(Ok(mut socket))) if ids.len() <= BY_NAME => {
                    socket.query(ids, &mut see).or_else(|_| socket.dump(see))
                }
                Ok(Some(Ok(mut socket))) => socket.dump(see),
                // The process by which it was known has ended; others may be in it.
                Ok(None) => {
                    self.found = None;
                    to.unknown(ids);
                    continue;
                }
                Ok(Some(Err(error))) => Err(error),
                // It may not be entered, and was not before.
                Err(_) => continue,
            };
            if let Err(error) = listed {
                tracing::debug!(%error, netns = %namespace.name, "connections were not found, and may be there");
                to.unknown(ids);
            }
        }
    }

    /// The only namespace that is looked into.
    fn only(&self) -> Option<u32> {
        let only = self
            .namespaces
            .first()
            .filter(|_| self.scope != Scope::Machine)?;
        u32::try_from(only.id.inode()).ok()
    }

    /// Looks at connections that have a place, in all namespaces at once. `walked` is what the last walk came to. Nothing: that
    /// does not do, and a walk is needed.
    fn places(&self, walked: ScanSummary, to: &mut impl ScanSink) -> Option<ScanSummary> {
        let at = Instant::now();
        let list = self.inside.as_ref()?.places()?.ok()?;
        let namespaces = self.namespaces.iter().enumerate();
        let namespaces = namespaces.filter(|(_, netns)| !self.denied.contains(&netns.id.inode()));
        let known: FxHashMap<u64, usize> = namespaces
            .map(|(index, namespace)| (namespace.id.inode(), index))
            .collect();
        let mut changed: FxHashMap<usize, Changed> = FxHashMap::default();
        let mut is_whole = true;
        let read = list.read(|found| {
            let Some(&index) = known.get(&found.netns.into()) else {
                return;
            };
            if !is_whole {
                return;
            }
            let changed = changed.entry(index).or_default();
            is_whole &= changed.add(&found, &self.namespaces[index], at, to);
        });
        if read.is_err() || !is_whole {
            return None;
        }
        let mut looked = ScanSummary {
            connections: 0,
            ..walked
        };
        for (index, changed) in changed {
            if changed.is_none() {
                looked.connections += changed.rest;
                continue;
            }
            let namespace = &self.namespaces[index];
            let socket = namespace.run(SockDiag::open).ok()??.ok()?;
            // Rates are of the time between readings: entering a namespace took some of it.
            let at = Instant::now();
            let listed = changed.read(socket, namespace, at, to).ok()?;
            if listed.unknown > 0 || listed.interrupted {
                return None;
            }
            looked.connections += listed.connections;
        }
        Some(looked)
    }

    #[cfg(test)]
    pub(crate) fn inside(&self) -> &TcpIter {
        self.inside.as_ref().unwrap()
    }

    #[cfg(test)]
    pub(crate) fn failed(&self) -> Option<Instant> {
        self.failed
    }

    /// Where it looked last, and will look next.
    pub(crate) fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// Looks into all namespaces but those that are done. `true`: one was not there any more.
    fn pass(
        &mut self,
        done: &mut HashSet<NetnsId>,
        looked: &mut ScanSummary,
        anew: bool,
        to: &mut impl ScanSink,
    ) -> Result<bool, ScanError> {
        let mut lost = false;
        for (index, namespace) in self.namespaces.iter().enumerate() {
            if done.contains(&namespace.id) {
                continue;
            }
            let open = || (SockDiag::open(), self.inside.as_ref().map(TcpIter::list));
            let (socket, list) = match namespace.run(open) {
                Ok(Some(opened)) => opened,
                Ok(None) => {
                    lost = true;
                    continue;
                }
                Err(e) if index == 0 => return Err(e.into()),
                Err(_) => {
                    done.insert(namespace.id);
                    self.denied.insert(namespace.id.inode());
                    looked.denied += 1;
                    continue;
                }
            };
            done.insert(namespace.id);
            let at = Instant::now();
            let changed = match list
                .map(|list| list.map(|list| Changed::of(list, namespace, at, anew, to)))
            {
                None => None,
                Some(Ok(Ok(changed))) => {
                    looked.without_place += changed.without_place;
                    Some(changed)
                }
                Some(_) => {
                    looked.incomplete += 1;
                    None
                }
            };
            let listed = socket.and_then(|mut socket| match changed {
                Some(changed) => changed.read(socket, namespace, at, to),
                None => socket.dump(|connection| to.see(namespace, at, connection)),
            });
            match listed {
                Ok(listed) => looked.add(listed),
                Err(source) if index == 0 => {
                    return Err(ScanError::List {
                        namespace: namespace.name.to_string(),
                        source,
                    });
                }
                Err(_) => looked.incomplete += 1,
            }
        }
        Ok(lost)
    }

    fn find(&mut self) -> Result<(), NetnsError> {
        match &self.scope {
            Scope::Machine if self.found.is_some_and(|found| found.elapsed() < FIND_EVERY) => {}
            Scope::Machine => {
                let found = namespaces::all()?;
                self.namespaces = found.namespaces;
                self.left_out = found.left_out;
                self.hidden = found.hidden;
                self.found = Some(Instant::now());
            }
            Scope::Own if !self.namespaces.is_empty() => {}
            Scope::Own => self.namespaces = vec![namespaces::own()?],
            // Another may have taken the name.
            Scope::Named(name) => self.namespaces = vec![namespaces::named(name)?],
        }
        Ok(())
    }
}

/// What BPF tells is more, and not needed.
fn load(events: bool) -> Option<TcpIter> {
    match TcpIter::load(events) {
        Ok(inside) => Some(inside),
        Err(error) => {
            tracing::debug!(%error, "connections are looked at without BPF");
            None
        }
    }
}

// === impl ScanSummary ===

impl ScanSummary {
    fn add(&mut self, listed: DumpStats) {
        self.namespaces += 1;
        self.connections += listed.connections;
        self.incomplete += listed.unknown + usize::from(listed.interrupted);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Connections that were seen, with their namespaces.
    #[derive(Default)]
    struct Seen(Vec<(String, Connection)>);

    impl ScanSink for Seen {
        fn begin(&mut self, _: bool) -> NonZeroU64 {
            NonZeroU64::MIN
        }

        fn missing(&mut self, _: bool) -> Vec<(Arc<str>, SocketId)> {
            Vec::new()
        }

        fn unknown(&mut self, _: &[SocketId]) {}

        fn see(&mut self, namespace: &Namespace, _: Instant, connection: Connection) {
            self.0.push((namespace.name.to_string(), connection));
        }

        fn rests(&mut self, _: &Namespace, _: Instant, _: u64, _: NonZeroU64) -> bool {
            false
        }
    }

    #[test]
    fn what_is_connected_is_seen_in_its_own_namespace() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let local = client.local_addr().unwrap();
        for scope in [Scope::Own, Scope::Machine] {
            let mut seen = Seen::default();
            let mut scanner = Scanner::new(scope, true);
            let looked = scanner.look(&mut seen).unwrap();
            assert_eq!(looked.connections, seen.0.len());
            let is_it = |(netns, c): &(String, Connection)| netns == "-" && c.local == local;
            let found = seen.0.iter().find(|found| is_it(found)).unwrap();
            assert!(found.1.internals.is_some());
        }
    }

    #[test]
    fn a_name_that_nobody_has_is_an_error_that_says_so() {
        let mut scanner = Scanner::new(Scope::Named("taut-no-such".into()), false);
        let error = scanner.look(&mut Seen::default()).unwrap_err().to_string();
        assert!(error.contains("taut-no-such"), "{error}");
    }
}
