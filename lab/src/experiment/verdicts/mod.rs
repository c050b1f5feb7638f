//! `verdicts`: whether `taut why`, `taut top` and `taut watch` name the factor that limits a
//! connection, in worlds built to have a known one.

mod away;
mod case;
mod cause;
mod family;
pub mod gains;
mod matrix;
mod mode;
mod reader;
mod runs;
mod stage;
mod writer;

use std::collections::BTreeMap;

use super::guests::uml;
use super::outcome::{Calibration, Check, Environment, Outcome, Series};
use super::{Experiment, ExperimentError, Form, Request};
use crate::peer::program;
use case::Case;
use cause::Cause;
use family::{Family, Part};
use matrix::Matrix;
use mode::{Mode, Said, Statement};
use stage::Shown;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "verdicts",
    about: "whether `taut why`, `taut top` and `taut watch` name what was made to limit a connection",
    has_parts: true,
    minutes: 11,
    run,
};

/// Runs of each cause in each family. More would take longer than 20 minutes.
const RUNS: usize = 2;
/// The number of concurrent worlds. Each world spends most of its time waiting.
const AT_A_TIME: usize = 4;
/// The number of wrong verdicts of each mode that are described.
const TOLD: usize = 60;

/// A finished run.
struct Done {
    case: Case,
    number: usize,
    shown: Shown,
}

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let parts = parts(request);
    if parts.is_empty() {
        return Err(ExperimentError::NoPart(
            request.only.clone().unwrap_or_default(),
        ));
    }
    let runs = request
        .runs
        .unwrap_or(if request.form.is_short() { 1 } else { RUNS });
    let mut programs = vec![
        program::NGINX,
        program::CURL,
        program::SOCAT,
        program::IPERF3,
        program::NFT,
    ];
    let has_guest =
        |part: &Part| matches!(part.cause, Cause::Descheduled | Cause::DescheduledSender);
    if parts.iter().any(has_guest) {
        programs.push(uml::KERNEL);
    }
    let programs = program::versions(&programs)?;
    let done = runs::run_all("verdicts: runs", &parts, runs, AT_A_TIME, |part, number| {
        let case = Case::of(part, request.seed, number);
        let shown = stage::run(&case, &Mode::ALL, request)?;
        Ok(Done {
            case,
            number,
            shown,
        })
    })?;
    let mut environment = Environment::here();
    environment.programs = programs;
    Ok(outcome(request, environment, &done))
}

/// Returns the parts to run: with `--only`, those whose names contain one of its texts, which
/// commas separate; otherwise all, or in the short form one part for each cause, with varying
/// families.
fn parts(request: &Request) -> Vec<Part> {
    let all = Part::all();
    match &request.only {
        Some(only) => all.into_iter().filter(|part| part.is_named(only)).collect(),
        None if request.form == Form::Smoke => {
            let is_smallest =
                |part: &Part| (part.family, part.cause) == (Family::Cubic, Cause::Idle);
            all.into_iter().filter(is_smallest).collect()
        }
        None if request.form.is_short() => {
            let one = |(index, cause): (usize, Cause)| {
                let of: Vec<_> = all.iter().filter(|part| part.cause == cause).collect();
                of.get(index % of.len().max(1)).map(|part| **part)
            };
            Cause::ALL.into_iter().enumerate().filter_map(one).collect()
        }
        None => all,
    }
}

fn outcome(request: &Request, environment: Environment, done: &[Done]) -> Outcome {
    let astray = done.iter().filter_map(|done| Some((done, done.astray()?)));
    let mut notes: Vec<_> = astray
        .map(|(Done { case, .. }, how)| {
            let case = case.described();
            format!("This world did not work as intended: {case}: {how}.")
        })
        .collect();
    let astray = notes.len() as f64;
    let matrices = Mode::ALL.map(|mode| (mode, matrix(done, mode)));
    notes.extend(Mode::ALL.into_iter().flat_map(|mode| wrong(done, mode)));
    let intended = done.iter().filter(|done| done.astray().is_none());
    let mut headline = BTreeMap::from([
        ("runs".to_owned(), done.len() as f64),
        ("worlds_astray".to_owned(), astray),
        (
            "accuracy_without_astray".to_owned(),
            matrix(intended, Mode::Why).accuracy(|_, _| true),
        ),
    ]);
    for (mode, matrix) in &matrices {
        headline.extend(match mode.key() {
            None => figures(matrix, &mut notes),
            Some(key) => figures_of(matrix, key),
        });
    }
    if let Some((_, both)) = matrices.iter().find(|(mode, _)| *mode == Mode::BothEnds) {
        let as_peer = both.wrongly("peer") as f64;
        headline.insert("both_ends_left_as_peer".to_owned(), as_peer);
    }
    headline.extend(longest_right(done));
    headline.retain(|_, share| !share.is_nan());
    if let Some(error) = share_error(done) {
        headline.insert("share_error".to_owned(), error);
        notes.push(
            "share_error is the mean difference between the share of the time for which the cause limited the connection, where \
             that is known (an idle connection, a full link, a sender with pauses), and the share in the verdict."
                .to_owned(),
        );
    }
    notes.push(
        "Each run has a world of its own, whose rates, round trips, buffers, losses and sizes come \
         from the seed. In the series of verdicts, columns are verdicts and rows are causes; `(seen \
         there)` means at the receiving end."
            .to_owned(),
    );
    let verdicts = matrices.iter().flat_map(|(mode, matrix)| {
        let metric = match mode {
            Mode::Why => "verdicts".to_owned(),
            mode => format!("verdicts of {}", mode.name()),
        };
        let cells = matrix.cells().into_iter();
        cells.filter_map(move |(part, factor, count)| {
            let name = format!("{factor}/{}", part.name());
            Series::of(&name, &metric, "runs", vec![count as f64])
        })
    });
    let used = Part::all().into_iter().filter_map(|part| {
        let of = done.iter().filter(|done| done.case.part() == part);
        let used = of.map(|done| done.shown.used).collect();
        Series::of(
            &format!("used/{}", part.name()),
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
            Check::at_most(astray / done.len().max(1) as f64, 0.02),
        )]),
        headline,
        series: verdicts.chain(used).collect(),
        notes,
        ..Outcome::new(EXPERIMENT.name, request)
    }
}

