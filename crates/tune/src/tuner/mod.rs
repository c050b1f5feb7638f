//! Scans all connections, plans changes, and makes or reports them.

mod apply;
mod maxima;
mod planned;
mod planning;
mod relief;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;

use taut_observe::filter::{Filter, Subject};
use taut_observe::namespaces::Namespace;
use taut_observe::observer::{Observed, Observer};
use taut_observe::scan::{ScanError, ScanSummary};
use taut_sys::netns::NetnsId;
use taut_sys::sock_diag::State;

use crate::actuate::Actuators;
use crate::budget::Budget;
use crate::demand::{Direction, WindowCap};
use crate::namespaces::ended::EndedNamespaces;
use crate::pace::REPEAT_SCANS;
use crate::pressure::Memory;
use crate::profile::settings::Profile;
use crate::profile::watch::ProfileWatch;
use crate::report::{ChangeReport, Outcome};
use crate::routes::scan::RouteTuner;
use crate::undo::UndoSummary;

/// The maximum number of attempts to remember. Beyond it, no change is reported or tried.
const MAX_ATTEMPTS: usize = 100_000;
/// The maximum number of raised maxima to remember.
const MAX_RAISED: usize = 64;
/// The number of complete scans that must miss a connection before it counts as ended, because a
/// list may miss a connection.
const MISSING_SCANS: u32 = 5;

/// The number of samples to keep of each connection. A demand uses their highest figures.
pub const SAMPLES: usize = 4;

/// Which connections are tuned.
#[derive(Debug)]
pub struct Selection {
    /// The connections to tune,
    pub only: Filter,
    /// except those that match one of these.
    pub skip: Vec<Filter>,
}

/// Tunes connections, or reports what it would do.
#[derive(Debug)]
pub struct Tuner {
    observer: Observer,
    selection: Selection,
    cap: WindowCap,
    /// `None`: the tuner only reports.
    actuators: Option<Actuators>,
    budget: Option<Budget>,
    routes: Option<RouteTuner>,
    profile: Option<ProfileWatch>,
    /// Under a budget, the maxima for send buffers of new connections, by namespace; `None`:
    /// another program sets it.
    start_maxima: HashMap<NetnsId, Option<u64>>,
    /// The namespaces whose maxima were examined, with their cookies, because the kernel reuses
    /// inodes of namespaces. Each namespace is examined once; a maximum that is set later is left
    /// alone.
    cookies: HashMap<NetnsId, u64>,
    /// The maxima of namespaces before they were changed.
    originals: HashMap<(NetnsId, Direction), u64>,
    /// The last maxima that were set: direction, new value, original value. A new namespace
    /// inherits the maxima of the first one.
    raised: VecDeque<(Direction, u64, u64)>,
    ended_namespaces: EndedNamespaces,
    /// The buffers for which a change was reported or tried, with the scan.
    attempts: HashMap<(u64, Direction), u64>,
    /// Reads the memory of TCP.
    memory: fn() -> io::Result<Memory>,
    /// The buffers that were shrunk because memory was short, with the bytes that each frees.
    shrunk: HashMap<(u64, Direction), u64>,
    /// The connections with changed buffers, and the number of scans that have missed each since.
    changed: HashMap<u64, u32>,
    /// [`Round::problems`] has had the sentence about control groups.
    has_told_of_root: bool,
    /// Whether the last scan found established connections only.
    has_only_established: bool,
    scans: u64,
}

/// The result of a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// The changes that were made or advised.
    pub reports: Vec<ChangeReport>,
    /// The number of connections.
    pub connections: usize,
    /// The number of connections that the [`Selection`] leaves alone.
    pub left_alone: usize,
    /// With a budget: the maximum number of bytes that all buffers may hold.
    pub granted: u64,
    /// With a budget: the bytes by which memory that cannot be taken away exceeds it.
    pub excess: u64,
    /// Namespaces that another process tunes since the last round. There, changes are only advised.
    pub foreign: Vec<Arc<str>>,
    /// With a profile: namespaces with more interfaces or changes than the limits allow.
    pub short: Vec<Arc<str>>,
    /// Requested routes that no namespace has, reported once.
    pub unmatched: Vec<String>,
    /// Sentences about namespaces whose routes could not be listed or changed, and about a bound of
    /// each control group that bounds all connections together. Each is reported once.
    pub problems: Vec<String>,
    /// The summary of the scan.
    pub summary: ScanSummary,
}

