//! `gains`: whether a connection carries what `taut why` predicts, once what limits it is gone.
//!
//! Each run has two worlds: that of `verdicts`, and the same without the limit.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::case::Case;
use super::cause::Cause;
use super::family::{Family, Part};
use super::runs;
use super::stage::{self, Shown};
use crate::experiment::outcome::{Calibration, Check, Environment, Outcome, Series};
use crate::experiment::{Experiment, ExperimentError, Request, stats};
use crate::peer::program;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "gains",
    about: "whether removing a limit gains what `taut why` predicts",
    has_parts: true,
    minutes: 6,
    run,
};

/// Runs of each cause in each family.
const RUNS: usize = 3;
/// The number of concurrent worlds. Fewer than in `verdicts`, because a world without its limit
/// carries more, and because the processor limits one of them.
const AT_A_TIME: usize = 3;
/// A link counts as full if this share of it is used.
const FULL: f64 = 0.8;
/// What a lower bound may exceed the measurement by.
const BOUND_TOLERANCE: f64 = 1.1;

/// A run in both worlds.
struct Done {
    case: Case,
    number: usize,
    /// The world with the limit.
    shown: Shown,
    /// What the world without the limit carries, in bytes of payload a second.
    carried: f64,
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
    let programs = program::versions(&[
        program::NGINX,
        program::CURL,
        program::SOCAT,
        program::IPERF3,
    ])?;
    let done = runs::run_all("gains: runs", &parts, runs, AT_A_TIME, |part, number| {
        run_both(part, number, request)
    })?;
    let mut environment = Environment::here();
    environment.programs = programs;
    Ok(outcome(request, environment, &done))
}

/// Returns the parts to run: with `--only`, those whose names contain one of its texts, which
/// commas separate; otherwise all, or in the short form those with Cubic.
fn parts(request: &Request) -> Vec<Part> {
    let all = Part::all().into_iter().filter(|part| {
        let is_plain = matches!(part.family, Family::Cubic | Family::Reno | Family::Bbr);
        // Random losses do not limit BBR.
        is_plain && part.cause.is_removable() && part.factor() == part.cause.factor()
    });
    let is_wanted = |part: &Part| match &request.only {
        Some(only) => part.is_named(only),
        None => !request.form.is_short() || part.family == Family::Cubic,
    };
    let most = request.form.pick(usize::MAX, usize::MAX, 1);
    all.filter(is_wanted).take(most).collect()
}

fn run_both(part: Part, number: usize, request: &Request) -> Result<Done, ExperimentError> {
    /// Held by the run whose sender needs a processor for itself.
    static PROCESSOR: Mutex<()> = Mutex::new(());
    let is_busy = part.cause == Cause::ThrottledSender;
    let _alone = is_busy.then(|| PROCESSOR.lock().unwrap_or_else(PoisonError::into_inner));
    let case = Case::of(part, request.seed, number);
    let shown = stage::run(&case, &[], request)?;
    let carried = stage::carried_without_limit(&case, request)?;
    Ok(Done {
        case,
        number,
        shown,
        carried,
    })
}

fn outcome(request: &Request, environment: Environment, done: &[Done]) -> Outcome {
    let mut notes: Vec<_> = done.iter().map(Done::described).collect();
    notes.push(
        "A world without its limit has the same seed, and is measured for 5 s after a start of 5 s."
            .to_owned(),
    );
    let errors: Vec<f64> = done.iter().filter_map(Done::error).collect();
    let bounds: Vec<bool> = done.iter().filter_map(Done::keeps_bound).collect();
    let nexts: Vec<bool> = done.iter().filter_map(Done::names_next).collect();
    let right = done.iter().filter(|done| done.is_right()).count();
    let share = |of: usize, all: usize| of as f64 / all as f64;
    let mut headline = BTreeMap::from([
        ("runs".to_owned(), done.len() as f64),
        ("predicted_share".to_owned(), share(errors.len(), right)),
        ("lower_bound_share".to_owned(), share(bounds.len(), right)),
        (
            "lower_bound_kept".to_owned(),
            share(bounds.iter().filter(|kept| **kept).count(), bounds.len()),
        ),
        (
            "next_right".to_owned(),
            share(nexts.iter().filter(|right| **right).count(), nexts.len()),
        ),
    ]);
    if let Some(error) = stats::median(&errors) {
        headline.insert("gain_error".to_owned(), error);
    }
    if let Some((cause, error)) = worst(done) {
        headline.insert("gain_error_worst_cause".to_owned(), error);
        notes.push(format!(
            "gain_error_worst_cause is that of `{}`.",
            cause.name()
        ));
    }
    headline.retain(|_, figure| !figure.is_nan());
    let series = parts(request).into_iter().flat_map(|part| {
        let of = |figure: fn(&Done) -> Option<f64>| {
            let done = done.iter().filter(|done| done.case.part() == part);
            done.filter_map(figure).collect::<Vec<_>>()
        };
        let name = |what: &str| format!("{what}/{}", part.name());
        let mbit = |figure: fn(&Done) -> Option<f64>| {
            let figures = of(figure).into_iter();
            figures.map(|rate| rate * 8.0 / 1e6).collect()
        };
        [
            Series::of(&name("error"), "gain_error", "share", of(Done::error)),
            Series::of(
                &name("predicted"),
                "goodput",
                "Mbit/s",
                mbit(|done| Some(done.shown.why.gain.as_ref()?.rate)),
            ),
            Series::of(
                &name("carried"),
                "goodput",
                "Mbit/s",
                mbit(|done| Some(done.carried)),
            ),
        ]
        .into_iter()
        .flatten()
    });
    // Runs with a wrong verdict are not scored. With more of them, the others are no fair sample.
    let wrong = share(done.len() - right, done.len());
    Outcome {
        environment,
        calibration: Calibration::of([("wrong_verdicts_share", Check::at_most(wrong, 0.1))]),
        headline,
        series: series.collect(),
        notes,
        ..Outcome::new(EXPERIMENT.name, request)
    }
}

