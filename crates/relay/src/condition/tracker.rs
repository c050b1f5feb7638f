//! Turns totals of counters into changes of state.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{BURST, Condition, MAX_CONDITIONS, REFILL, Recovery};

/// A condition has ended when fewer than one in this many attempts fail. It begins when half of
/// them fail, so a rate in between changes nothing.
const WELL: u64 = 5;

/// The totals of a condition's counters since the start of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observation {
    /// Failures by cause, in an order that does not change.
    pub(crate) failed: Vec<(&'static str, u64)>,
    /// Attempts that succeeded.
    pub(crate) succeeded: u64,
    /// Sessions or clients that were reset; `None`: as many as there were failures.
    pub(crate) affected: Option<u64>,
}

/// A change that is worth a line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The condition has begun.
    Broken {
        condition: Condition,
        /// The most frequent cause.
        cause: &'static str,
        /// Sessions or clients affected, those of changes that were not logged included.
        affected: u64,
    },
    /// The condition has ended.
    Well {
        condition: Condition,
        lasted: Duration,
        affected: u64,
    },
}

/// A condition that holds now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) condition: Condition,
    pub(crate) cause: &'static str,
    pub(crate) since: Instant,
    pub(crate) affected: u64,
}

/// The conditions of a node.
#[derive(Debug)]
pub(crate) struct Tracker {
    states: BTreeMap<Condition, State>,
    round: u64,
    /// Lines that may be logged now.
    lines: u32,
    refilled: Instant,
    unlogged: u64,
}

#[derive(Debug, Default)]
struct State {
    last: Observation,
    episode: Option<Episode>,
    /// The time of the last warning.
    warned: Option<Instant>,
    /// Sessions affected by episodes that were not logged.
    carried: u64,
    round: u64,
}

#[derive(Debug)]
struct Episode {
    since: Instant,
    last_failure: Instant,
    cause: &'static str,
    affected: u64,
    logged: bool,
}

// === impl Tracker ===

impl Tracker {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            states: BTreeMap::new(),
            round: 0,
            lines: BURST,
            refilled: now,
            unlogged: 0,
        }
    }

    /// Takes the totals of one condition and returns the change that they show, if the log has room
    /// for it.
    pub(crate) fn observe(
        &mut self,
        condition: Condition,
        seen: Observation,
        now: Instant,
    ) -> Option<Change> {
        self.refill(now);
        if !self.states.contains_key(&condition) && self.states.len() >= MAX_CONDITIONS {
            return None;
        }
        let state = self.states.entry(condition.clone()).or_default();
        state.round = self.round;
        let news = News::between(&state.last, &seen);
        state.last = seen;
        state.advance(&condition, &news, now);
        if state.is_over(&condition, &news, now) {
            let episode = state.episode.take()?;
            if !episode.logged {
                state.carried += episode.affected;
                return None;
            }
            if !take(&mut self.lines) {
                self.unlogged += 1;
                return None;
            }
            return Some(Change::Well {
                condition,
                lasted: now - episode.since,
                affected: episode.affected,
            });
        }
        let may = state.warned.is_none_or(|at| now >= at + condition.pause());
        let episode = state.episode.as_mut().filter(|e| !e.logged && may)?;
        // Without a line left, the next round tries again.
        if !take(&mut self.lines) {
            return None;
        }
        episode.logged = true;
        episode.affected += std::mem::take(&mut state.carried);
        state.warned = Some(now);
        Some(Change::Broken {
            cause: episode.cause,
            affected: episode.affected,
            condition,
        })
    }

    /// Ends a round: forgets the conditions that were not observed since the last call, because
    /// their forward or peer is gone.
    pub(crate) fn end_round(&mut self) {
        let round = self.round;
        self.states.retain(|_, state| state.round == round);
        self.round += 1;
    }

    /// Returns the number of recoveries that were not logged since the last call.
    pub(crate) fn take_unlogged(&mut self) -> u64 {
        std::mem::take(&mut self.unlogged)
    }

    /// Returns the conditions that hold now.
    pub(crate) fn broken(&self) -> Vec<Broken> {
        let states = self.states.iter();
        let broken = states.filter_map(|(condition, state)| {
            let episode = state.episode.as_ref()?;
            Some(Broken {
                condition: condition.clone(),
                cause: episode.cause,
                since: episode.since,
                affected: episode.affected,
            })
        });
        broken.collect()
    }

    fn refill(&mut self, now: Instant) {
        while self.lines < BURST && now >= self.refilled + REFILL {
            self.lines += 1;
            self.refilled += REFILL;
        }
        if self.lines == BURST {
            self.refilled = now;
        }
    }
}

/// Takes a line if one is left.
fn take(lines: &mut u32) -> bool {
    let left = *lines > 0;
    *lines = lines.saturating_sub(1);
    left
}

// === impl State ===

impl State {
    /// Begins or continues the episode.
    fn advance(&mut self, condition: &Condition, news: &News, now: Instant) {
        let Some(cause) = news.cause else { return };
        if let Some(episode) = &mut self.episode {
            episode.last_failure = now;
            episode.cause = cause;
            episode.affected += news.affected;
        } else if news.failed >= news.succeeded.max(condition.threshold()) {
            self.episode = Some(Episode {
                since: now,
                last_failure: now,
                cause,
                affected: news.affected,
                logged: false,
            });
        }
    }

    fn is_over(&self, condition: &Condition, news: &News, now: Instant) -> bool {
        let Some(episode) = &self.episode else {
            return false;
        };
        match condition.recovery() {
            Recovery::Success => news.succeeded > 0 && news.failed * WELL < news.succeeded,
            Recovery::Quiet(time) => now >= episode.last_failure + time,
        }
    }
}

/// What happened between two observations.
struct News {
    failed: u64,
    succeeded: u64,
    affected: u64,
    /// The most frequent cause; `None` without a failure.
    cause: Option<&'static str>,
}

// === impl News ===

impl News {
    fn between(before: &Observation, now: &Observation) -> Self {
        // A total that has become smaller was counted from 0 again.
        let since = |before: u64, now: u64| now.checked_sub(before).unwrap_or(now);
        let former = |i: usize| before.failed.get(i).map_or(0, |(_, count)| *count);
        let failed = now.failed.iter().enumerate();
        let failed: Vec<_> = failed
            .map(|(i, &(cause, count))| (cause, since(former(i), count)))
            .collect();
        let total = failed.iter().map(|(_, count)| count).sum();
        let most = failed.iter().filter(|(_, count)| *count > 0);
        let affected = now
            .affected
            .map(|affected| since(before.affected.unwrap_or(0), affected));
        Self {
            failed: total,
            succeeded: since(before.succeeded, now.succeeded),
            affected: affected.unwrap_or(total),
            cause: most
                .max_by_key(|(_, count)| *count)
                .map(|(cause, _)| *cause),
        }
    }
}

#[cfg(test)]
mod tests;