// === impl Selection ===

impl Selection {
    fn leaves_alone(&self, seen: &Observed<'_>) -> bool {
        let subject = Subject::of(
            &seen.tracked.netns,
            &seen.tracked.last().connection,
            seen.process,
        );
        !self.only.matches(&subject) || self.skip.iter().any(|skip| skip.matches(&subject))
    }
}

// === impl Tuner ===

impl Tuner {
    /// Returns a tuner that, without `actuators`, only reports what it would do.
    pub fn new(observer: Observer, selection: Selection, actuators: Option<Actuators>) -> Self {
        Self {
            observer,
            selection,
            cap: WindowCap::default(),
            actuators,
            budget: None,
            routes: None,
            profile: None,
            start_maxima: HashMap::new(),
            cookies: HashMap::new(),
            originals: HashMap::new(),
            raised: VecDeque::new(),
            ended_namespaces: EndedNamespaces::default(),
            attempts: HashMap::new(),
            memory: Memory::read,
            shrunk: HashMap::new(),
            changed: HashMap::new(),
            has_told_of_root: false,
            has_only_established: false,
            scans: 0,
        }
    }

    /// Bounds the window of each connection.
    #[must_use]
    pub fn with_cap(self, cap: WindowCap) -> Self {
        Self { cap, ..self }
    }

    /// Bounds the memory of all connections.
    #[must_use]
    pub fn with_budget(self, budget: Budget) -> Self {
        Self {
            budget: Some(budget),
            ..self
        }
    }

    /// Also changes the settings of this profile.
    #[must_use]
    pub fn with_profile(self, profile: Profile) -> Self {
        Self {
            profile: Some(ProfileWatch::new(profile)),
            ..self
        }
    }

    /// Also sets the initial windows of connections over these routes.
    #[must_use]
    pub fn with_routes(self, routes: RouteTuner) -> Self {
        Self {
            routes: Some(routes),
            ..self
        }
    }

    /// Scans all connections, and makes or reports the changes that are due. `ends` returns whether
    /// to stop before the round is complete.
    ///
    /// # Errors
    /// [`ScanError`]: the connections cannot be listed.
    pub fn round(&mut self, ends: impl Fn() -> bool) -> Result<Round, ScanError> {
        let everything = Filter::all();
        let summary = self.observer.scan(&everything)?;
        self.scans += 1;
        let states = self.observer.connections(&everything);
        let states = states.map(|seen| seen.tracked.last().connection.state);
        self.has_only_established = { states }.all(|state| state == State::Established);
        if let Some(actuators) = &mut self.actuators {
            let is_whole = summary.left_out == 0 && summary.hidden == 0;
            let namespaces = self.observer.namespaces();
            self.ended_namespaces
                .scan(namespaces, is_whole, actuators.journal_mut());
        }
        let foreign = self.lock_namespaces();
        let mut round = Round {
            foreign,
            reports: self.raise_maxima(),
            summary,
            ..Round::default()
        };
        self.scan_profile(&mut round, &ends);
        if let Some(routes) = &mut self.routes {
            let namespaces = not_foreign(&self.observer, self.actuators.as_ref());
            let journal = self.actuators.as_mut().map(Actuators::journal_mut);
            let scan = routes.scan(self.scans, &namespaces, &self.cookies, journal, &ends);
            round.reports.extend(scan.reports);
            round.problems = scan.problems;
            round.unmatched = routes.unmatched();
        }
        let limit = self.scans.saturating_sub(REPEAT_SCANS);
        self.attempts.retain(|_, scan| *scan > limit);
        let planned = match self.budget.take() {
            None => {
                let mut planned = self.plan_unlocks(&everything, &mut round);
                planned.extend(self.plan_relief(&everything));
                planned
            }
            Some(mut budget) => {
                let planned = self.plan_shares(&mut budget, &everything, &mut round);
                self.budget = Some(budget);
                planned
            }
        };
        if let Some(actuators) = &mut self.actuators {
            actuators.begin_round();
        }
        // Buffers that shrink make room for those that grow.
        let (grow, shrink): (Vec<_>, Vec<_>) = planned
            .into_iter()
            .partition(|planned| planned.change.grows());
        for planned in [shrink, grow] {
            for planned in self.apply_ownerless(planned, &mut round.reports) {
                if ends() {
                    break;
                }
                round.reports.push(self.apply(planned));
            }
        }
        self.forget_ended(&summary);
        Ok(round)
    }

