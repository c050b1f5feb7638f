//! A scan that walks namespaces.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashSet;
use taut_sys::Errno;
use taut_sys::netns::NetnsId;
use taut_sys::sock_diag::{Connection, SockDiag};

use super::{Changed, ScanError, ScanSummary, Scanner, Scope};
use crate::bpf_iter::{List, TcpIter};

/// A walk in progress. [`WalkScan::next`] returns one namespace after another;
/// [`WalkScan::finish`] ends the scan.
pub(crate) struct WalkScan<'a> {
    pub(super) scanner: &'a mut Scanner,
    /// `None`: all namespaces.
    pub(super) only: Option<FxHashSet<u64>>,
    pub(super) is_due: bool,
    pub(super) began: Instant,
    /// The BPF programs know the number of this scan, so later scans can rely on them for changes.
    pub(super) is_tracked: bool,
    /// Whether to read unchanged connections, too.
    pub(crate) reads_all: bool,
    /// The summary so far.
    pub(crate) summary: ScanSummary,
    pub(super) done: HashSet<NetnsId>,
    pub(super) next: usize,
    /// A namespace could not be opened because the process that it was known by has ended.
    pub(super) has_lost: bool,
    pub(super) is_second_round: bool,
}

/// One namespace of a walk.
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

// === impl WalkScan ===

impl WalkScan<'_> {
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
            let inode = namespace.id.inode();
            let is_wanted = |only: &FxHashSet<u64>| only.contains(&inode);
            if self.done.contains(&namespace.id) || !self.only.as_ref().is_none_or(is_wanted) {
                continue;
            }
            let bpf = self.scanner.bpf.as_ref();
            match namespace.run(|| (SockDiag::open(), bpf.map(TcpIter::list))) {
                Ok(Some((socket, list))) => {
                    self.done.insert(namespace.id);
                    self.scanner.walked.insert(inode);
                    self.scanner.denied.remove(&inode);
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
                    // Perhaps only for now: the next walk tries again.
                    self.scanner.walked.remove(&inode);
                    self.scanner.denied.insert(inode);
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
            denied: scanner.denied.len(),
            left_out: scanner.left_out,
            hidden: scanner.hidden,
            first_hidden: scanner.first_hidden,
            without_bpf: scanner.bpf.is_none(),
            without_events: scanner.wants.events && !counts_events,
            without_ends: scanner.wants.ends && counts_events && scanner.ends.is_none(),
            ..self.summary
        };
        if !counts_events {
            summary.without_slot = 0;
        }
        if self.only.is_some() {
            // The others were read before, or have no connections.
            summary.namespaces = scanner.namespaces.len().saturating_sub(summary.denied);
        }
        let is_complete = self.is_tracked && summary.incomplete == 0;
        scanner.last_walk = is_complete.then_some(summary);
        if self.is_due {
            scanner.walked_at = Some(self.began);
        }
        if self.reads_all {
            scanner.read_all = Some(self.began);
        }
        summary
    }
}
