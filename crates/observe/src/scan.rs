//! Scans the connections of all network namespaces.
//!
//! A scan is either full or quick. A full scan walks the kernel's table of connections in each
//! namespace. A quick scan lists only the connections that have a slot in the BPF programs, in all
//! namespaces at once. In both cases the programs report when each connection changed last. The
//! caller decides which connections it knows already; only the others are read with sock_diag.
//!
//! The scanner keeps a namespace open only while it lists its connections. Between scans it keeps
//! none open, so a namespace disappears when its owner releases it.

mod changed;

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use taut_sys::Errno;
use taut_sys::netns::{NetnsError, NetnsId};
use taut_sys::sock_diag::{Connection, DumpStats, Listener, SockDiag, SocketId};

pub(crate) use self::changed::Changed;
pub use crate::bpf_iter::Wants;
use crate::bpf_iter::{EndRecord, Ends, List, TcpIter};
use crate::namespaces::{self, Namespace};

/// The longest time until a new namespace is found.
pub const FIND_EVERY: Duration = Duration::from_secs(5);

/// The longest time between two full scans. Only a full scan finds connections that have no slot
/// yet: those that a peer is opening to this machine.
const FULL_EVERY: Duration = FIND_EVERY;

/// The longest time between two scans that read all connections, changed or not: the BPF program
/// does not compare everything that sock_diag reports.
const READ_ALL_EVERY: Duration = Duration::from_secs(30);

/// The maximum number of connections to query one by one; beyond it, a full list costs less.
const BY_NAME: usize = 2_000;

/// Which network namespaces are scanned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All namespaces that the caller may enter.
    Machine,
    /// The caller's own namespace.
    Own,
    /// The namespace with this name in `/run/netns`.
    Named(String),
}

/// Lists the connections of network namespaces, scan by scan.
#[derive(Debug)]
pub struct Scanner {
    scope: Scope,
    namespaces: Vec<Namespace>,
    left_out: usize,
    hidden: usize,
    found: Option<Instant>,
    /// `None` without BPF.
    bpf: Option<TcpIter>,
    /// The ends of connections; `None` without BPF, or if the caller does not want them.
    ends: Option<Ends>,
    /// Why BPF, or a part of it, is not available.
    problem: Option<String>,
    wants: Wants,
    /// When the last full scan began, and its summary. `None` if it was incomplete.
    last_full: Option<(Instant, ScanSummary)>,
    /// When a quick scan last failed.
    quick_failed: Option<Instant>,
    /// Inodes of namespaces that the caller may not enter.
    denied: HashSet<u64>,
    /// When all connections were last read.
    read_all: Option<Instant>,
}

/// The summary of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanSummary {
    /// Namespaces that were scanned.
    pub namespaces: usize,
    /// Namespaces that the caller may not enter.
    pub denied: usize,
    /// Namespaces beyond [`namespaces::NAMESPACES`].
    pub left_out: usize,
    /// Processes whose namespace the caller may not inspect.
    pub hidden: usize,
    /// Connections that were found.
    pub connections: usize,
    /// Connections whose events are not counted, because there are too many of them.
    pub without_slot: usize,
    /// Unknown kernel messages, and lists that the kernel marks as incomplete.
    pub incomplete: usize,
    /// BPF is not available, so the data that only BPF provides is missing.
    pub without_bpf: bool,
    /// The caller wants events between scans, but they cannot be counted.
    pub without_events: bool,
    /// The caller wants the ends of connections, and events are counted, but ends cannot be read.
    pub without_ends: bool,
}

/// Why a scan failed.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The namespace cannot be opened or entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The kernel does not list the connections of a namespace.
    #[error(
        "the kernel does not list the connections of namespace {namespace}: {source} (it needs CONFIG_INET_DIAG)"
    )]
    List {
        /// Name of the namespace.
        namespace: String,
        /// The kernel's error.
        source: Errno,
    },
}

/// A full scan in progress. [`FullScan::next`] returns one namespace after another;
/// [`FullScan::finish`] ends the scan.
pub(crate) struct FullScan<'a> {
    scanner: &'a mut Scanner,
    began: Instant,
    /// The BPF programs know the number of this scan, so later scans can rely on them for changes.
    is_tracked: bool,
    /// Whether to read unchanged connections, too.
    pub(crate) reads_all: bool,
    /// The summary so far.
    pub(crate) summary: ScanSummary,
    done: HashSet<NetnsId>,
    next: usize,
    /// A namespace could not be opened because the process that it was known by has ended.
    has_lost: bool,
    is_second_round: bool,
}