    /// Whether no event since the last round requires another one, as far as is known without a
    /// scan.
    pub fn is_quiet(&self) -> bool {
        // Interfaces and routes can change without a segment, and events of connections that are
        // not established are not counted.
        let is_watched = self.profile.is_some() || self.routes.is_some();
        let has_memory = || self.shrunk.is_empty() && !self.is_memory_short();
        !is_watched
            && self.has_only_established
            && !self.observer.may_have_changed()
            && (self.budget.is_some() || has_memory())
    }

    /// Takes the locks of namespaces that no other process tunes. Returns the names of those that
    /// another process tunes since the last scan.
    fn lock_namespaces(&mut self) -> Vec<Arc<str>> {
        let Some(actuators) = &mut self.actuators else {
            return Vec::new();
        };
        let changes = actuators.lock(self.observer.namespaces());
        // Their maxima were only advised, or changed by the other process.
        for id in &changes.won {
            self.cookies.remove(id);
            self.start_maxima.remove(id);
        }
        changes.lost
    }

    /// Whether another process tunes the namespace with this name.
    fn is_foreign(&self, netns: &str) -> bool {
        let actuators = self.actuators.as_ref();
        actuators.is_some_and(|actuators| actuators.is_foreign(netns))
    }

    /// Examines the settings of the profile.
    fn scan_profile(&mut self, round: &mut Round, ends: impl Fn() -> bool) {
        let Some(profile) = &mut self.profile else {
            return;
        };
        let namespaces = not_foreign(&self.observer, self.actuators.as_ref());
        let journal = self.actuators.as_mut().map(Actuators::journal_mut);
        let scan = profile.scan(&namespaces, journal, ends);
        round.short = scan.short;
        let reports = scan.lax.into_iter().map(|(netns, lax)| {
            let outcome = match lax.result {
                None => Outcome::Advised,
                Some(Ok(())) => Outcome::Applied,
                Some(Err(error)) => Outcome::Failed(error.to_string()),
            };
            ChangeReport::new(&lax.change, None, netns, outcome)
        });
        round.reports.extend(reports);
    }

    /// Forgets connections that several scans have missed: there is nothing left to undo.
    fn forget_ended(&mut self, summary: &ScanSummary) {
        let is_whole = summary.incomplete == 0 && summary.denied == 0 && summary.left_out == 0;
        if !is_whole || self.observer.left_out() > 0 {
            return;
        }
        let observer = &self.observer;
        let ended = self.changed.extract_if(|cookie, missing| {
            match observer.get(*cookie) {
                Some(_) => *missing = 0,
                None => *missing += 1,
            }
            *missing >= MISSING_SCANS
        });
        for (cookie, _) in ended {
            for direction in [Direction::Send, Direction::Receive] {
                self.shrunk.remove(&(cookie, direction));
            }
            if let Some(actuators) = &mut self.actuators {
                actuators.forget(cookie);
            }
        }
    }

    /// Returns the observer.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Undoes all changes.
    pub fn end(self) -> UndoSummary {
        let Some(mut actuators) = self.actuators else {
            return UndoSummary::default();
        };
        let summary = actuators.undo();
        actuators.close();
        summary
    }
}

/// Returns the namespaces that no other process tunes.
fn not_foreign(observer: &Observer, actuators: Option<&Actuators>) -> Vec<Namespace> {
    let is_foreign = |of: &&Namespace| actuators.is_some_and(|a| a.is_foreign(&of.name));
    let namespaces = observer.namespaces().iter();
    namespaces.filter(|of| !is_foreign(of)).cloned().collect()
}

/// Returns the ids of these namespaces.
fn ids(namespaces: &[Namespace]) -> HashSet<NetnsId> {
    namespaces.iter().map(|namespace| namespace.id).collect()
}

#[cfg(test)]
mod tests;
