//! Scans the connections of all network namespaces.
//!
//! A full scan walks the kernel's table of connections in each namespace, which costs the same for
//! an idle one. A quick scan lists only the connections that have a slot in the BPF programs, in all
//! namespaces at once. Most scans are quick, and every few seconds one also walks the namespaces in
//! which there may be connections without a slot ([`Walk`]). Where the kernel refuses the
//! program that lists slots, each scan walks the namespaces with connections. The programs report when each
//! connection changed last. The caller decides which connections it knows already; only the others
//! are read with sock_diag.
//!
//! The scanner keeps a namespace open only while it lists its connections. Between scans it keeps
//! none open, so a namespace disappears when its owner releases it.

mod changed;
mod walk;

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};
use taut_sys::Errno;
use taut_sys::netns::NetnsError;
use taut_sys::sock_diag::{Connection, DumpStats, Listener, SockDiag, SocketId};

pub(crate) use self::changed::Changed;
pub(crate) use self::walk::WalkScan;
pub use crate::bpf_iter::Wants;
use crate::bpf_iter::{EndRecord, Ends, List, TcpIter};
use crate::namespaces::{self, Namespace};

/// The longest time until a new namespace is found.
pub const FIND_EVERY: Duration = Duration::from_secs(5);

/// The longest time between two scans that walk. Only a walk finds connections that have no slot
/// yet: those that a peer is opening to this machine.
const WALK_EVERY: Duration = FIND_EVERY;

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
    first_hidden: Option<u32>,
    found: Option<Instant>,
    /// `None` without BPF.
    bpf: Option<TcpIter>,
    /// The ends of connections; `None` without BPF, or if the caller does not want them.
    ends: Option<Ends>,
    /// Why BPF, or a part of it, is not available.
    problem: Option<String>,
    wants: Wants,
    /// The summary of the last scan that walked. `None` if it was incomplete, or there was no full one before it.
    last_walk: Option<ScanSummary>,
    /// When it began.
    walked_at: Option<Instant>,
    /// Inodes of the namespaces that a walk has entered.
    walked: FxHashSet<u64>,
    /// Inodes of the namespaces that the programs have noted since the scan before the last one. A connection is noted
    /// just before a walk finds it.
    noted: FxHashSet<u64>,
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
    /// The pid of the first of them.
    pub first_hidden: Option<u32>,
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
        "the kernel does not list the connections of {}: {source} (it needs CONFIG_INET_DIAG)",
        namespaces::in_words(namespace)
    )]
    List {
        /// Name of the namespace.
        namespace: String,
        /// The kernel's error.
        source: Errno,
    },
}

/// The namespaces that a scan walks.
#[derive(Debug)]
pub(crate) enum Walk {
    /// All: it is a full scan.
    All,
    /// Some, and the others as in a quick scan.
    Some(Walked),
    /// None: it is a quick scan. What a walk would not have changed in its summary is in this one.
    None(ScanSummary),
}

/// The namespaces that a scan walks if it does not walk all.
#[derive(Debug)]
pub(crate) struct Walked {
    /// Their inodes: the first, new ones, and those in which a peer is opening a connection. If slots cannot be listed,
    /// also those with connections; none is left for the quick part of the scan.
    pub(crate) inodes: FxHashSet<u64>,
    /// The last walk that was due is [`WALK_EVERY`] old.
    is_due: bool,
    /// Those with connections are among them, and unchanged ones are read, too.
    reads_all: bool,
    began: Instant,
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
            first_hidden: None,
            found: None,
            bpf,
            ends,
            problem,
            wants,
            last_walk: None,
            walked_at: None,
            walked: FxHashSet::default(),
            noted: FxHashSet::default(),
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

