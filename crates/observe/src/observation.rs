//! Observes connections for some time, including those that end meanwhile.

use std::sync::Arc;
use std::time::Duration;

use crate::ended::Groups;
use crate::filter::{Filter, Subject};
use crate::listeners::{Dropping, Listeners};
use crate::observer::{Observer, Tracked};
use crate::owner::Process;
use crate::scan::{ScanError, ScanSummary};
use crate::verdict::{self, Verdict, rank};

/// The number of ended connections that are kept with a verdict, 2 kB each: those that carried
/// most. Up to as many more are kept until the next sorting. The sums include all that ended.
const KEPT: usize = 1000;

/// An observer, and the connections that have ended since it began.
#[derive(Debug)]
pub struct Observation {
    observer: Observer,
    filter: Filter,
    /// Also matches the other ends, if they are on this machine.
    both_ends: Filter,
    kept: Vec<Kept>,
    /// Those that the filter does not match: the first [`KEPT`].
    other_ends: Vec<Kept>,
    groups: Groups,
    /// `None` before the first scan.
    listeners: Option<Listeners>,
}

/// A connection that at least two scans have found, and that has ended.
#[derive(Debug)]
pub struct Kept {
    /// The socket's cookie.
    pub cookie: u64,
    /// Its last samples.
    pub tracked: Tracked,
    /// The process that owned it, if it is known.
    pub process: Option<Arc<Process>>,
    /// The verdict on the time between the first scan and the last that found it.
    pub verdict: Verdict,
    /// What it carried in that time.
    pub transfer: Transfer,
}

/// What a connection carried while it was observed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transfer {
    /// Payload that the peer acknowledged, in bytes.
    pub sent: u64,
    /// Payload that arrived in order, in bytes.
    pub received: u64,
    /// The time between the first sample and the last.
    pub elapsed: Duration,
    /// Whether it sends at least as much as it receives: in that time, or else in its whole life.
    pub sends: bool,
}

// === impl Transfer ===

impl Transfer {
    pub(crate) fn of(tracked: &Tracked) -> Self {
        let window = tracked.window();
        let in_life = || {
            let info = tracked.last().info()?;
            Some(info.bytes_acked? >= info.bytes_received?)
        };
        let sends = window.as_ref().and_then(verdict::sends);
        let sends = sends.or_else(in_life).unwrap_or(true);
        let none = Self {
            sends,
            ..Self::default()
        };
        window.map_or(none, |window| Self {
            sent: window.more(|info| info.bytes_acked),
            received: window.more(|info| info.bytes_received),
            elapsed: window.elapsed(),
            sends,
        })
    }

    pub(crate) fn carried(&self) -> u64 {
        self.sent + self.received
    }
}

// === impl Observation ===

impl Observation {
    /// Returns an observation that has not scanned yet.
    pub fn new(observer: Observer, filter: Filter) -> Self {
        Self {
            observer,
            both_ends: filter.and_other_ends(),
            filter,
            kept: Vec::new(),
            other_ends: Vec::new(),
            groups: Groups::default(),
            listeners: None,
        }
    }

    /// Scans, and adds the connections that have ended.
    ///
    /// # Errors
    /// [`ScanError`]: the caller's own namespace, or the named one, cannot be scanned.
    pub fn scan(&mut self) -> Result<ScanSummary, ScanError> {
        self.poll();
        let mut ended = Vec::new();
        let summary = self
            .observer
            .scan_and(&self.both_ends, |cookie, tracked, process| {
                ended.push((cookie, tracked, process));
            })?;
        if self.observer.left_out() > 0 {
            // Other ends take no room from what is asked about.
            self.both_ends = self.filter.clone();
        }
        if self.listeners.is_none() {
            self.listeners = Some(Listeners::begin(self.observer.scanner()));
        }
        for (cookie, tracked, process) in ended {
            self.keep(cookie, tracked, process);
        }
        if self.kept.len() > 2 * KEPT {
            self.keep_first();
        }
        Ok(summary)
    }

    /// Adds the connections that have ended since the last call to the sums.
    pub fn poll(&mut self) {
        let (filter, groups) = (&self.filter, &mut self.groups);
        self.observer.poll_ended(|ended| {
            if filter.matches(&Subject::of_ended(ended)) {
                groups.add(ended);
            }
        });
    }

    /// Scans once more and keeps every connection, to tell what there is where the filter matches none.
    ///
    /// # Errors
    /// [`ScanError`]: the caller's own namespace, or the named one, cannot be scanned.
    pub fn scan_all(&mut self) -> Result<ScanSummary, ScanError> {
        self.both_ends = Filter::all();
        self.scan()
    }

    fn keep(&mut self, cookie: u64, mut tracked: Tracked, process: Option<Arc<Process>>) {
        let matches = |filter: &Filter| self.observer.matches(filter, &tracked, process.as_deref());
        let is_asked = matches(&self.filter);
        let is_other_end = || self.other_ends.len() < KEPT && matches(&self.both_ends);
        if !is_asked && !is_other_end() {
            return;
        }
        let Some(verdict) = self.observer.verdict_of(&tracked, process.as_deref()) else {
            return;
        };
        let transfer = Transfer::of(&tracked);
        tracked.shorten();
        let kept = match is_asked {
            true => &mut self.kept,
            false => &mut self.other_ends,
        };
        kept.push(Kept {
            cookie,
            tracked,
            process,
            verdict,
            transfer,
        });
    }

    /// Keeps the connections with the most trouble, and of these those that carried most.
    fn keep_first(&mut self) {
        self.kept
            .sort_by_key(|kept| rank(Some(&kept.verdict), kept.transfer.carried()));
        self.kept.truncate(KEPT);
    }

    /// Returns the observer.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Returns the filter.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Returns a filter that also matches other ends on this machine.
    pub(crate) fn both_ends(&self) -> &Filter {
        &self.both_ends
    }

    /// Whether the filter has matched no connection.
    pub fn is_empty(&self) -> bool {
        let is_any = self.observer.connections(&self.filter).next().is_some();
        !is_any && self.groups.is_empty()
    }

    /// Returns the ended connections with a verdict.
    pub fn kept(&self) -> &[Kept] {
        &self.kept
    }

    /// Returns ended connections that the filter does not match, and that may be other ends.
    pub(crate) fn other_ends(&self) -> &[Kept] {
        &self.other_ends
    }

    /// Returns the sums of all ended connections that the filter matches.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Returns the sockets that the filter matches and that have dropped connection attempts since
    /// the first scan. Reads the present figures of all.
    pub fn dropping(&self) -> Vec<Dropping> {
        let listeners = self.listeners.as_ref();
        listeners.map_or(Vec::new(), |began| {
            began.dropping(self.observer.scanner(), &self.filter)
        })
    }
}
