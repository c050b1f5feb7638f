//! `verdicts`: whether `taut why` names the factor that limits a connection, in worlds built to
//! have a known one.

mod away;
mod cause;
mod matrix;
mod stage;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::guests::uml;
use super::outcome::{Calibration, Check, Environment, Outcome, Series};
use super::progress::Progress;
use super::{Experiment, ExperimentError, Request};
use crate::peer::program;
use cause::{Case, Cause};
use matrix::Matrix;
use stage::Shown;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "verdicts",
    about: "whether `taut why` names what was made to limit a connection",
    has_parts: true,
    run,
};

/// Runs of each cause.
const RUNS: usize = 20;
/// The number of concurrent worlds. Each world spends most of its time waiting.
const AT_A_TIME: usize = 4;
/// The number of wrong verdicts that are described.
const TOLD: usize = 60;

/// A finished run.
struct Done {
    case: Case,
    number: usize,
    shown: Shown,
}

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let causes = causes(request.only.as_deref());
    if causes.is_empty() {
        return Err(ExperimentError::NoPart(
            request.only.clone().unwrap_or_default(),
        ));
    }
    let runs = request.runs.unwrap_or(if request.quick { 1 } else { RUNS });
    let programs = program::versions(&[
        program::NGINX,
        program::CURL,
        program::SOCAT,
        program::IPERF3,
        program::NFT,
        uml::KERNEL,
    ])?;
    // The order is random, so that other work of the machine affects all causes equally.
    let plan: Vec<(usize, Cause)> = (0..runs)
        .flat_map(|number| causes.iter().map(move |cause| (number, *cause)))
        .collect();
    let done = run_all(&plan, request)?;
    let mut environment = Environment::here();
    environment.programs = programs;
    Ok(outcome(request, environment, &done))
}

/// Returns the causes whose name contains `only`, or all causes.
fn causes(only: Option<&str>) -> Vec<Cause> {
    let all = Cause::ALL.into_iter();
    all.filter(|cause| only.is_none_or(|only| cause.name().contains(only)))
        .collect()
}

/// Runs [`AT_A_TIME`] worlds at a time. The first error ends all of them.
fn run_all(plan: &[(usize, Cause)], request: &Request) -> Result<Vec<Done>, ExperimentError> {
    let progress = Progress::new("verdicts: runs", plan.len() as u64);
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let Some(&(number, cause)) = plan.get(next.fetch_add(1, Ordering::Relaxed))
                    else {
                        return;
                    };
                    let case = Case::of(cause, request.seed, number);
                    let done = stage::run(&case, request).map(|shown| Done {
                        case,
                        number,
                        shown,
                    });
                    if done.is_err() {
                        next.store(plan.len(), Ordering::Relaxed);
                    }
                    let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                    results.push(done);
                    progress.step();
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut done = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    done.sort_by_key(|done| (done.case.cause, done.number));
    Ok(done)
}

fn outcome(request: &Request, environment: Environment, done: &[Done]) -> Outcome {
    let mut matrix = Matrix::default();
    let (mut astray, mut notes) = (0, Vec::new());
    for Done { case, shown, .. } in done {
        matrix.add(case.cause, shown.said.clone());
        let (least, most) = case.cause.expected_use();
        if !(least..=most).contains(&shown.used) {
            astray += 1;
            notes.push(format!(
                "This world did not work as intended: {}: {:.2} of the bottleneck was used, and {least} to {most} was expected.",
                case.described(),
                shown.used
            ));
        }
    }
    notes.extend(wrong(done));
    let mut headline = BTreeMap::from([
        ("accuracy".to_owned(), matrix.accuracy()),
        (
            "confident_wrong_rate".to_owned(),
            matrix.confident_wrong_rate(),
        ),
        ("runs".to_owned(), done.len() as f64),
    ]);
    if let Some((cause, share)) = matrix.worst() {
        headline.insert("worst_cause_accuracy".to_owned(), share);
        notes.push(format!(
            "worst_cause_accuracy is that of `{}`.",
            cause.name()
        ));
    }
    notes.push(
        "Each run has a world of its own, whose rates, round trips, buffers, losses and sizes come \
         from the seed. In the series `verdicts`, columns are verdicts and rows are causes; `(seen \
         there)` means at the receiving end."
            .to_owned(),
    );
    let verdicts = matrix
        .cells()
        .into_iter()
        .filter_map(|(cause, factor, count)| {
            let name = format!("{factor}/{}", cause.name());
            Series::of(&name, "verdicts", "runs", vec![count as f64])
        });
    let used = Cause::ALL.into_iter().filter_map(|cause| {
        let of = done.iter().filter(|done| done.case.cause == cause);
        let used = of.map(|done| done.shown.used).collect();
        Series::of(
            &format!("used/{}", cause.name()),
            "bottleneck",
            "share",
            used,
        )
    });
    Outcome {
        environment,
        calibration: Calibration::of([(
            // Other work of the machine may affect two of a hundred runs.
            "worlds_astray_share",
            Check::at_most(f64::from(astray) / done.len().max(1) as f64, 0.02),
        )]),
        headline,
        series: verdicts.chain(used).collect(),
        notes,
        ..Outcome::new(&EXPERIMENT, request)
    }
}

/// Describes the wrong verdicts.
fn wrong(done: &[Done]) -> Vec<String> {
    let wrong = done
        .iter()
        .filter(|done| done.shown.said.factor != done.case.cause.factor());
    wrong
        .take(TOLD)
        .map(
            |Done {
                 case,
                 number,
                 shown,
             }| {
                let doubt = if shown.said.sure {
                    "certainly"
                } else {
                    "possibly"
                };
                let factor = &shown.said.factor;
                format!("Run {number}: {}: {doubt} {factor}.", case.described())
            },
        )
        .collect()
}

impl Case {
    fn described(&self) -> String {
        let Self {
            cause,
            round_trip,
            rate,
            queue,
            loss,
            knob,
            ..
        } = self;
        format!(
            "{} ({:.0} ms, {:.1} Mbit/s, queue {queue}, loss {:.1} %, set to {knob})",
            cause.name(),
            round_trip.as_secs_f64() * 1e3,
            rate.0 as f64 / 1e6,
            loss * 100.0
        )
    }
}