/// Returns the verdicts of a mode.
fn matrix<'a>(done: impl IntoIterator<Item = &'a Done>, mode: Mode) -> Matrix {
    let mut matrix = Matrix::new(mode);
    for Done { case, shown, .. } in done {
        if let Some(statement) = shown.of(mode) {
            matrix.add(case.part(), statement.said.clone());
        }
    }
    matrix
}

/// Returns how often the verdicts of another mode than `taut why` were right.
fn figures_of(matrix: &Matrix, key: &str) -> BTreeMap<String, f64> {
    let said = |confidence: &str| matrix.accuracy(|_, said| said.confidence == confidence);
    BTreeMap::from([
        (format!("{key}_runs"), matrix.runs().count() as f64),
        (format!("{key}_accuracy"), matrix.accuracy(|_, _| true)),
        (
            format!("{key}_heldout_accuracy"),
            matrix.accuracy(|part, _| part.family.is_left_out()),
        ),
        (format!("{key}_sure_right"), said("sure")),
        (format!("{key}_likely_right"), said("likely")),
        (
            format!("{key}_confident_wrong_rate"),
            matrix.confident_wrong_rate(),
        ),
    ])
}

/// Returns the share of connections for which `taut watch` recorded the cause for the longest time.
fn longest_right(done: &[Done]) -> Option<(String, f64)> {
    let longest = done.iter().filter_map(|Done { case, shown, .. }| {
        let longest = shown.of(Mode::Watch)?.longest.as_deref();
        Some(longest == Some(case.part().factor()))
    });
    let longest: Vec<bool> = longest.collect();
    let right = longest.iter().filter(|right| **right).count();
    (!longest.is_empty()).then(|| {
        let share = right as f64 / longest.len() as f64;
        ("watch_longest_right".to_owned(), share)
    })
}

/// Returns the figures of `taut why`, and adds notes that name the worst causes and families.
fn figures(matrix: &Matrix, notes: &mut Vec<String>) -> BTreeMap<String, f64> {
    let is_left_out = |part: Part| part.family.is_left_out();
    let said = |confidence: &str| matrix.accuracy(|_, said| said.confidence == confidence);
    let mut headline = BTreeMap::from([
        ("accuracy".to_owned(), matrix.accuracy(|_, _| true)),
        (
            "heldout_accuracy".to_owned(),
            matrix.accuracy(|part, _| is_left_out(part)),
        ),
        ("sure_right".to_owned(), said("sure")),
        ("likely_right".to_owned(), said("likely")),
        (
            "confident_wrong_rate".to_owned(),
            matrix.confident_wrong_rate(),
        ),
    ]);
    let mut worst = |key: &str, found: Option<(&str, f64)>| {
        if let Some((name, share)) = found {
            headline.insert(key.to_owned(), share);
            notes.push(format!("{key} is that of `{name}`."));
        }
    };
    let cause = |found: Option<(Cause, f64)>| found.map(|(cause, share)| (cause.name(), share));
    worst(
        "worst_cause_accuracy",
        cause(matrix.worst(|part| Some(part.cause))),
    );
    worst(
        "heldout_worst_cause",
        cause(matrix.worst(|part| is_left_out(part).then_some(part.cause))),
    );
    let family = matrix.worst(|part| is_left_out(part).then_some(part.family));
    worst(
        "heldout_worst_family",
        family.map(|(family, share): (Family, f64)| (family.name(), share)),
    );
    headline
}

