//! Follows connections to their end and reports them. The library behind `taut watch`.
//!
//! A scan shows what each connection is doing. The kernel reports the end of a connection with its
//! final figures ([`ends`]). A connection that opened and closed between two scans is reported only
//! at its end, without a verdict, and with the owner that a BPF program has recorded, if any. If a scan no longer finds a connection and the kernel
//! does not report its end within two seconds, the connection is reported with its last sample, and
//! with the counts that a BPF program read at its end. The kernel reports the end only when it frees
//! the socket: while an application keeps the descriptor of a connection that was reset, or that
//! both ends have shut down, there is no report.

mod ends;
pub mod files;
pub mod line;
pub mod metrics;
pub mod run;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use taut_sys::sock_diag::Connection;

use crate::ended::Ended;
use crate::filter::Filter;
use crate::observer::Observer;
use crate::observer::Tracked;
use crate::owner::Process;
use crate::scan::{ScanError, ScanSummary};
pub use crate::table::Figures;
use crate::table::is_final;
use crate::verdict::{Factor, Verdict};
use crate::window::Sample;
use ends::Listeners;

/// The time that the kernel has to report the end of a connection after a scan missed it.
const REPORT_WITHIN: Duration = Duration::from_secs(2);
/// The number of ends to remember that were written without another report, which may come at any later time. Twice as
/// many are remembered for some time.
const REMEMBERED: usize = 50_000;
/// The number of ends to hold that the programs have reported, and the kernel not yet. Of further ones only the
/// kernel's report counts.
const HELD: usize = 100_000;

/// The occasion of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The connection has ended.
    End,
    /// The connection is open.
    Open,
}

/// How long a connection has been observed, and what limited it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Life {
    /// When a scan first found it, as time since the observation began.
    pub since: Duration,
    /// Seconds for which each factor limited it, in the order of [`Factor::ALL`].
    pub limited: [f64; Factor::ALL.len()],
    /// When a scan last found it.
    last: Duration,
    /// Its end, if a BPF program has reported it and the kernel has not yet.
    ended: Option<Box<Ended>>,
}

/// A report on a connection.
#[derive(Debug)]
pub struct Report<'a> {
    /// The occasion of the report.
    pub event: Event,
    /// The socket's cookie.
    pub cookie: u64,
    /// Its samples.
    pub tracked: &'a Tracked,
    /// The process that owned it, if it is known.
    pub process: Option<&'a Process>,
    /// How long it was observed; `None` if no scan found it.
    pub life: Option<&'a Life>,
    /// The verdict on its last samples; `None` if there is only one sample.
    pub verdict: Option<Verdict>,
    /// Where its figures are from; `None` if it is open, or if its end is known without figures.
    pub figures: Option<Figures>,
    /// Its end, if it has ended and BPF programs recorded that.
    pub ended: Option<&'a Ended>,
}

/// Takes reports.
pub trait ReportSink {
    /// Takes a report on a connection.
    fn report(&mut self, report: &Report<'_>);

    /// Adds seconds in which a factor limited a connection of this process.
    fn limited(&mut self, process: Option<&Process>, factor: Factor, seconds: f64);
}

/// Counts of reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ends that were reported.
    pub ended: u64,
    /// Ended connections that no scan found.
    pub unseen: u64,
    /// Ended connections whose end the kernel did not report.
    pub unreported: u64,
    /// Number of times that the kernel dropped reports of ends, or their owners, because they were
    /// not read in time.
    pub missed: u64,
    /// Ended connections that were reported without an owner.
    pub without_owner: u64,
    /// Ended connections that were reported without phases: the programs did not report their end, or it was
    /// forgotten before the kernel's report came.
    pub without_phases: u64,
}

/// A connection that a scan no longer found.
#[derive(Debug)]
struct Unlisted {
    tracked: Tracked,
    process: Option<Arc<Process>>,
    life: Life,
    /// When a scan first missed it.
    since: Duration,
}

