//! Observes connections with the scanner, the table and the owners.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};
use taut_sys::probe::is_root;

use crate::bpf_iter::EndRecord;
use crate::collector::Collector;
use crate::cpu_quota::CpuQuotas;
use crate::descheduled::DescheduledMeter;
use crate::ended::Ended;
use crate::filter::{Filter, Subject};
use crate::host_drops::{Followed, HostDrop, HostDrops};
use crate::limitation::Limitation;
use crate::namespaces::Namespace;
use crate::owner::{Owners, Process};
use crate::path_rtt::PathRtts;
use crate::scan::{FIND_EVERY, ScanError, ScanSummary, Scanner, Scope, Wants};
use crate::steal::Steal;
use crate::table::{self, Retention, Table};
use crate::tcp_settings::TcpSettings;
use crate::verdict::{Confidence, Context, Factor, Verdict, enter, limit, verdict};
use crate::window::Window;

/// A connection of the table. Remembers its limit while it does not change.
pub type Tracked = table::Tracked<(Factor, Confidence)>;

/// The least time between two readings of the settings of namespaces.
const SETTINGS_EVERY: Duration = FIND_EVERY;

/// How many of the connections that have ended last are remembered at least; also all of the last
/// [`REMEMBERED_FOR`], unless they are more than [`REMEMBERED_MOST`]. For some time, twice as many are.
const REMEMBERED: usize = 20_000;
const REMEMBERED_FOR: Duration = Duration::from_secs(5);
const REMEMBERED_MOST: usize = 100_000;

/// Observes the connections of the machine, scan by scan.
#[derive(Debug)]
pub struct Observer {
    scanner: Scanner,
    table: Table<(Factor, Confidence)>,
    owners: Owners,
    paths: PathRtts,
    began: Instant,
    /// The settings of the namespaces with connections, and when they were read.
    settings: FxHashMap<Arc<str>, TcpSettings>,
    settings_read: Option<Instant>,
    steal: Steal,
    descheduled: Option<DescheduledMeter>,
    /// The meter's result at the last scan.
    descheduled_share: Option<f64>,
    quotas: Option<CpuQuotas>,
    host_drops: Option<HostDrops>,
    /// Why drops on this machine are not counted although they are wanted.
    host_drops_problem: Option<String>,
    remembered: Remembered,
    /// Ends that were lost because the kernel's ring buffer was full.
    ends_missed: u64,
}

/// The connections that have ended last: the kernel's own report of an end may come seconds after the program's.
#[derive(Debug, Default)]
struct Remembered {
    newest: FxHashMap<u64, Ended>,
    before: FxHashMap<u64, Ended>,
    /// The time at which the newest ones began.
    since: Duration,
}

/// A connection of the last scan.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The socket's cookie, which no other socket ever has.
    pub cookie: u64,
    /// Its samples.
    pub tracked: &'a Tracked,
    /// The process that owns it, if it is known.
    pub process: Option<&'a Process>,
    /// Whether the search for that process has ended. Before, it may have one that is not known yet.
    pub is_owner_sought: bool,
}

// === impl Remembered ===

impl Remembered {
    fn insert(&mut self, ended: Ended, now: Duration) {
        let (count, lasted) = (self.newest.len(), now.saturating_sub(self.since));
        let is_full = count >= REMEMBERED && lasted >= REMEMBERED_FOR;
        if is_full || count >= REMEMBERED_MOST {
            std::mem::swap(&mut self.newest, &mut self.before);
            self.newest.clear();
            self.since = now;
        }
        self.newest.insert(ended.cookie, ended);
    }

    fn get(&self, cookie: u64) -> Option<&Ended> {
        self.newest
            .get(&cookie)
            .or_else(|| self.before.get(&cookie))
    }
}

// === impl Observer ===

impl Observer {
    /// Returns an observer that has not scanned yet. `wants`: the data that BPF programs have to
    /// collect.
    pub fn new(scope: Scope, keep: Retention, wants: Wants) -> Self {
        Self {
            scanner: Scanner::new(scope, wants),
            table: Table::new(keep),
            owners: Owners::default(),
            paths: PathRtts::default(),
            began: Instant::now(),
            settings: FxHashMap::default(),
            settings_read: None,
            steal: Steal::default(),
            descheduled: None,
            descheduled_share: None,
            quotas: None,
            host_drops: None,
            host_drops_problem: None,
            remembered: Remembered::default(),
            ends_missed: 0,
        }
    }

    /// Starts to measure for how much of the time this machine is descheduled, and for how much CPU
    /// quotas stop the owners of connections, over the time of the samples that are kept.
    pub fn measure_cpu_time(&mut self) {
        let scans = self.table.retention().samples;
        self.descheduled = DescheduledMeter::start(scans);
        self.quotas = Some(CpuQuotas::new(scans));
    }