/// Returns the cause with the largest median error, and that error.
fn worst(done: &[Done]) -> Option<(Cause, f64)> {
    let each = Cause::ALL.into_iter().filter_map(|cause| {
        let of = done.iter().filter(|done| done.case.cause == cause);
        let errors: Vec<f64> = of.filter_map(Done::error).collect();
        Some((cause, stats::median(&errors)?))
    });
    each.max_by(|a, b| a.1.total_cmp(&b.1))
}

// === impl Done ===

impl Done {
    /// Whether the verdict names the cause. Under a wrong verdict, the prediction concerns another
    /// limit.
    fn is_right(&self) -> bool {
        self.shown.why.said.factor == self.case.part().factor()
    }

    /// Returns the prediction over the measurement; `None` if there is no prediction.
    fn ratio(&self) -> Option<(f64, bool)> {
        let gain = self.shown.why.gain.as_ref().filter(|_| self.is_right())?;
        Some((gain.rate / self.carried, gain.is_lower_bound))
    }

    /// Returns the error of a prediction that is no lower bound.
    fn error(&self) -> Option<f64> {
        let (ratio, is_lower_bound) = self.ratio()?;
        (!is_lower_bound).then_some((ratio - 1.0).abs())
    }

    /// Returns whether as much was carried as a lower bound says.
    fn keeps_bound(&self) -> Option<bool> {
        let (ratio, is_lower_bound) = self.ratio()?;
        is_lower_bound.then_some(ratio <= BOUND_TOLERANCE)
    }

    /// Returns whether the link is full exactly if the prediction says that the link limits next.
    fn names_next(&self) -> Option<bool> {
        self.ratio()?;
        let next = self.shown.why.gain.as_ref()?.next.as_deref()?;
        let is_full = self.carried * 8.0 >= self.case.rate.0 as f64 * FULL;
        Some(is_full == (next == "link"))
    }

    fn described(&self) -> String {
        let mbit = |bytes: f64| bytes * 8.0 / 1e6;
        let predicted = match &self.shown.why.gain {
            None => "no prediction".to_owned(),
            Some(gain) => format!(
                "{} {:.1} Mbit/s, then {}",
                if gain.is_lower_bound {
                    "at least"
                } else {
                    "about"
                },
                mbit(gain.rate),
                gain.next.as_deref().unwrap_or("unknown")
            ),
        };
        format!(
            "Run {}: {}: {} ({}): {predicted}; it carried {:.1} Mbit/s.",
            self.number,
            self.case.described(),
            self.shown.why.said.factor,
            self.shown.why.said.confidence,
            mbit(self.carried)
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::mode::{Gain, Said, Statement};
    use super::*;

    /// A run whose link carries 8 of `mbit` Mbit/s without its limit.
    fn done(factor: &str, gain: Option<Gain>, mbit: u64) -> Done {
        let part = Part {
            family: Family::Cubic,
            cause: Cause::ReceiveBuffer,
        };
        let mut case = Case::of(part, 1, 0);
        case.rate.0 = mbit * 1_000_000;
        Done {
            case,
            number: 0,
            shown: Shown {
                why: Statement {
                    said: Said {
                        factor: factor.to_owned(),
                        confidence: "sure".to_owned(),
                    },
                    gain,
                    ..Statement::default()
                },
                others: BTreeMap::new(),
                used: 0.1,
                busy: None,
                wait: Duration::ZERO,
            },
            carried: 1e6,
        }
    }

    fn gain(rate: f64, next: Option<&str>) -> Option<Gain> {
        Some(Gain {
            rate,
            is_lower_bound: next.is_none(),
            next: next.map(str::to_owned),
        })
    }

    #[test]
    fn only_a_figure_has_an_error_and_only_a_bound_is_kept() {
        let about = done("receive-buffer", gain(1.2e6, Some("link")), 9);
        assert!((about.error().unwrap() - 0.2).abs() < 1e-9);
        assert_eq!(about.keeps_bound(), None);
        let at_least = |rate| done("receive-buffer", gain(rate, None), 9).keeps_bound();
        assert_eq!(
            (at_least(1.05e6), at_least(1.2e6)),
            (Some(true), Some(false))
        );
        assert_eq!(done("receive-buffer", gain(1e6, None), 9).error(), None);
        // Under a wrong verdict, the prediction concerns another limit.
        assert_eq!(done("loss", gain(1e6, Some("link")), 9).error(), None);
        assert_eq!(done("receive-buffer", None, 9).error(), None);
    }

    #[test]
    fn the_next_limit_is_judged_by_whether_the_link_is_full() {
        let names = |next, mbit| done("receive-buffer", gain(1e6, next), mbit).names_next();
        assert_eq!(names(Some("link"), 9), Some(true));
        assert_eq!(names(Some("link"), 20), Some(false));
        assert_eq!(names(Some("send-buffer"), 9), Some(false));
        assert_eq!(names(Some("send-buffer"), 20), Some(true));
        assert_eq!(names(None, 9), None);
    }

    #[test]
    fn the_worst_cause_is_that_with_the_largest_median() {
        let mut all = vec![done("receive-buffer", gain(1.1e6, Some("link")), 9)];
        let mut loss = done("loss", gain(1.5e6, Some("link")), 9);
        loss.case.cause = Cause::Loss;
        all.push(loss);
        let (cause, error) = worst(&all).unwrap();
        assert!(cause == Cause::Loss && (error - 0.5).abs() < 1e-9);
    }
}