/// One namespace of a full scan.
pub(crate) struct Batch {
    index: usize,
    /// Its name.
    pub(crate) netns: Arc<str>,
    /// When the scan entered it.
    pub(crate) at: Instant,
    /// The list of the BPF program; `None` without BPF, or if the program fails.
    pub(crate) list: Option<List>,
    socket: Result<SockDiag, Errno>,
}

// === impl Scanner ===

impl Scanner {
    /// Returns a scanner that has not scanned yet.
    pub fn new(scope: Scope, wants: Wants) -> Self {
        let (bpf, mut problem) = load(wants);
        let ends = match bpf.as_ref().and_then(TcpIter::ends).transpose() {
            Ok(ends) => ends,
            Err(error) => {
                problem = Some(error.to_string());
                None
            }
        };
        Self {
            scope,
            namespaces: Vec::new(),
            left_out: 0,
            hidden: 0,
            found: None,
            bpf,
            ends,
            problem,
            wants,
            last_full: None,
            quick_failed: None,
            denied: HashSet::new(),
            read_all: None,
        }
    }

    /// Starts scan `number`, which must be larger than the previous scan's. Returns how many
    /// connections have no slot, or `None` if that is unknown.
    pub(crate) fn begin(&self, number: NonZeroU64) -> Option<u64> {
        self.bpf.as_ref()?.begin(number.get(), self.only())
    }

    /// Returns the summary of the last full scan if a quick scan suffices now. `without_slot` is
    /// the result of [`Scanner::begin`].
    pub(crate) fn may_be_quick(&self, without_slot: Option<u64>) -> Option<ScanSummary> {
        let is_recent = |at: Instant| at.elapsed() < FULL_EVERY;
        let (began, summary) = self.last_full?;
        let may = is_recent(began)
            && without_slot == Some(0)
            && !self.quick_failed.is_some_and(is_recent);
        may.then_some(summary)
    }

    /// Lists the connections of all namespaces that have a slot. Returns `None` if a full scan is
    /// required.
    pub(crate) fn quick(&self) -> Option<List> {
        self.bpf.as_ref()?.slots()?.ok()
    }

    /// Returns the namespaces of the last scan by inode, except those that the caller may not
    /// enter.
    pub(crate) fn entered(&self) -> impl Iterator<Item = (u64, &Namespace)> {
        let all = self.namespaces.iter();
        let all = all.map(|namespace| (namespace.id.inode(), namespace));
        all.filter(|(inode, _)| !self.denied.contains(inode))
    }

    /// Records that a quick scan failed, which disables quick scans for [`FULL_EVERY`].
    pub(crate) fn quick_failed(&mut self) {
        self.quick_failed = Some(Instant::now());
    }