    /// Starts to count the packets of observed connections that the kernel of this machine drops.
    pub fn count_host_drops(&mut self) {
        match HostDrops::start() {
            Ok(drops) => self.host_drops = Some(drops),
            Err(error) => self.host_drops_problem = Some(error.to_string()),
        }
    }

    /// Finds the namespaces that the next scan lists.
    ///
    /// # Errors
    /// [`ScanError`]: the caller's own namespace, or the named one, cannot be opened.
    pub(crate) fn find_namespaces(&mut self) -> Result<&[Namespace], ScanError> {
        self.scanner.find()?;
        Ok(self.scanner.namespaces())
    }

    /// Scans all connections and keeps those that the filter matches, as far as the filter can be
    /// applied without their owner.
    ///
    /// # Errors
    /// [`ScanError`]: the caller's own namespace, or the named one, cannot be scanned.
    pub fn scan(&mut self, filter: &Filter) -> Result<ScanSummary, ScanError> {
        self.scan_and(filter, |_, _, _| {})
    }

    /// Like [`Observer::scan`], but passes connections that no longer exist to `ended`.
    pub(crate) fn scan_and(
        &mut self,
        filter: &Filter,
        mut ended: impl FnMut(u64, Tracked, Option<Arc<Process>>),
    ) -> Result<ScanSummary, ScanError> {
        let began = self.elapsed();
        self.steal.update();
        self.descheduled_share = self.descheduled.as_mut().map(DescheduledMeter::scan);
        let mut collector = Collector {
            table: &mut self.table,
            paths: &mut self.paths,
            began: self.began,
            filter: (!filter.needs_owner()).then_some(filter),
        };
        let summary = collector.scan(&mut self.scanner)?;
        self.read_settings();
        if let Some(drops) = &mut self.host_drops {
            let followed = followed(&self.table, self.scanner.namespaces());
            drops.update(followed, began);
        }
        let (owners, remembered) = (&self.owners, &self.remembered);
        let owner = |cookie| {
            let known = owners.of(cookie).cloned();
            known.or_else(|| remembered.get(cookie)?.process.clone())
        };
        self.table
            .end(|cookie, tracked| ended(cookie, tracked, owner(cookie)));
        let sockets = self.table.iter();
        self.owners
            .update(sockets.map(|(cookie, tracked)| (cookie, tracked.last().connection.inode)));
        if let Some(quotas) = &mut self.quotas {
            let cookies = self.table.iter().map(|(cookie, _)| cookie);
            let owners = cookies.filter_map(|cookie| self.owners.of(cookie));
            quotas.update(owners.map(|process| &**process));
        }
        Ok(summary)
    }

    /// Passes the connections that have ended since the last call to `each`. Returns the number of
    /// ends that were lost because the kernel's ring buffer was full; so call this at least once a
    /// second. `None` if ends are not recorded: they were not wanted, or BPF is not available.
    pub fn poll_ended(&mut self, mut each: impl FnMut(&Ended)) -> Option<u64> {
        let mut records = Vec::new();
        let missed = self.scanner.ends(|record| records.push(record))?;
        self.ends_missed += missed;
        for record in &records {
            let Some(ended) = self.ended(record) else {
                continue;
            };
            each(&ended);
            self.remembered.insert(ended, self.began.elapsed());
        }
        Some(missed)
    }

    /// Returns the connection that a BPF program reports; `None` if its namespace is not observed.
    fn ended(&mut self, record: &EndRecord) -> Option<Ended> {
        let netns = self.scanner.name_of(record.netns)?;
        let process = match &record.owner {
            Some(owner) => Some(self.owners.recorded(owner)),
            None => self.owners.of(record.cookie).cloned(),
        };
        Some(Ended::of(record, netns, process))
    }

    /// Returns a connection that has ended, if a BPF program has reported it and not too many others after it.
    pub(crate) fn remembered(&self, cookie: u64) -> Option<&Ended> {
        self.remembered.get(cookie)
    }

    /// Returns the connections of the last scan that the filter matches, in arbitrary order.
    pub fn connections<'a>(&'a self, filter: &'a Filter) -> impl Iterator<Item = Observed<'a>> {
        let seen = self.table.iter().map(|(cookie, tracked)| Observed {
            cookie,
            tracked,
            process: self.owners.of(cookie).map(|process| &**process),
            is_owner_sought: self.owners.has_sought(cookie),
        });
        let all = filter.matches_all();
        seen.filter(move |seen| {
            if all {
                return true;
            }
            let connection = &seen.tracked.last().connection;
            filter.matches(&Subject::of(&seen.tracked.netns, connection, seen.process))
        })
    }