/// Follows connections from scan to scan.
#[derive(Debug)]
pub struct Watcher {
    observer: Observer,
    filter: Filter,
    listeners: Listeners,
    lives: HashMap<u64, Life>,
    /// Connections whose end the kernel should report soon.
    unlisted: HashMap<u64, Unlisted>,
    /// Connections that no scan has found and whose end the programs have reported, but not the kernel, and since
    /// when: at most [`HELD`].
    unfound: HashMap<u64, (Ended, Duration)>,
    /// Connections whose end was written without the kernel's report, or without that of the programs: the newest,
    /// and those before.
    written: [HashSet<u64>; 2],
    counts: Counts,
}

// === impl Watcher ===

impl Watcher {
    /// Returns a watcher that has not scanned yet.
    pub fn new(observer: Observer, filter: Filter) -> Self {
        Self {
            observer,
            filter,
            listeners: Listeners::default(),
            lives: HashMap::new(),
            unlisted: HashMap::new(),
            unfound: HashMap::new(),
            written: Default::default(),
            counts: Counts::default(),
        }
    }

    /// Scans all connections, and reports those that have ended.
    ///
    /// # Errors
    /// [`ScanError`]: the caller's own namespace, or the named one, cannot be scanned.
    pub fn scan(&mut self, to: &mut impl ReportSink) -> Result<ScanSummary, ScanError> {
        // Before the scan, so that no connection that it finds ends without a listener. Listeners of
        // namespaces that are gone are read a last time.
        self.poll_ends(to);
        self.listeners.listen(self.observer.find_namespaces()?);
        let (lives, unlisted, unfound) = (&mut self.lives, &mut self.unlisted, &mut self.unfound);
        let since = self.observer.elapsed();
        let summary = self
            .observer
            .scan_and(&self.filter, |cookie, tracked, process| {
                let mut life = lives.remove(&cookie).unwrap_or_default();
                if let Some((ended, _)) = unfound.remove(&cookie) {
                    life.ended = Some(Box::new(ended));
                }
                let left = Unlisted {
                    tracked,
                    process,
                    life,
                    since,
                };
                unlisted.insert(cookie, left);
            })?;
        // A scan may take long, so the wait for the kernel's report starts at its end.
        let missed = self.observer.elapsed();
        let new = self
            .unlisted
            .values_mut()
            .filter(|unlisted| unlisted.since == since);
        new.for_each(|unlisted| unlisted.since = missed);
        self.account(to);
        self.report_ends(self.observer.elapsed(), to);
        Ok(summary)
    }

    /// Reports connections that have ended, also those whose end the kernel should have reported by
    /// `now`. `now` is a time before this call: what the kernel has reported by then is read here,
    /// however long reading takes.
    fn report_ends(&mut self, now: Duration, to: &mut impl ReportSink) {
        self.poll_ends(to);
        let overdue = self
            .unlisted
            .extract_if(|_, unlisted| now.saturating_sub(unlisted.since) > REPORT_WITHIN);
        for (cookie, mut unlisted) in overdue.collect::<Vec<_>>() {
            if !self.matches(&unlisted) {
                continue;
            }
            self.counts.unreported += 1;
            self.note_written(cookie);
            let verdict = self.verdict_of(&unlisted);
            let figures = unlisted.finish(unlisted.since, None);
            self.end(cookie, &unlisted, verdict, figures, to);
        }
        self.report_unfound(now, to);
    }

    /// Reports connections that no scan has found and whose end the kernel should have reported by `now`.
    fn report_unfound(&mut self, now: Duration, to: &mut impl ReportSink) {
        let overdue = self
            .unfound
            .extract_if(|_, (_, since)| now.saturating_sub(*since) > REPORT_WITHIN);
        for (cookie, (ended, at)) in overdue.collect::<Vec<_>>() {
            self.note_written(cookie);
            let sample = Sample {
                at,
                connection: ended.connection(),
            };
            let figures = Some(Figures::Counts);
            let is_reported = self.end_unseen(sample, &ended.netns, figures, Some(&ended), to);
            self.counts.unreported += u64::from(is_reported);
        }
    }

    /// Notes that the end of a connection was written, so that another report of it is not.
    fn note_written(&mut self, cookie: u64) {
        if self.written[0].len() >= REMEMBERED {
            self.written.swap(0, 1);
            self.written[0].clear();
        }
        self.written[0].insert(cookie);
    }