    /// Starts to scan all namespaces. `without_slot` is the result of [`Scanner::begin`].
    pub(crate) fn full(&mut self, without_slot: Option<u64>) -> FullScan<'_> {
        let began = Instant::now();
        let is_past = |at: Instant| began.duration_since(at) >= READ_ALL_EVERY;
        let is_tracked = without_slot.is_some();
        self.denied.clear();
        FullScan {
            began,
            is_tracked,
            // Programs that do not know this scan's number cannot report what has changed.
            reads_all: self.read_all.is_none_or(is_past) || !is_tracked,
            summary: ScanSummary::default(),
            done: HashSet::new(),
            next: 0,
            has_lost: false,
            is_second_round: false,
            scanner: self,
        }
    }

    /// Queries connections that a scan did not find, and calls `each` with those that still exist.
    /// A list is not a snapshot: it may leave out a connection if others end while it is read.
    /// Returns `false` if the kernel did not answer, so that it is unknown which connections exist.
    pub(crate) fn find_again(
        &mut self,
        netns: &str,
        ids: &[SocketId],
        mut each: impl FnMut(Connection),
    ) -> bool {
        let mut is_known = true;
        // A namespace that no longer exists has no connections.
        for namespace in self.namespaces.iter().filter(|ns| *ns.name == *netns) {
            let listed = match namespace.run(SockDiag::open) {
                Ok(Some(Ok(mut socket))) if ids.len() <= BY_NAME => socket
                    .query(ids, &mut each)
                    .or_else(|_| socket.dump(&mut each)),
                Ok(Some(Ok(mut socket))) => socket.dump(&mut each),
                // The process that the namespace was known by has ended, but other processes may be
                // in it.
                Ok(None) => {
                    self.found = None;
                    is_known = false;
                    continue;
                }
                Ok(Some(Err(error))) => Err(error),
                // The caller may not enter this namespace, and could not before.
                Err(_) => continue,
            };
            if let Err(error) = listed {
                tracing::debug!(%error, netns, "some connections of a namespace were not found and may still exist");
                is_known = false;
            }
        }
        is_known
    }

    /// Passes the sockets that listen in each namespace of the last scan to `each`, if they can be
    /// listed, with the result of `also` in that namespace.
    pub(crate) fn listeners<T: Send>(
        &self,
        also: impl Fn() -> T + Sync,
        mut each: impl FnMut(&Namespace, Vec<Listener>, T),
    ) {
        for namespace in &self.namespaces {
            // A scan says that it may not be entered; or it is gone.
            let Ok(Some((socket, also))) = namespace.run(|| (SockDiag::open(), also())) else {
                continue;
            };
            let mut all = Vec::new();
            let listed = socket.and_then(|mut socket| socket.listeners(|one| all.push(one)));
            match listed {
                Ok(stats) if !stats.interrupted => each(namespace, all, also),
                listed => {
                    tracing::debug!(?listed, netns = %namespace.name, "sockets that listen are not listed");
                }
            }
        }
    }

    /// Returns whether a connection may have changed since the last scan began; `false` only if it
    /// is certain that none did.
    pub fn may_have_changed(&self) -> bool {
        let bpf = self.bpf.as_ref().filter(|_| self.last_full.is_some());
        bpf.and_then(TcpIter::has_activity).unwrap_or(true)
    }

    /// Passes the connections that have ended since the last call to `each`. Returns the number of
    /// ends that were lost because the ring buffer was full; `None` if ends are not recorded.
    pub(crate) fn ends(&mut self, each: impl FnMut(EndRecord)) -> Option<u64> {
        Some(self.ends.as_mut()?.read(each))
    }

    /// Returns why BPF, or a part of it, is not available; `None` if all of it is.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Returns the name of the namespace with this inode: the inode itself if no scan has found the
    /// namespace yet. `None` if the namespace is not observed.
    pub(crate) fn name_of(&self, inode: u32) -> Option<Arc<str>> {
        let mut all = self.namespaces.iter();
        let known = all.find(|namespace| namespace.id.inode() == u64::from(inode));
        match known {
            Some(namespace) => Some(namespace.name.clone()),
            None if self.scope == Scope::Machine => Some(format!("net:[{inode}]").into()),
            None => None,
        }
    }

    /// Returns the namespaces of the last scan.
    pub(crate) fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// Returns the inode of the only namespace that is scanned.
    fn only(&self) -> Option<u32> {
        let only = self
            .namespaces
            .first()
            .filter(|_| self.scope != Scope::Machine)?;
        u32::try_from(only.id.inode()).ok()
    }

    /// Finds the namespaces to scan.
    ///
    /// # Errors
    /// [`NetnsError`]: the caller's own namespace, or the named one, cannot be opened.
    pub(crate) fn find(&mut self) -> Result<(), NetnsError> {
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
            // Another namespace may have taken the name.
            Scope::Named(name) => self.namespaces = vec![namespaces::named(name)?],
        }
        Ok(())
    }
}

#[cfg(test)]
impl Scanner {
    pub(crate) fn bpf(&self) -> &TcpIter {
        self.bpf.as_ref().unwrap()
    }

    pub(crate) fn has_quick_failed(&self) -> bool {
        self.quick_failed.is_some()
    }
}

/// Loads the BPF programs. Returns `None` on failure: the scanner works without them, but provides
/// less data. Also returns why something is missing, if something is.
fn load(wants: Wants) -> (Option<TcpIter>, Option<String>) {
    match TcpIter::load(wants) {
        Ok(bpf) => {
            let problem = bpf.without_events().map(str::to_owned);
            (Some(bpf), problem)
        }
        Err(error) => {
            tracing::debug!(%error, "connections are scanned without BPF");
            (None, Some(error.to_string()))
        }
    }
}

// === impl FullScan ===