    /// Returns the connection with this cookie, if the last scan found it.
    pub fn get(&self, cookie: u64) -> Option<Observed<'_>> {
        Some(Observed {
            cookie,
            tracked: self.table.get(cookie)?,
            process: self.owners.of(cookie).map(|process| &**process),
            is_owner_sought: self.owners.has_sought(cookie),
        })
    }

    /// Returns the verdict on a connection; `None` before the second scan.
    pub fn verdict(&self, seen: &Observed<'_>) -> Option<Verdict> {
        self.verdict_of(seen.tracked, seen.process)
    }

    /// Returns only the factor and the confidence of the verdict, which costs less.
    pub fn limit(&self, seen: &Observed<'_>) -> Option<(Factor, Confidence)> {
        let tracked = seen.tracked;
        tracked.derived(|| {
            Some(limit(
                &self.window(tracked)?,
                &self.context_of(tracked, seen.process),
            ))
        })
    }

    /// Like [`Observer::verdict`], also for a connection that has ended.
    pub(crate) fn verdict_of(
        &self,
        tracked: &Tracked,
        process: Option<&Process>,
    ) -> Option<Verdict> {
        let window = self.window(tracked)?;
        Some(verdict(&window, &self.context_of(tracked, process)))
    }

    /// Returns a window over all samples of a connection, which knows the shortest round trip of all
    /// connections to its peer.
    fn window<'a>(&self, tracked: &'a Tracked) -> Option<Window<'a>> {
        let last = tracked.last();
        let peer = last.connection.remote.ip();
        let shortest = self.paths.shortest(&tracked.netns, peer, last.at);
        Some(tracked.window()?.on_path(shortest))
    }

    /// Removes the connection with this cookie, which has ended. Returns it with its owner.
    pub(crate) fn take(&mut self, cookie: u64) -> Option<(Tracked, Option<Arc<Process>>)> {
        let tracked = self.table.take(cookie)?;
        let known = self.owners.of(cookie).cloned();
        let process = known.or_else(|| self.remembered(cookie)?.process.clone());
        Some((tracked, process))
    }

    /// Whether the filter matches a connection.
    pub(crate) fn matches(
        &self,
        filter: &Filter,
        tracked: &Tracked,
        process: Option<&Process>,
    ) -> bool {
        filter.matches(&Subject::of(
            &tracked.netns,
            &tracked.last().connection,
            process,
        ))
    }

    /// Whether a segment may have arrived, or a connection may have been opened, since the last
    /// scan began; `false` only if neither can have happened.
    pub fn may_have_changed(&self) -> bool {
        self.scanner.may_have_changed()
    }

    /// Returns what finds the namespaces and lists their sockets.
    pub(crate) fn scanner(&self) -> &Scanner {
        &self.scanner
    }

    /// Returns the namespaces of the last scan.
    pub fn namespaces(&self) -> &[Namespace] {
        self.scanner.namespaces()
    }

    /// Returns the known context of a connection: its machine, its namespace and its owner.
    fn context_of(&self, tracked: &Tracked, process: Option<&Process>) -> Context {
        let quotas = self.quotas.as_ref();
        // A quota of this process, too, makes its sleeping threads wake late.
        let may_be_late = quotas.is_some_and(|quotas| quotas.own().is_some());
        Context {
            settings: self.settings(&tracked.netns),
            steal: self.steal.share(),
            descheduled: self.descheduled_share.filter(|_| !may_be_late),
            cpu_quota: quotas
                .zip(process)
                .and_then(|(quotas, process)| quotas.of_process(process)),
            host_drops: self.host_drops_of(tracked),
            host_drops_since: self
                .host_drops
                .as_ref()
                .and_then(|drops| drops.since(tracked.last().connection.cookie)),
        }
    }

    /// Returns the settings of a namespace as a recent scan has found them. They are unknown if it had
    /// no connection then.
    pub fn settings(&self, netns: &str) -> TcpSettings {
        self.settings.get(netns).copied().unwrap_or_default()
    }

    /// Reads the settings of the namespaces with connections, if that is due.
    fn read_settings(&mut self) {
        let is_recent = |at: Instant| at.elapsed() < SETTINGS_EVERY;
        if self.settings_read.is_some_and(is_recent) {
            return;
        }
        self.settings_read = Some(Instant::now());
        self.settings.clear();
        let used = self.table.iter().map(|(_, tracked)| &*tracked.netns);
        let used: FxHashSet<&str> = used.collect();
        for namespace in self.scanner.namespaces() {
            if used.contains(&*namespace.name)
                && let Ok(Some(settings)) = namespace.run(TcpSettings::read)
            {
                self.settings.insert(namespace.name.clone(), settings);
            }
        }
    }

    /// Returns the packets of a connection that the kernel of this machine dropped.
    fn host_drops_of(&self, tracked: &Tracked) -> Vec<HostDrop> {
        let Some(drops) = &self.host_drops else {
            return Vec::new();
        };
        let mut drops = drops.of(tracked.last().connection.cookie, |inode| {
            let mut all = self.namespaces().iter();
            let named = all.find(|namespace| namespace.id.inode() == u64::from(inode));
            match named {
                Some(namespace) if namespace.name == tracked.netns => None,
                Some(namespace) => Some((*namespace.name).into()),
                None => Some(format!("net:[{inode}]").into()),
            }
        });
        for drop in &mut drops {
            drop.enter = enter(drop.netns.as_deref().unwrap_or(&tracked.netns));
        }
        drops
    }

    /// Returns the time since the observer was created.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns the number of connections that the last scan kept.
    pub fn kept(&self) -> usize {
        self.table.iter().count()
    }

    /// Returns the number of connections of the last scan that did not fit into the table.
    pub fn left_out(&self) -> usize {
        self.table.left_out()
    }

    /// Returns what the last scan could not see.
    pub fn limitations(&self, summary: &ScanSummary) -> Vec<Limitation> {
        let is_root = is_root();
        let bpf = || match self.scanner.problem() {
            _ if !is_root => "run this as root, on a kernel with BTF".to_owned(),
            Some(problem) => problem.to_owned(),
            None => "`taut doctor` shows what this kernel lacks".to_owned(),
        };
        let no_host_drops = self.host_drops_problem.as_deref();
        let no_host_drops = no_host_drops.filter(|_| !summary.without_bpf);
        let drops = self.host_drops.as_ref();
        let some = |count: usize, of: fn(usize) -> Limitation| (count > 0).then(|| of(count));
        let many = |count: u64, of: fn(u64) -> Limitation| (count > 0).then(|| of(count));
        let all = [
            some(summary.denied, Limitation::DeniedNamespaces),
            some(self.owners.denied(), Limitation::DeniedProcesses),
            summary
                .first_hidden
                .map(|first| Limitation::HiddenProcesses(summary.hidden, first)),
            some(self.table.left_out(), Limitation::Connections),
            many(self.ends_missed, Limitation::Ends),
            some(self.paths.left_out(), Limitation::RoundTrips),
            some(
                summary.left_out + summary.incomplete,
                Limitation::Incomplete,
            ),
            some(summary.without_slot, Limitation::WithoutEvents),
            summary.without_bpf.then(|| Limitation::NoBpf(bpf())),
            (summary.without_events && !summary.without_bpf).then(|| Limitation::NoEvents(bpf())),
            summary.without_ends.then(|| Limitation::NoEnds(bpf())),
            no_host_drops.map(|why| {
                let why = if is_root { why } else { "run this as root" };
                Limitation::NoHostDrops(why.to_owned())
            }),
            some(
                drops.map_or(0, HostDrops::left_out),
                Limitation::WithoutHostDrops,
            ),
            drops
                .and_then(HostDrops::problem)
                .map(|why| Limitation::SomeHostDrops(why.to_owned())),
            (drops.is_some_and(HostDrops::hides_symbols)).then_some(Limitation::NoSymbols),
            many(drops.map_or(0, HostDrops::missed), Limitation::DropPlaces),
        ];
        let mut found: Vec<_> = all.into_iter().flatten().collect();
        // A user with the capabilities for BPF may lack one of the others, which has to be named.
        if !is_root && summary.without_bpf {
            found.retain(|limitation| !limitation.is_of_other_users());
            found.insert(0, Limitation::NotRoot);
        }
        found
    }
}

/// Returns the connections of the last scan, to count their drops on this machine.
fn followed<'a>(
    table: &'a Table<(Factor, Confidence)>,
    namespaces: &[Namespace],
) -> impl Iterator<Item = Followed> + use<'a> {
    let inode = |namespace: &Namespace| u32::try_from(namespace.id.inode()).unwrap_or_default();
    let inodes = namespaces.iter().map(|one| (one.name.clone(), inode(one)));
    let inodes: FxHashMap<Arc<str>, u32> = inodes.collect();
    table.iter().map(move |(cookie, tracked)| {
        let connection = &tracked.last().connection;
        Followed {
            cookie,
            local: connection.local,
            remote: connection.remote,
            netns: inodes.get(&tracked.netns).copied().unwrap_or_default(),
        }
    })
}

#[cfg(test)]
mod tests;
