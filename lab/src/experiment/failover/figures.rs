//! The outcome of a run: figures and their accepted ranges.

use std::collections::BTreeMap;

use super::aftermath::{Aftermath, aftermaths};
use super::faults::Done;
use super::plan::{Fault, Plan};
use super::rig::Rig;
use crate::experiment::Request;
use crate::experiment::outcome::{Calibration, Check, Environment, Outcome, Series};
use crate::experiment::sessions::ends::Load;
use crate::experiment::sessions::ledger::{Record, Sum};

/// The least share of exact sessions. With fewer, the machine could not carry the load.
const LEAST_EXACT: f64 = 0.5;

/// All observations.
pub(super) struct Found {
    pub(super) sum: Sum,
    pub(super) records: Vec<Record>,
    /// The number of sessions in the plan.
    pub(super) planned: u64,
    pub(super) load: Load,
    pub(super) done: Done,
}

pub(super) fn outcome(found: &Found, plan: &Plan, request: &Request) -> Outcome {
    let (all, unexplained) = aftermaths(&found.done.happened, &found.records);
    Outcome {
        environment: Environment {
            links: BTreeMap::from_iter(Rig::describe()),
            ..Environment::here()
        },
        calibration: calibration(found, plan, unexplained),
        headline: headline(found, &all),
        series: series(&all),
        notes: notes(found, plan, &all),
        ..Outcome::new(super::EXPERIMENT.name, request)
    }
}

fn of(fault: Fault, all: &[Aftermath]) -> impl Iterator<Item = &Aftermath> {
    all.iter().filter(move |aftermath| aftermath.fault == fault)
}

fn calibration(found: &Found, plan: &Plan, unexplained: u64) -> Calibration {
    let (sum, done) = (&found.sum, &found.done);
    let exact = sum.exact as f64 / sum.sessions.max(1) as f64;
    let fewest = done.carried.iter().min().copied().unwrap_or(0);
    Calibration::of([
        ("wrong_transfers", Check::none(sum.wrong)),
        ("failed_before_every_fault", Check::none(unexplained)),
        ("exact_share", Check::at_least(exact, LEAST_EXACT)),
        (
            "sessions_begun",
            Check::at_least(sum.sessions as f64, found.planned as f64),
        ),
        // If the machine cannot carry the load, the relays are not to blame for what fails.
        ("sessions_held_back", Check::none(found.load.held_back)),
        (
            "faults",
            Check::exactly(done.happened.len() as f64, plan.events.len() as f64),
        ),
        // A fault of a relay that carries nothing shows nothing.
        (
            "sessions_at_relay_before_fault",
            Check::at_least(fewest as f64, 1.0),
        ),
        ("relay_problems", Check::none(done.problems.len() as u64)),
    ])
}

fn headline(found: &Found, all: &[Aftermath]) -> BTreeMap<String, f64> {
    let seconds = |faults: &[Fault]| {
        let times = faults.iter().flat_map(|fault| of(*fault, all));
        times
            .map(|a| a.failed_for.as_secs_f64())
            .fold(0.0, f64::max)
    };
    let drained: u64 = of(Fault::Drain, all).map(Aftermath::failed).sum();
    let later: u64 = all.iter().map(|a| a.failed_later).sum();
    [
        ("failed_seconds_after_kill", seconds(&[Fault::Kill])),
        (
            "failed_seconds_after_blackhole",
            seconds(&[Fault::Blackhole]),
        ),
        (
            "failed_seconds_after_one_way_partition",
            seconds(&[Fault::Deaf, Fault::Mute]),
        ),
        ("failed_seconds_after_slow_down", seconds(&[Fault::Slow])),
        ("failed_sessions_after_drain", drained as f64),
        ("failed_sessions_after_return", later as f64),
        ("wrong_transfers", found.sum.wrong as f64),
        ("sessions", found.sum.sessions as f64),
        ("exact", found.sum.exact as f64),
    ]
    .map(|(key, figure)| (key.to_owned(), figure))
    .into()
}

fn series(all: &[Aftermath]) -> Vec<Series> {
    let mut series = Vec::new();
    for fault in Fault::ALL {
        let mut add = |metric, unit, figure: fn(&Aftermath) -> f64| {
            let samples = of(fault, all).map(figure).collect();
            series.extend(Series::of(fault.name(), metric, unit, samples));
        };
        add("new sessions failed for", "s", |a| {
            a.failed_for.as_secs_f64()
        });
        add("new sessions failed", "sessions", |a| a.failed_new as f64);
        add("open sessions failed", "sessions", |a| a.failed_open as f64);
        add("sessions failed after the return", "sessions", |a| {
            a.failed_later as f64
        });
        add("longest new session", "s", |a| a.longest.as_secs_f64());
    }
    series
}

fn notes(found: &Found, plan: &Plan, all: &[Aftermath]) -> Vec<String> {
    let Found { sum, done, .. } = found;
    let open: u64 = all.iter().map(|a| a.failed_open).sum();
    let seconds = plan.fault.as_secs();
    let mut notes = vec![
        format!(
            "Each fault is of the relay that carries more sessions at that moment, and lasts {seconds} s. \
             A session has failed if it broke at either end, or if no byte moved for {} s.",
            super::PATIENCE.idle.as_secs()
        ),
        format!(
            "{} sessions: {} exact, {} failed, {open} of these were open at a fault.",
            sum.sessions,
            sum.exact,
            sum.broken()
        ),
    ];
    notes.extend(sum.faults.iter().cloned());
    notes.extend(done.problems.iter().cloned());
    notes
}