impl FullScan<'_> {
    /// Enters the next namespace. Returns `None` after the last one.
    ///
    /// # Errors
    /// [`ScanError`]: the first namespace cannot be entered. Failures of other namespaces are only
    /// counted.
    pub(crate) fn next(&mut self) -> Result<Option<Batch>, ScanError> {
        loop {
            let index = self.next;
            let Some(namespace) = self.scanner.namespaces.get(index) else {
                if !self.has_lost || self.is_second_round || self.scanner.scope != Scope::Machine {
                    return Ok(None);
                }
                // The process that a namespace was known by has ended, but other processes may be
                // in it.
                self.is_second_round = true;
                self.next = 0;
                self.scanner.found = None;
                self.scanner.find()?;
                continue;
            };
            self.next += 1;
            if self.done.contains(&namespace.id) {
                continue;
            }
            let bpf = self.scanner.bpf.as_ref();
            match namespace.run(|| (SockDiag::open(), bpf.map(TcpIter::list))) {
                Ok(Some((socket, list))) => {
                    self.done.insert(namespace.id);
                    self.summary.incomplete += usize::from(matches!(list, Some(Err(_))));
                    return Ok(Some(Batch {
                        index,
                        netns: namespace.name.clone(),
                        at: Instant::now(),
                        list: list.and_then(Result::ok),
                        socket,
                    }));
                }
                Ok(None) => self.has_lost = true,
                Err(e) if index == 0 => return Err(e.into()),
                Err(_) => {
                    self.done.insert(namespace.id);
                    self.scanner.denied.insert(namespace.id.inode());
                    self.summary.denied += 1;
                }
            }
        }
    }

    /// Reads connections of a namespace and calls `each` with them: those listed in `changed`, or
    /// all if `changed` is `None`.
    ///
    /// # Errors
    /// [`ScanError`]: the kernel does not list the connections of the first namespace. Failures of
    /// other namespaces are only counted.
    pub(crate) fn read(
        &mut self,
        batch: Batch,
        changed: Option<Changed>,
        each: impl FnMut(Connection),
    ) -> Result<(), ScanError> {
        if let Some(changed) = &changed {
            self.summary.without_slot += changed.without_slot;
        }
        let listed = batch.socket.and_then(|mut socket| match changed {
            Some(changed) => changed.read(socket, &batch.netns, each),
            None => socket.dump(each),
        });
        match listed {
            Ok(listed) => self.summary.add(listed),
            Err(source) if batch.index == 0 => {
                return Err(ScanError::List {
                    namespace: batch.netns.to_string(),
                    source,
                });
            }
            Err(_) => self.summary.incomplete += 1,
        }
        Ok(())
    }

    /// Ends the scan and returns its summary.
    pub(crate) fn finish(self) -> ScanSummary {
        let scanner = self.scanner;
        let counts_events = scanner.bpf.as_ref().is_some_and(TcpIter::counts_events);
        let mut summary = ScanSummary {
            left_out: scanner.left_out,
            hidden: scanner.hidden,
            without_bpf: scanner.bpf.is_none(),
            without_events: scanner.wants.events && !counts_events,
            without_ends: scanner.wants.ends && counts_events && scanner.ends.is_none(),
            ..self.summary
        };
        if !counts_events {
            summary.without_slot = 0;
        }
        let is_complete = self.is_tracked && summary.incomplete == 0;
        scanner.last_full = is_complete.then_some((self.began, summary));
        if self.reads_all {
            scanner.read_all = Some(self.began);
        }
        summary
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

    /// Connections with the names of their namespaces.
    type Read = Vec<(Arc<str>, Connection)>;

    /// Reads all connections.
    fn scan(scanner: &mut Scanner) -> Result<(Read, ScanSummary), ScanError> {
        scanner.find()?;
        let without_slot = scanner.begin(NonZeroU64::MIN);
        let mut scan = scanner.full(without_slot);
        let mut read = Vec::new();
        while let Some(mut batch) = scan.next()? {
            let mut changed = Changed::default();
            let mut list = batch.list.take().unwrap();
            while let Some(found) = list.next() {
                found.unwrap();
                changed.want(&list.details().unwrap().unwrap().0);
            }
            let netns = batch.netns.clone();
            let each = |connection| read.push((netns.clone(), connection));
            scan.read(batch, Some(changed), each)?;
        }
        Ok((read, scan.finish()))
    }

    #[test]
    fn a_connection_is_found_in_its_own_namespace() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let local = client.local_addr().unwrap();
        for scope in [Scope::Own, Scope::Machine] {
            let (read, summary) = scan(&mut Scanner::new(scope, Wants::EVENTS)).unwrap();
            assert_eq!(summary.connections, read.len());
            let is_it = |(netns, c): &(Arc<str>, Connection)| &**netns == "-" && c.local == local;
            let found = read.iter().find(|found| is_it(found)).unwrap();
            assert!(found.1.internals.is_some());
        }
    }

    #[test]
    fn a_ring_buffer_that_cannot_be_read_is_reported() {
        let mut scanner = Scanner::new(Scope::Own, Wants::ALL);
        let (_, summary) = scan(&mut scanner).unwrap();
        assert!(!summary.without_ends);
        scanner.ends = None;
        let (_, summary) = scan(&mut scanner).unwrap();
        assert!(summary.without_ends && !summary.without_events);
    }

    #[test]
    fn an_unknown_namespace_is_an_error_that_names_it() {
        let mut scanner = Scanner::new(Scope::Named("taut-no-such".into()), Wants::default());
        let error = scan(&mut scanner).unwrap_err().to_string();
        assert!(error.contains("taut-no-such"), "{error}");
    }
}
