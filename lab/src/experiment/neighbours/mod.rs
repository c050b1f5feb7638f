//! `neighbours`: turbo flows beside Cubic flows of others on the link between two relays (pied-piper
//! 6.3, "Inside the cloud").

mod case;
mod contest;
mod figures;
mod stage;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::outcome::{Environment, Outcome};
use super::progress::Progress;
use super::retry::Retry;
use super::rounds::Rounds;
use super::{Experiment, ExperimentError, Request};
use crate::peer::program;
use case::{Case, Kind, Path};
use contest::Contest;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "neighbours",
    about: "turbo flows between two relays beside Cubic flows of others on the same 100 Mbit/s link: how they share it",
    has_parts: true,
    minutes: 12,
    run,
};

/// The number of worlds side by side. Each fills its link all the time: with three, two processors deliver
/// late in most contests.
const LANES: usize = 2;
/// The bytes of all flows of a contest together.
const BYTES: usize = 240_000_000;
const BYTES_SMOKE: usize = 10_000_000;

/// All contests of each case, in order.
type Contests = BTreeMap<Case, Vec<Contest>>;

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let programs = program::versions(&[program::NGINX, program::CURL])?;
    let cases = cases(request)?;
    let jobs = plan(&cases, Rounds::of(request).most, request.seed);
    let progress = Progress::new("neighbours: contests", jobs.len() as u64);
    let (contests, repeated) = measure(jobs, request, &progress)?;
    drop(progress);
    let environment = Environment {
        links: links(&cases),
        programs,
        ..Environment::here()
    };
    Ok(figures::outcome(&contests, repeated, environment, request))
}

/// Returns the cases to run: those of the short or the long form; with `--only`, the selected ones
/// of all and the Cubic case that each is compared with.
fn cases(request: &Request) -> Result<Vec<Case>, ExperimentError> {
    let Some(only) = &request.only else {
        return Ok(Case::all(request.form.is_short()));
    };
    let mut all = Case::all(false);
    let selected: Vec<Case> = all
        .iter()
        .copied()
        .filter(|case| case.name().contains(only))
        .collect();
    all.retain(|case| {
        selected.contains(case)
            || selected
                .iter()
                .any(|other| other.with(Kind::Cubic) == *case)
    });
    match all.is_empty() {
        true => Err(ExperimentError::NoPart(only.clone())),
        false => Ok(all),
    }
}

fn links(cases: &[Case]) -> BTreeMap<String, String> {
    let paths: BTreeSet<Path> = cases.iter().map(|case| case.path).collect();
    let name = |path: Path| match path.label() {
        Some(label) => format!("near-far, {label}"),
        None => "near-far".to_owned(),
    };
    let links = paths.into_iter().map(|path| (name(path), path.describe()));
    links.collect()
}

/// Returns the contests in a random order, so that a drift of the machine affects all cases equally.
/// Each has the number of its measurement.
fn plan(cases: &[Case], runs: usize, seed: u64) -> VecDeque<(Case, u64)> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut jobs = VecDeque::new();
    for run in 0..runs as u64 {
        let mut round: Vec<_> = cases.iter().map(|case| (*case, run)).collect();
        for i in (1..round.len()).rev() {
            round.swap(i, (random.next_u64() % (i as u64 + 1)) as usize);
        }
        jobs.extend(round);
    }
    jobs
}

/// Returns the contests and the number of repeated ones.
fn measure(
    jobs: VecDeque<(Case, u64)>,
    request: &Request,
    progress: &Progress,
) -> Result<(Contests, u64), ExperimentError> {
    let rounds = Rounds::of(request);
    let planned = jobs.len().div_ceil(LANES);
    let bytes = request.form.pick(BYTES, BYTES, BYTES_SMOKE);
    let jobs = Mutex::new(jobs);
    let contests = Mutex::new(Contests::new());
    let next = || locked(&jobs).pop_front();
    let lane = || {
        let mut again = Retry::new(request.form.is_short(), planned);
        while let Some((case, run)) = next() {
            // The last rounds begin when hardly a contest of the earlier ones is still going on.
            let is_decided = {
                let all = locked(&contests);
                let of_case = all.get(&case).map(Vec::as_slice).unwrap_or_default();
                let figures = [Contest::others_rate, Contest::jain];
                !figures.iter().any(|figure| {
                    let samples: Vec<f64> = of_case.iter().filter_map(figure).collect();
                    rounds.need_more(&samples)
                })
            };
            if !is_decided {
                let hold = || contest::hold(case, run, bytes, request);
                let contest = again.measure(hold, |contest| contest.disturbed)?;
                locked(&contests).entry(case).or_default().push(contest);
            }
            progress.step();
        }
        Ok::<_, ExperimentError>(again.count)
    };
    let repeated = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        let results: Vec<Result<u64, ExperimentError>> = lanes
            .into_iter()
            .map(|lane| {
                lane.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect();
        results.into_iter().sum::<Result<u64, _>>()
    })?;
    let contests = contests.into_inner();
    let contests = contests.unwrap_or_else(PoisonError::into_inner);
    Ok((contests, repeated))
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Form;

    #[test]
    fn every_case_is_contested_as_often_as_the_others() {
        let cases = Case::all(false);
        let jobs = plan(&cases, 3, 7);
        for case in &cases {
            let runs: Vec<u64> = jobs
                .iter()
                .filter_map(|(of, run)| (of == case).then_some(*run))
                .collect();
            assert_eq!(runs, [0, 1, 2], "{case:?}");
        }
    }

    #[test]
    fn a_part_comes_with_its_reference() {
        let request = |only: &str| Request {
            only: Some(only.to_owned()),
            ..Request::of_test(Form::Quick)
        };
        let names = |only| -> Vec<String> {
            let cases = cases(&request(only)).unwrap();
            cases.into_iter().map(Case::name).collect()
        };
        let expected = ["cubic/2 + 2 Cubic, 20 ms", "turbo/2 + 2 Cubic, 20 ms"];
        assert_eq!(names("20 ms"), expected);
        let expected = ["cubic/4 + 4 Cubic", "turbo/4 + 4 Cubic"];
        assert_eq!(names("turbo/4"), expected);
        let refused = cases(&request("5 + 5"));
        assert!(matches!(refused, Err(ExperimentError::NoPart(_))));
    }
}