    /// Reports connections that have ended. Call this several times between two scans if many connections open and
    /// close.
    pub fn poll(&mut self, to: &mut impl ReportSink) {
        let now = self.observer.elapsed();
        self.poll_ends(to);
        self.report_unfound(now, to);
    }

    /// Reports what is known of connections that have ended, and waits for no other report. Call this last.
    pub fn finish(&mut self, to: &mut impl ReportSink) {
        self.poll_ends(to);
        self.report_unfound(Duration::MAX, to);
    }

    /// Reports connections whose end the kernel has reported since the last call.
    fn poll_ends(&mut self, to: &mut impl ReportSink) {
        let mut ends = Vec::new();
        let began = self.observer.elapsed();
        self.counts.missed += self
            .listeners
            .poll(|netns, connection| ends.push((netns.clone(), connection)));
        // The program writes its record before the kernel reports the end, so the record of each
        // end that was read above is there, unless one before it is not complete yet.
        let mut unfound = Vec::new();
        let missed = self.observer.poll_ended(|ended| {
            let unlisted = self.unlisted.get_mut(&ended.cookie);
            let life = unlisted.map(|unlisted| &mut unlisted.life);
            if let Some(life) = life.or_else(|| self.lives.get_mut(&ended.cookie)) {
                life.ended = Some(Box::new(ended.clone()));
            } else {
                unfound.push(ended.clone());
            }
        });
        for ended in unfound {
            let cookie = ended.cookie;
            let is_written = self.written.iter().any(|of| of.contains(&cookie));
            // The next scan misses one that a scan has found.
            let is_found = self.observer.get(cookie).is_some();
            if !is_written && !is_found && self.unfound.len() < HELD {
                self.unfound.insert(cookie, (ended, began));
            }
        }
        self.counts.missed += missed.unwrap_or(0);
        for (netns, connection) in ends {
            self.ended(&netns, began, connection, to);
        }
    }

