//! The measurements of a run.

use std::collections::BTreeMap;

use super::mpi::Timed;
use super::plan::{Arm, Browsing, Pattern};
use super::rig::Ended;
use super::web::BrowsingResult;
use crate::experiment::guests::guest::talk::Counters;
use crate::experiment::stats;

/// All samples of a run.
#[derive(Default)]
pub(super) struct Measured {
    web: BTreeMap<(Arm, Browsing), Vec<BrowsingResult>>,
    mpi: BTreeMap<(Arm, Pattern, usize), Vec<f64>>,
    /// Errors of slice lengths, in seconds.
    pub(super) off: Vec<f64>,
    pub(super) late: Vec<f64>,
    /// The number of gates whose thread could not get real-time priority.
    pub(super) not_real_time: usize,
    /// The counters of the guests, in both parts.
    pub(super) counters: Vec<Counters>,
    pub(super) lost_after_early_ack: u64,
    /// The highest share of any host.
    pub(super) stopped_share: f64,
    /// The number of deliveries by the links; `late_deliveries` counts the late ones.
    pub(super) deliveries: u64,
    pub(super) late_deliveries: u64,
}

// === impl Measured ===

impl Measured {
    pub(super) fn browsed(&mut self, arm: Arm, browsing: Browsing, seen: BrowsingResult) {
        self.web.entry((arm, browsing)).or_default().push(seen);
    }

    pub(super) fn timed(&mut self, arm: Arm, timed: &[Timed]) {
        for one in timed {
            let key = (arm, one.pattern, one.bytes);
            self.mpi.entry(key).or_default().push(one.seconds);
        }
    }

    pub(super) fn end(&mut self, ended: Ended) {
        for kept in ended.kept {
            if kept.scheduling != taut_netlab::link::counters::Scheduling::RealTime {
                self.not_real_time += 1;
            }
            self.off.extend(kept.off);
            self.late.extend(kept.late);
        }
        self.counters.extend(ended.counters);
        for direction in ended
            .links
            .iter()
            .flat_map(|link| [link.a_to_b, link.b_to_a])
        {
            self.deliveries += direction.path.deliveries;
            self.late_deliveries += direction.path.late;
        }
    }

    /// Returns one figure of all runs of browsers.
    pub(super) fn web(
        &self,
        arm: Arm,
        browsing: Browsing,
        figure: fn(&BrowsingResult) -> f64,
    ) -> Vec<f64> {
        let runs = self.web.get(&(arm, browsing));
        runs.into_iter().flatten().map(figure).collect()
    }

    pub(super) fn mpi(&self, arm: Arm, pattern: Pattern, bytes: usize) -> &[f64] {
        let times = self.mpi.get(&(arm, pattern, bytes));
        times.map_or(&[], Vec::as_slice)
    }

    /// Returns the median of requests per second.
    pub(super) fn requests_s(&self, arm: Arm, browsing: Browsing) -> Option<f64> {
        stats::median(&self.web(arm, browsing, BrowsingResult::requests_s))
    }

    /// Returns the ratio of the durations in two arms: the geometric mean of the ratios of medians,
    /// over the sizes that both arms have.
    pub(super) fn times_as_long(&self, one: Arm, other: Arm, pattern: Pattern) -> Option<f64> {
        let sizes = self
            .mpi
            .keys()
            .filter(|(arm, of, _)| (*arm, *of) == (one, pattern));
        let ratios: Option<Vec<f64>> = sizes
            .map(|(_, _, bytes)| {
                let median = |arm| stats::median(self.mpi(arm, pattern, *bytes));
                Some((median(one)? / median(other)?).ln())
            })
            .collect();
        let ratios = ratios.filter(|ratios| !ratios.is_empty())?;
        Some((ratios.iter().sum::<f64>() / ratios.len() as f64).exp())
    }

    /// Returns the number of pages that failed.
    pub(super) fn errors(&self) -> u64 {
        self.web.values().flatten().map(|seen| seen.errors).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_much_longer_is_a_mean_over_sizes() {
        let mut measured = Measured::default();
        let of = |bytes, seconds| Timed {
            pattern: Pattern::Broadcast,
            bytes,
            seconds,
        };
        measured.timed(Arm::TUNED, &[of(1, 0.2), of(2, 0.8), of(2, 0.8)]);
        measured.timed(Arm::SNOOP, &[of(1, 0.2), of(2, 0.2)]);
        let ratio = |pattern| measured.times_as_long(Arm::TUNED, Arm::SNOOP, pattern);
        assert!((ratio(Pattern::Broadcast).unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(ratio(Pattern::Alltoall), None);
    }
}