/// Returns the mean difference between the shares of time in the verdicts and the true ones; `None` if
/// no true share is known.
fn share_error(done: &[Done]) -> Option<f64> {
    let errors = done.iter().filter_map(|Done { case, shown, .. }| {
        let truth = case.share(shown.used, shown.busy)?;
        let said = shown.why.shares.get(case.part().factor());
        Some((said.copied().unwrap_or(0.0) - truth).abs())
    });
    let errors: Vec<f64> = errors.collect();
    let sum: f64 = errors.iter().sum();
    (!errors.is_empty()).then(|| sum / errors.len() as f64)
}

/// Describes the wrong verdicts of a mode.
fn wrong(done: &[Done], mode: Mode) -> impl Iterator<Item = String> {
    let wrong = done.iter().filter_map(move |done| {
        let Statement { said, longest, .. } = done.shown.of(mode)?;
        let Said { factor, confidence } = said;
        let longest = match longest {
            Some(longest) => format!("; for longest: {longest}"),
            None => String::new(),
        };
        (factor != mode.expected(done.case.part())).then(|| {
            format!(
                "{}: run {}: {}: {factor} ({confidence}{longest}).",
                mode.name(),
                done.number,
                done.case.described()
            )
        })
    });
    wrong.take(TOLD)
}

impl Done {
    /// Returns how the world differs from the intended one, if it does.
    fn astray(&self) -> Option<String> {
        let Self { case, shown, .. } = self;
        let (least, most) = case.part().expected_use();
        if !(least..=most).contains(&shown.used) {
            Some(format!(
                "{:.2} of the bottleneck was used, and {least} to {most} was expected",
                shown.used
            ))
        } else if !case.cause.expects_wait(shown.wait) {
            let wait = shown.wait;
            Some(format!(
                "segments waited {wait:.0?} in the queue, on average"
            ))
        } else {
            let busy = shown.busy.unwrap_or(f64::NAN);
            (!case.expects_busy(shown.busy)).then(|| {
                format!(
                    "the sender had unacknowledged data for {:.0} % of the time",
                    busy * 100.0
                )
            })
        }
    }
}

impl Shown {
    /// Returns what a command said; `None` if it did not observe the connection.
    fn of(&self, mode: Mode) -> Option<&Statement> {
        match mode {
            Mode::Why => Some(&self.why),
            other => self.others.get(&other),
        }
    }
}

impl Case {
    fn described(&self) -> String {
        let Self {
            round_trip,
            rate,
            queue,
            loss,
            knob,
            flows,
            period,
            slice,
            discipline,
            has_ecn,
            jitter,
            reordering,
            held_for,
            idle,
            ..
        } = self;
        let mut conditions = String::new();
        if self.family.has_aqm() {
            conditions += &format!(", {discipline:?}, ECN: {has_ecn}");
        }
        if self.family.has_jitter() {
            conditions += &format!(
                ", jitter {jitter:.1?}, {:.1} % held for {held_for:.1?}",
                reordering * 100.0
            );
        }
        if *idle > 0.0 {
            conditions += &format!(", idle {:.0} %", idle * 100.0);
        }
        format!(
            "{} ({:.0} ms, {:.1} Mbit/s, queue {queue}, loss {:.1} %, set to {knob}; flows: {flows}, period {period:.0?}, \
             slices of {slice:.0?}{conditions})",
            self.part().name(),
            round_trip.as_secs_f64() * 1e3,
            rate.0 as f64 / 1e6,
            loss * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;

    /// A run with a small receive buffer.
    fn done(factor: &str, used: f64) -> Done {
        let part = Part {
            family: Family::Cubic,
            cause: Cause::ReceiveBuffer,
        };
        let statement = Statement {
            said: Said {
                factor: factor.to_owned(),
                confidence: "sure".to_owned(),
            },
            ..Statement::default()
        };
        Done {
            case: Case::of(part, 1, 0),
            number: 0,
            shown: Shown {
                why: statement,
                others: BTreeMap::new(),
                used,
                wait: Duration::ZERO,
                busy: None,
            },
        }
    }

    #[test]
    fn a_world_that_did_not_work_and_a_command_that_did_not_run_are_counted() {
        let request = Request {
            form: Form::Full,
            seed: 1,
            runs: None,
            only: None,
            taut: PathBuf::new(),
        };
        let mut done = [done("receive-buffer", 0.3), done("link", 0.95)];
        let top = done[0].shown.why.clone();
        done[0].shown.others.insert(Mode::Top, top);
        let headline = outcome(&request, Environment::here(), &done).headline;
        for (key, figure) in [
            ("runs", 2.0),
            ("accuracy", 0.5),
            ("worlds_astray", 1.0),
            ("accuracy_without_astray", 1.0),
            ("top_runs", 1.0),
            ("watch_runs", 0.0),
        ] {
            assert_eq!(headline.get(key), Some(&figure), "{key}");
        }
    }
}