    /// Reports all open connections that the filter matches.
    pub fn report_open(&self, to: &mut impl ReportSink) {
        for seen in self.observer.connections(&self.filter) {
            to.report(&Report {
                event: Event::Open,
                cookie: seen.cookie,
                tracked: seen.tracked,
                process: seen.process,
                life: self.lives.get(&seen.cookie),
                verdict: self.observer.verdict(&seen),
                figures: None,
                ended: None,
            });
        }
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the observer.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Adds the time since the last scan to the factor that limits each connection.
    fn account(&mut self, to: &mut impl ReportSink) {
        for seen in self.observer.connections(&self.filter) {
            let at = seen.tracked.last().at;
            // The connection still exists.
            if let Some(unlisted) = self.unlisted.remove(&seen.cookie) {
                self.lives.insert(seen.cookie, unlisted.life);
            }
            for written in &mut self.written {
                written.remove(&seen.cookie);
            }
            self.unfound.remove(&seen.cookie);
            let life = self.lives.entry(seen.cookie).or_insert_with(|| Life {
                since: at,
                last: at,
                ..Life::default()
            });
            // A socket may connect again. One that is only kept, because the kernel did not answer, may
            // have ended.
            if at > life.last {
                life.ended = None;
            }
            let time = at.saturating_sub(life.last).as_secs_f64();
            life.last = at;
            if let Some((factor, _)) = self.observer.limit(&seen) {
                life.limited[factor.index()] += time;
                to.limited(seen.process, factor, time);
            }
        }
    }

    /// Handles the kernel's report that a connection has ended.
    fn ended(
        &mut self,
        netns: &Arc<str>,
        at: Duration,
        mut connection: Connection,
        to: &mut impl ReportSink,
    ) {
        let cookie = connection.cookie;
        let held = self.unfound.remove(&cookie).map(|(ended, _)| ended);
        if self.written.iter().any(|written| written.contains(&cookie)) {
            return;
        }
        let known = self.unlisted.remove(&cookie).or_else(|| {
            let (tracked, process) = self.observer.take(cookie)?;
            let life = self.lives.remove(&cookie).unwrap_or_default();
            Some(Unlisted {
                tracked,
                process,
                life,
                since: at,
            })
        });
        if let Some(mut unlisted) = known {
            // The filter must see the state before the end, and so must the verdict: closing a
            // connection sends segments that its application did not ask for.
            let matches = self.matches(&unlisted);
            let verdict = self.verdict_of(&unlisted);
            let figures = unlisted.finish(at, Some(connection));
            if matches {
                let verdict = verdict.or_else(|| self.verdict_of(&unlisted));
                self.end(cookie, &unlisted, verdict, figures, to);
            }
            return;
        }
        connection.info = connection.info.filter(is_final);
        let ended = held.or_else(|| self.observer.remembered(cookie).cloned());
        if ended.is_none() {
            self.note_written(cookie);
        }
        let figures = match (&connection.info, &ended) {
            (Some(_), _) => Some(Figures::End),
            (None, Some(ended)) => {
                // With tcp_info, the kernel clears the addresses.
                (connection.local, connection.remote) = (ended.local, ended.remote);
                Some(Figures::Counts)
            }
            (None, None) => None,
        };
        let sample = Sample { at, connection };
        self.end_unseen(sample, netns, figures, ended.as_ref(), to);
    }

    /// Reports the end of a connection that no scan has found, if the filter matches it. Returns whether it does.
    fn end_unseen(
        &mut self,
        sample: Sample,
        netns: &Arc<str>,
        figures: Option<Figures>,
        ended: Option<&Ended>,
        to: &mut impl ReportSink,
    ) -> bool {
        let cookie = sample.connection.cookie;
        let tracked = Tracked::only(netns.clone(), sample);
        let process = ended.and_then(|ended| ended.process.as_deref());
        if !self.observer.matches(&self.filter, &tracked, process) {
            return false;
        }
        self.counts.ended += 1;
        self.counts.unseen += 1;
        self.counts.without_owner += u64::from(process.is_none());
        self.counts.without_phases += u64::from(ended.is_none());
        to.report(&Report {
            event: Event::End,
            cookie,
            tracked: &tracked,
            process,
            life: None,
            verdict: None,
            figures,
            ended,
        });
        true
    }

    /// Applies the filter again, because the table keeps all connections if the filter needs the
    /// owner.
    fn matches(&self, unlisted: &Unlisted) -> bool {
        let process = unlisted.process.as_deref();
        self.observer
            .matches(&self.filter, &unlisted.tracked, process)
    }

    fn verdict_of(&self, unlisted: &Unlisted) -> Option<Verdict> {
        let process = unlisted.process.as_deref();
        self.observer.verdict_of(&unlisted.tracked, process)
    }

    fn end(
        &mut self,
        cookie: u64,
        unlisted: &Unlisted,
        verdict: Option<Verdict>,
        figures: Figures,
        to: &mut impl ReportSink,
    ) {
        let ended = unlisted.life.ended.as_deref();
        let ended = ended.or_else(|| self.observer.remembered(cookie));
        self.counts.ended += 1;
        self.counts.without_owner += u64::from(unlisted.process.is_none());
        self.counts.without_phases += u64::from(ended.is_none());
        to.report(&Report {
            event: Event::End,
            cookie,
            tracked: &unlisted.tracked,
            process: unlisted.process.as_deref(),
            life: Some(&unlisted.life),
            verdict,
            figures: Some(figures),
            ended,
        });
    }
}

// === impl Unlisted ===

impl Unlisted {
    fn finish(&mut self, at: Duration, report: Option<Connection>) -> Figures {
        let counts = self.life.ended.as_ref().map(|ended| &ended.counts);
        self.tracked.finish(at, report, counts)
    }
}

// === impl Life ===

impl Life {
    /// Returns the factor that limited the connection for the longest time; `None` if none did.
    pub fn longest(&self) -> Option<Factor> {
        let each = Factor::ALL.iter().copied().zip(self.limited);
        let longest = each.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (longest.1 > 0.0).then_some(longest.0)
    }
}

#[cfg(test)]
mod tests;