    /// Returns the namespaces to walk now. `without_slot` is the result of [`Scanner::begin`]. `used` returns the names of
    /// namespaces with connections, and whether a peer is opening one of them.
    pub(crate) fn walk<'a>(
        &mut self,
        without_slot: Option<u64>,
        used: impl FnOnce() -> FxHashMap<&'a str, bool>,
    ) -> Walk {
        let began = Instant::now();
        let is_recent = |at: Instant| began.duration_since(at) < WALK_EVERY;
        let Some(last) = self.last_walk else {
            return Walk::All;
        };
        if without_slot != Some(0) || self.quick_failed.is_some_and(is_recent) {
            return Walk::All;
        }
        let lists_slots = self.lists_slots();
        let is_due = !self.walked_at.is_some_and(is_recent);
        if lists_slots && !is_due {
            return Walk::None(last);
        }
        let Some(noted) = self.bpf.as_ref().and_then(TcpIter::take_to_walk) else {
            return Walk::All;
        };
        let noted: FxHashSet<_> = noted.into_iter().map(u64::from).collect();
        let noted_before = std::mem::replace(&mut self.noted, noted);
        let (used, reads_all) = (used(), self.reads_all());
        let names: FxHashSet<&str> = self.namespaces.iter().map(|ns| &*ns.name).collect();
        let is_renamed = |(name, is_opening): (&&str, &bool)| *is_opening && !names.contains(name);
        if used.iter().any(is_renamed) {
            return Walk::All;
        }
        let all = self.namespaces.iter().map(|ns| (ns.id.inode(), ns));
        let walked = all.enumerate().filter(|(index, (inode, namespace))| {
            let is_used = || used.get(&*namespace.name);
            (is_due && (*index == 0 || self.denied.contains(inode)))
                || !(self.walked.contains(inode) || self.denied.contains(inode))
                || self.noted.contains(inode)
                || noted_before.contains(inode)
                || is_used().is_some_and(|is_opening| *is_opening || reads_all || !lists_slots)
        });
        Walk::Some(Walked {
            inodes: walked.map(|(_, (inode, _))| inode).collect(),
            reads_all,
            is_due,
            began,
        })
    }

    /// Whether connections can be listed without a walk.
    pub(crate) fn lists_slots(&self) -> bool {
        self.bpf.as_ref().is_some_and(TcpIter::lists_slots)
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

    /// Records that a quick scan failed, which disables quick scans for [`WALK_EVERY`].
    pub(crate) fn quick_failed(&mut self) {
        self.quick_failed = Some(Instant::now());
    }

    /// Starts to walk namespaces: all without `walked`. `without_slot` is the result of [`Scanner::begin`].
    pub(crate) fn begin_walk(
        &mut self,
        walked: Option<Walked>,
        without_slot: Option<u64>,
    ) -> WalkScan<'_> {
        let is_tracked = without_slot.is_some();
        let (only, reads_all, is_due, began) = match walked {
            Some(walked) => (
                Some(walked.inodes),
                walked.reads_all,
                walked.is_due,
                walked.began,
            ),
            None => {
                self.denied.clear();
                (None, self.reads_all(), true, Instant::now())
            }
        };
        WalkScan {
            only,
            is_due,
            began,
            is_tracked,
            // Programs that do not know this scan's number cannot report what has changed.
            reads_all: reads_all || !is_tracked,
            summary: ScanSummary::default(),
            done: HashSet::new(),
            next: 0,
            has_lost: false,
            is_second_round: false,
            scanner: self,
        }
    }

    /// Whether it is time to read unchanged connections, too.
    fn reads_all(&self) -> bool {
        let is_recent = |at: Instant| at.elapsed() < READ_ALL_EVERY;
        !self.read_all.is_some_and(is_recent)
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
        let bpf = self.bpf.as_ref().filter(|_| self.last_walk.is_some());
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
                // What is known of one by its former name has to be found again.
                let former: FxHashMap<_, _> = self.entered().collect();
                let all = found.namespaces.iter().map(|ns| (ns.id.inode(), ns));
                let renamed = all.filter(|(inode, ns)| {
                    former
                        .get(inode)
                        .is_some_and(|former| former.name != ns.name)
                });
                let renamed: Vec<_> = renamed.map(|(inode, _)| inode).collect();
                self.walked.retain(|inode| !renamed.contains(inode));
                self.namespaces = found.namespaces;
                self.left_out = found.left_out;
                self.hidden = found.hidden;
                self.first_hidden = found.first_hidden;
                self.found = Some(Instant::now());
                let present = self.namespaces.iter().map(|ns| ns.id.inode());
                let present: FxHashSet<_> = present.collect();
                self.walked.retain(|inode| present.contains(inode));
                self.denied.retain(|inode| present.contains(inode));
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

    /// Scans as on a kernel that refuses the program that lists slots.
    pub(crate) fn forbid_lists_of_slots(&mut self) {
        self.bpf = Some(TcpIter::load_without_slots());
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

// === impl ScanSummary ===

impl ScanSummary {
    fn add(&mut self, listed: DumpStats) {
        self.namespaces += 1;
        self.connections += listed.connections;
        self.incomplete += listed.unknown + usize::from(listed.interrupted);
    }
}

#[cfg(test)]
mod tests;
