//! The outcome of a run: figures and their accepted ranges.

use std::collections::BTreeMap;
use std::time::Duration;

use super::chaos::Done;
use super::outsider::Attack;
use super::plan::{Plan, Side};
use super::rig::Rig;
use super::watch::{Holding, Sample};
use crate::experiment::Request;
use crate::experiment::outcome::{Calibration, Check, Environment, Outcome, Series};
use crate::experiment::sessions::ends::Load;
use crate::experiment::sessions::ledger::{Break, Sum};
use crate::experiment::stats;

/// The largest accepted ratio of a relay's resident memory at the end of the load to its memory
/// soon after the middle. A leak of one session's memory per session gives several times that ratio
/// even in the short form; the normal variation of pools and queues gives less.
const GROWTH: f64 = 1.25;
/// The least share of exact sessions. The faults break some sessions; with fewer exact ones, there
/// would have been few sessions left for later faults to break.
const LEAST_EXACT: f64 = 0.5;
/// The maximum number of samples in a series. More samples would only make the file larger.
const SAMPLES: usize = 2_000;

/// All observations.
pub(super) struct Found {
    pub(super) sum: Sum,
    /// The number of sessions in the plan.
    pub(super) planned: u64,
    pub(super) load: Load,
    pub(super) attack: Attack,
    pub(super) samples: Vec<Sample>,
    /// The relays' resources before the load and after its end (`left`), by [`Side`].
    pub(super) idle: [Holding; 2],
    pub(super) left: [Holding; 2],
    /// The relays' descriptors by kind, before and after.
    pub(super) kinds: [[BTreeMap<String, usize>; 2]; 2],
    /// The counters of the relays' last processes.
    pub(super) counters: [String; 2],
    /// The time from the last session's end until the relays were at rest.
    pub(super) settled: Duration,
    pub(super) reloads: bool,
    pub(super) done: Done,
    /// Sessions that the outsider caused.
    pub(super) dialled: u64,
    pub(super) leftovers: Vec<String>,
}

pub(super) fn outcome(found: &Found, plan: &Plan, request: &Request) -> Outcome {
    let sum = &found.sum;
    let leaked = found.leaked_descriptors();
    let growth = growth(&found.samples, plan.load);
    let exact = ("exact", sum.exact as f64);
    let none = |measured: f64| Check::exactly(measured, 0.0);
    let at_least = |measured: u64, least: f64| Check::at_least(measured as f64, least);
    let left = |of: fn(&Holding) -> f64| found.left.iter().map(of).sum::<f64>();
    let (done, attack) = (&found.done, &found.attack);
    let reloaded = f64::from(u8::from(found.reloads));
    let checks = [
        ("silently_wrong", none(sum.wrong as f64)),
        ("broken_unexplained", none(sum.unexplained as f64)),
        (
            "exact_share",
            Check::at_least(sum.exact as f64 / (sum.sessions.max(1)) as f64, LEAST_EXACT),
        ),
        (
            "sessions_begun",
            at_least(sum.sessions, found.planned as f64),
        ),
        // If the machine cannot carry the load, the relay is not to blame for what breaks or grows.
        ("sessions_held_back", none(found.load.held_back as f64)),
        ("leaked_descriptors", none(leaked)),
        ("sessions_left", none(left(|h| h.sessions))),
        ("pipes_in_use_left", none(left(|h| h.pipes_in_use))),
        (
            "rss_growth",
            Check {
                // The check must fail without a comparison.
                measured: growth.unwrap_or(0.0),
                least: f64::MIN_POSITIVE,
                most: Some(GROWTH),
            },
        ),
        ("kernel_leftovers", none(found.leftovers.len() as f64)),
        ("relay_faults", none(done.faults.len() as f64)),
        ("outsider_dialled", none(found.dialled as f64)),
        ("outsider_heard_bytes", none(attack.heard as f64)),
        ("outsider_not_closed", none(attack.kept as f64)),
        ("outsider_replays", at_least(attack.replays, 1.0)),
        ("kills", at_least(done.kills, 1.0)),
        ("stops", at_least(done.stops, 1.0)),
        ("cuts", at_least(done.cuts, 1.0)),
        ("rotations", at_least(done.rotations, reloaded)),
        ("revocations", at_least(done.revocations, reloaded)),
        ("reloads", at_least(done.reloads, reloaded)),
    ];
    let headline = [
        ("sessions", sum.sessions as f64),
        exact,
        ("broken_visibly", sum.broken() as f64),
        ("broken_unexplained", sum.unexplained as f64),
        ("silently_wrong", sum.wrong as f64),
        ("leaked_descriptors", leaked),
        ("rss_growth", growth.unwrap_or(0.0)),
        ("rotations", done.rotations as f64),
        ("revocations", done.revocations as f64),
        ("outsider_connections", attack.connections as f64),
        ("outsider_dialled", found.dialled as f64),
    ];
    Outcome {
        environment: Environment {
            links: BTreeMap::from_iter(Rig::describe()),
            ..Environment::here()
        },
        calibration: Calibration::of(checks),
        headline: headline.map(|(key, value)| (key.to_owned(), value)).into(),
        series: series(found),
        notes: notes(found),
        ..Outcome::new(super::EXPERIMENT.name, request)
    }
}

