//! Plans the changes of buffers, with and without a budget.

use std::collections::HashSet;
use std::sync::Arc;

use taut_observe::filter::Filter;

use super::planned::{Planned, demand_of};
use super::{MAX_ATTEMPTS, Round, Tuner};
use crate::budget::{Budget, Claim};
use crate::demand::{Direction, demand};
use crate::plan::{Change, maximum_for, reconnect, unlock};
use crate::pressure::of_machine;

/// Said once if a bound of each control group bounds all connections together.
const ROOT_ALONE: &str = "--per-cgroup bounds all connections together: the kernel reports the root cgroup for each of them. It \
     needs processes in groups of cgroup v2, such as the services of systemd on a machine that has mounted it";

impl Tuner {
    /// Plans to unlock buffers that limit their connections.
    pub(super) fn plan_unlocks(&mut self, everything: &Filter, round: &mut Round) -> Vec<Planned> {
        let mut planned = Vec::new();
        let most = maximum_for(self.cap, of_machine());
        for seen in self.observer.connections(everything) {
            round.connections += 1;
            if self.selection.leaves_alone(&seen) {
                round.left_alone += 1;
                continue;
            }
            // The needs of a connection that was idle in all samples have not changed. What can be
            // done for another one depends on whether a process has it.
            if seen.tracked.is_idle() || !seen.is_owner_sought {
                continue;
            }
            let Some(window) = seen.tracked.window() else {
                continue;
            };
            let settings = self.observer.settings(&seen.tracked.netns);
            for direction in [Direction::Send, Direction::Receive] {
                let change = demand(&window, direction, self.cap).and_then(|demand| {
                    let demand = demand.in_namespace(direction, settings);
                    let unlocked = unlock(seen.cookie, direction, &demand, most);
                    unlocked.or_else(|| reconnect(seen.cookie, direction, &demand, settings))
                });
                let Some(change) = change else { continue };
                let key = (seen.cookie, direction);
                if self.attempts.contains_key(&key) || self.attempts.len() >= MAX_ATTEMPTS {
                    continue;
                }
                self.attempts.insert(key, self.scans);
                let change = Planned::new(change, &seen);
                // Without an owner, the buffer may already have the largest possible size, and the
                // change would be none.
                if change.change.grows() || matches!(change.change, Change::Reconnect { .. }) {
                    planned.push(change);
                }
            }
        }
        planned
    }

    /// Plans the changes that give each buffer its share of the budget.
    pub(super) fn plan_shares(
        &mut self,
        budget: &mut Budget,
        everything: &Filter,
        round: &mut Round,
    ) -> Vec<Planned> {
        let mut claims = Vec::new();
        // The namespaces with a send buffer that is left alone and that the kernel tunes.
        let mut kernel_tuned: HashSet<Arc<str>> = HashSet::new();
        let mut begun = 0;
        for seen in self.observer.connections(everything) {
            round.connections += 1;
            let is_skipped = self.selection.leaves_alone(&seen);
            let is_foreign = self.is_foreign(&seen.tracked.netns);
            round.left_alone += usize::from(is_skipped);
            let window = seen.tracked.window();
            begun += usize::from(window.is_none());
            let connection = &seen.tracked.last().connection;
            for direction in [Direction::Send, Direction::Receive] {
                let key = (seen.cookie, direction);
                let Some(demand) = demand_of(&seen, window.as_ref(), direction, self.cap) else {
                    continue;
                };
                // A buffer that could not be changed is tried again later.
                let has_failed = self.actuators.is_some() && self.attempts.contains_key(&key);
                let is_left_alone = is_skipped || is_foreign || has_failed;
                if is_left_alone && direction == Direction::Send && demand.is_fixed != Some(true) {
                    kernel_tuned.insert(Arc::clone(&seen.tracked.netns));
                }
                claims.push(Claim {
                    cookie: seen.cookie,
                    direction,
                    demand,
                    // The demand of a new connection is not known yet, or whether a process has it.
                    is_left_alone: is_left_alone || window.is_none() || !seen.is_owner_sought,
                    cgroup: connection.cgroup,
                    destination: connection.remote.ip().to_canonical(),
                });
            }
        }
        if !self.has_told_of_root && budget.has_one_cgroup(&claims) {
            self.has_told_of_root = true;
            round.problems.push(ROOT_ALONE.to_owned());
        }
        let shared = budget.share(&claims);
        (round.granted, round.excess) = (shared.granted, shared.excess);
        // In the first scan every connection is new, and none has a grant yet.
        if self.scans > 1 {
            let start = budget.start_maximum(shared.granted, begun);
            let reports = self.set_start_maximum(start, &kernel_tuned);
            round.reports.extend(reports);
        }
        let mut planned = Vec::new();
        for change in shared.changes {
            let Change::Resize {
                cookie, direction, ..
            } = change
            else {
                continue;
            };
            // Advice is not repeated in each scan.
            if self.actuators.is_none() {
                let key = (cookie, direction);
                if self.attempts.contains_key(&key) || self.attempts.len() >= MAX_ATTEMPTS {
                    continue;
                }
                self.attempts.insert(key, self.scans);
            }
            if let Some(seen) = self.observer.get(cookie) {
                planned.push(Planned::new(change, &seen));
            }
        }
        planned
    }
}