fn series(found: &Found) -> Vec<Series> {
    let mut series = Vec::new();
    let times = thin(&found.sum.times);
    series.extend(Series::of("exact sessions", "time", "s", times));
    for side in Side::BOTH {
        let own = || found.samples.iter().filter(move |s| s.side == side);
        let resident: Vec<f64> = own().map(|s| s.resident).collect();
        series.extend(Series::of(
            side.name(),
            "resident memory",
            "B",
            thin(&resident),
        ));
        let descriptors: Vec<f64> = own().map(|s| s.descriptors).collect();
        let name = side.name();
        series.extend(Series::of(
            name,
            "descriptors",
            "descriptors",
            thin(&descriptors),
        ));
    }
    let settled = vec![found.settled.as_secs_f64()];
    series.extend(Series::of("relays", "time to come to rest", "s", settled));
    let revoked = found.done.ended_after.clone();
    let name = "revoked relay";
    series.extend(Series::of(name, "time to lose its sessions", "s", revoked));
    series
}

fn notes(found: &Found) -> Vec<String> {
    let Found { done, attack, .. } = found;
    let broken = &found.sum.broken;
    let each = |how| broken.get(&how).copied().unwrap_or(0);
    let mut notes = vec![
        format!(
            "Broken sessions, as seen by the client, or else by the server: {} reset, {} refused, \
             {} timed out, {} otherwise. {} sessions waited because too many were running.",
            each(Break::Reset),
            each(Break::Refused),
            each(Break::TimedOut),
            each(Break::Other),
            found.load.held_back
        ),
        format!(
            "{} kills, {} stops, {} cuts, {} rotations of a key, {} revocations, {} reloads; {} \
             connections of the outsider, {} of them replays, {} refused. The most bytes that one \
             of them heard: {} for a replay, {} without one.",
            done.kills,
            done.stops,
            done.cuts,
            done.rotations,
            done.revocations,
            done.reloads,
            attack.connections,
            attack.replays,
            attack.refused,
            attack.most_heard[0],
            attack.most_heard[1]
        ),
    ];
    if !found.reloads {
        notes.push(format!(
            "This relay reads its configuration, key and list of members only at its start: {} \
             changes of them were left out.",
            done.left_out
        ));
    }
    notes.extend(found.sum.faults.iter().cloned());
    notes.extend(done.faults.iter().cloned());
    notes.extend(
        found
            .leftovers
            .iter()
            .map(|what| format!("left in the kernel: {what}")),
    );
    if found.leaked_descriptors() > 0.0 {
        let [before, after] = &found.kinds;
        notes.push(format!(
            "Resources before the load: {:?}; after it: {:?}.",
            found.idle, found.left
        ));
        for (side, (before, after)) in Side::BOTH.iter().zip(before.iter().zip(after)) {
            let name = side.name();
            notes.push(format!(
                "Descriptors of the {name} relay at rest: {before:?} before the load, {after:?} after it."
            ));
        }
    }
    // Reported only if there is a fault to investigate.
    let is_clean = found.sum.unexplained + found.sum.wrong == 0 && done.faults.is_empty();
    if !is_clean {
        for (side, counters) in Side::BOTH.iter().zip(&found.counters) {
            let name = side.name();
            notes.push(format!(
                "counters of the {name} relay's last process: {counters}"
            ));
        }
        notes.extend(done.log.iter().cloned());
    }
    notes
}

/// Returns the larger ratio of the two relays: the memory in the last tenth of the load to the
/// memory of the same process three tenths before. Returns `None` if a process did not live that
/// long. A process may have been started just before the second half of the load, and still grows
/// in the tenth that follows.
fn growth(samples: &[Sample], load: Duration) -> Option<f64> {
    let of = |side: Side| {
        let last = samples.iter().rfind(|s| s.side == side)?.process;
        let median = |from: Duration, to: Duration| {
            let own = samples
                .iter()
                .filter(|s| s.side == side && s.process == last);
            let during = own.filter(|s| (from..to).contains(&s.at));
            stats::median(&during.map(|s| s.resident).collect::<Vec<_>>())
        };
        Some(median(load * 9 / 10, load)? / median(load * 6 / 10, load * 7 / 10)?)
    };
    let ratios = Side::BOTH.map(of);
    // A ratio that cannot be computed must not pass.
    ratios.into_iter().reduce(|a, b| Some(a?.max(b?))).flatten()
}

/// Returns up to [`SAMPLES`] of the samples, evenly spaced.
fn thin(samples: &[f64]) -> Vec<f64> {
    let step = samples.len().div_ceil(SAMPLES).max(1);
    samples.iter().copied().step_by(step).collect()
}

// === impl Found ===

impl Found {
    fn leaked_descriptors(&self) -> f64 {
        let sides = self.left.iter().zip(&self.idle);
        sides
            .map(|(left, idle)| (left.descriptors - idle.descriptors).max(0.0))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: u64, side: Side, process: u32, resident: f64) -> Sample {
        Sample {
            at: Duration::from_secs(seconds),
            side,
            process,
            resident,
            descriptors: 1.0,
        }
    }

    #[test]
    fn memory_is_compared_within_one_process_and_the_worst_relay_counts() {
        let load = Duration::from_secs(100);
        let mut samples = vec![
            sample(10, Side::Near, 1, 1.0),
            sample(55, Side::Near, 2, 5.0),
            sample(65, Side::Near, 2, 10.0),
            sample(75, Side::Near, 2, 90.0),
            sample(95, Side::Near, 2, 11.0),
            sample(65, Side::Far, 3, 10.0),
            sample(95, Side::Far, 3, 15.0),
        ];
        assert_eq!(growth(&samples, load), Some(1.5));
        // This process did not exist three tenths before.
        samples.push(sample(96, Side::Far, 4, 15.0));
        assert_eq!(growth(&samples, load), None);
        assert_eq!(growth(&[], load), None);
    }

    #[test]
    fn few_samples_stay_and_many_are_thinned() {
        assert_eq!(thin(&[1.0, 2.0]), [1.0, 2.0]);
        let many = vec![0.0; 10 * SAMPLES + 1];
        assert!(thin(&many).len() <= SAMPLES);
        assert!(thin(&[]).is_empty());
    }
}
