//! The outcome of an experiment, in the form that `--json` writes and `taut lab report` reads.
//!
//! `docs/lab.md` describes every field; programs rely on them.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::request::Request;
use super::stats;

/// One run of an experiment.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Outcome {
    /// The experiment's name on the command line.
    pub experiment: String,
    /// The version of Taut that ran it.
    pub version: String,
    /// The tree that it was built from, such as a commit, if the caller named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
    /// The seed of its random choices; the same seed makes the same choices.
    pub seed: u64,
    /// Whether this was the short form.
    pub quick: bool,
    /// What the experiment ran on.
    pub environment: Environment,
    /// Whether the world showed the problem that it is built to show.
    pub calibration: Calibration,
    /// The figures that the experiment is run for.
    #[serde(deserialize_with = "without_nulls")]
    pub headline: BTreeMap<String, f64>,
    /// The measurements.
    pub series: Vec<Series>,
    /// The paper's figures.
    pub paper: Map<String, Value>,
    /// An ideal system's figures.
    pub ideal: Map<String, Value>,
    /// Notes that a reader needs beside the figures.
    pub notes: Vec<String>,
}

/// What an experiment ran on.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Environment {
    /// The kernel's release.
    pub kernel: String,
    /// The number of CPUs of the machine.
    pub cpus: usize,
    /// The links of the world: a name and a description each.
    pub links: BTreeMap<String, String>,
    /// Guest kernels, if there are guests.
    pub guests: Vec<String>,
    /// Programs that took part, with their versions.
    pub programs: BTreeMap<String, String>,
}

/// Whether the world showed the problem that the experiment builds it to show.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Calibration {
    /// Whether every check held.
    pub ok: bool,
    /// The checks that did not hold because this machine was too slow for what it emulates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub busy: Vec<String>,
    /// The checks, by name.
    #[serde(flatten)]
    pub checks: BTreeMap<String, Check>,
}

/// Whether the figures of a run can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The world showed the problem.
    Calibrated,
    /// This machine was busy, which makes figures doubtful.
    Busy,
    /// The world did not show the problem, so the figures prove nothing.
    Failed,
    /// The run had no checks.
    Unchecked,
}

/// A measured figure and its accepted range.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Check {
    /// The measured figure; NaN if there is none.
    #[serde(deserialize_with = "null_is_nan")]
    pub measured: f64,
    /// The least accepted figure.
    pub least: f64,
    /// The greatest accepted figure, if there is a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<f64>,
}

// === impl Check ===

impl Check {
    /// Accepts only `figure`.
    pub fn exactly(measured: f64, figure: f64) -> Self {
        Self {
            measured,
            least: figure,
            most: Some(figure),
        }
    }

    /// Accepts only zero.
    pub fn none(measured: u64) -> Self {
        Self::exactly(measured as f64, 0.0)
    }

    /// Accepts `least` and more.
    pub fn at_least(measured: f64, least: f64) -> Self {
        Self {
            measured,
            least,
            most: None,
        }
    }

    /// Accepts from 0 to `most`.
    pub fn at_most(measured: f64, most: f64) -> Self {
        Self {
            measured,
            least: 0.0,
            most: Some(most),
        }
    }
}

/// One measured quantity in one configuration.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Series {
    /// The configuration: words separated by `/`, from the general to the particular, such as
    /// `relay/1 MB` or `e2e/10 MB/0.1 % loss`.
    pub name: String,
    /// The metric, such as `ttfb`.
    pub metric: String,
    /// The unit, such as `s`.
    pub unit: String,
    /// The number of samples.
    pub n: usize,
    /// The median of the samples.
    pub median: f64,
    /// The 10th percentile.
    pub p10: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// All samples, in the order in which they were taken.
    pub samples: Vec<f64>,
}

// === impl Outcome ===

impl Outcome {
    /// Returns an outcome of `experiment` on this machine, without checks, figures and notes.
    pub fn new(experiment: &str, request: &Request) -> Self {
        Self {
            experiment: experiment.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tree: None,
            seed: request.seed,
            quick: request.form.is_short(),
            environment: Environment::here(),
            calibration: Calibration::of([]),
            headline: BTreeMap::new(),
            series: Vec::new(),
            paper: Map::new(),
            ideal: Map::new(),
            notes: Vec::new(),
        }
    }
}

// === impl Environment ===

impl Environment {
    /// Describes this machine, without links, guests and programs.
    pub fn here() -> Self {
        Self {
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            links: BTreeMap::new(),
            guests: Vec::new(),
            programs: BTreeMap::new(),
        }
    }
}

// === impl Calibration ===

impl Calibration {
    /// Returns the result of a set of checks.
    pub fn of(checks: impl IntoIterator<Item = (&'static str, Check)>) -> Self {
        let checks: BTreeMap<_, _> = checks.into_iter().map(|(n, c)| (n.to_owned(), c)).collect();
        Self {
            ok: checks.values().all(Check::holds),
            busy: Vec::new(),
            checks,
        }
    }

    /// Adds checks whose figure exceeds its maximum only if this machine was too slow for what it emulates:
    /// a link was late, or a process.
    #[must_use]
    pub fn and_machine(mut self, checks: impl IntoIterator<Item = (&'static str, Check)>) -> Self {
        for (name, check) in checks {
            self.ok &= check.holds();
            self.busy.extend(check.exceeds().then(|| name.to_owned()));
            self.checks.insert(name.to_owned(), check);
        }
        self
    }

    /// On a busy machine these checks may fail, too: they are of the world, and Taut has no part in them.
    #[must_use]
    pub fn without_taut(mut self, names: &[&str]) -> Self {
        // One that was not measured shows nothing of the machine.
        let fails = |check: &Check| !check.holds() && !check.measured.is_nan();
        let failed = |name: &&&str| self.checks.get(**name).is_some_and(fails);
        if !self.busy.is_empty() {
            let failed: Vec<_> = names.iter().filter(failed).collect();
            self.busy
                .extend(failed.into_iter().map(|name| (*name).to_owned()));
        }
        self
    }

    /// Returns whether the figures can be trusted. A calibration that claims `ok` although one of its checks
    /// failed is not believed, nor one that calls the machine busy without such a check. A busy machine
    /// excuses no other check: a defect of Taut could be the reason.
    pub fn trust(&self) -> Trust {
        let exceeds = |name: &String| self.checks.get(name).is_some_and(Check::exceeds);
        let failed = |check: &Check| !check.holds() && !check.measured.is_nan();
        let is_excused = |name: &String| self.checks.get(name).is_some_and(failed);
        let is_busy = self.busy.iter().any(exceeds) && self.busy.iter().all(is_excused);
        let mut failures = self.checks.iter().filter(|(_, check)| !check.holds());
        let is_machine_alone = failures.all(|(name, _)| self.busy.contains(name));
        if self.ok && self.checks.values().all(Check::holds) {
            match self.checks.is_empty() {
                true => Trust::Unchecked,
                false => Trust::Calibrated,
            }
        } else if is_busy && is_machine_alone {
            Trust::Busy
        } else {
            Trust::Failed
        }
    }
}

// === impl Check ===

impl Check {
    /// Returns whether the figure is in its range.
    pub fn holds(&self) -> bool {
        self.measured >= self.least && self.most.is_none_or(|most| self.measured <= most)
    }

    fn exceeds(&self) -> bool {
        self.most.is_some_and(|most| self.measured > most)
    }
}

// === impl Series ===

impl Series {
    /// Returns the series of these samples, or `None` if there are none. A sample that could not be
    /// computed (a ratio to nothing) is none: JSON has no such number.
    pub fn of(name: &str, metric: &str, unit: &str, mut samples: Vec<f64>) -> Option<Self> {
        samples.retain(|sample| sample.is_finite());
        Some(Self {
            name: name.to_owned(),
            metric: metric.to_owned(),
            unit: unit.to_owned(),
            n: samples.len(),
            median: stats::median(&samples)?,
            p10: stats::quantile(&samples, 0.1)?,
            p90: stats::quantile(&samples, 0.9)?,
            samples,
        })
    }
}

// A figure that could not be computed is NaN, which JSON writes as null. One such figure must not keep
// `taut lab report` from reading the others.

/// Reads a number; null is NaN, which is in no range.
fn null_is_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Reads a map of numbers and leaves out those that are null.
fn without_nulls<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let all = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    Ok(all
        .into_iter()
        .filter_map(|(key, figure)| Some((key, figure?)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calibration_holds_when_every_check_does() {
        let check = |measured| Check {
            measured,
            least: 1.0,
            most: Some(2.0),
        };
        assert!(Calibration::of([("a", check(1.0)), ("b", check(2.0))]).ok);
        assert!(!Calibration::of([("a", check(1.5)), ("b", check(2.1))]).ok);
        assert!(!Calibration::of([("a", check(f64::NAN))]).ok);
    }

    #[test]
    fn a_busy_machine_makes_figures_doubtful_and_another_failure_makes_them_worthless() {
        let late = |late| Calibration::of([]).and_machine([("late", Check::at_most(late, 0.5))]);
        assert_eq!(late(0.4).trust(), Trust::Calibrated);
        assert_eq!(late(0.6).trust(), Trust::Busy);
        assert_eq!(late(f64::NAN).trust(), Trust::Failed);
        // Taut may be the reason of another failure, unless it has no part in the check.
        let slow = [("slow", Check::at_least(1.0, 3.0))];
        let both = Calibration::of(slow).and_machine([("late", Check::none(2))]);
        assert_eq!(both.trust(), Trust::Failed);
        assert_eq!(both.without_taut(&["slow"]).trust(), Trust::Busy);
        let unknown = Calibration::of([("slow", Check::at_least(f64::NAN, 3.0))]);
        let unknown = unknown.and_machine([("late", Check::none(2))]);
        let unknown = unknown.without_taut(&["slow"]);
        assert_eq!(
            (unknown.trust(), unknown.busy),
            (Trust::Failed, vec!["late".to_owned()])
        );
        assert_eq!(
            Calibration::of(slow).without_taut(&["slow"]).trust(),
            Trust::Failed
        );
        assert_eq!(Calibration::of(slow).trust(), Trust::Failed);
        let claims = Calibration {
            busy: vec!["slow".to_owned()],
            ..Calibration::of(slow)
        };
        assert_eq!(claims.trust(), Trust::Failed);
        assert_eq!(Calibration::of([]).trust(), Trust::Unchecked);
    }

    #[test]
    fn a_figure_that_could_not_be_computed_is_read_back() {
        let written = include_str!("../report/testdata/incast.json");
        let mut outcome: Outcome = serde_json::from_str(written).unwrap();
        let figures = outcome.headline.len();
        outcome.headline.insert("none".to_owned(), f64::NAN);
        let none = Check::at_least(f64::NAN, 1.0);
        outcome.calibration = Calibration::of([("none", none)]);
        let json = serde_json::to_string(&outcome).unwrap();
        let back: Outcome = serde_json::from_str(&json).unwrap();
        assert_eq!(back.headline.len(), figures);
        assert!(!back.calibration.checks["none"].holds());
    }

    #[test]
    fn a_sample_that_could_not_be_computed_is_in_no_series() {
        let of = |samples| Series::of("relay", "ratio", "1", samples);
        let series = of(vec![f64::NAN, 2.0, f64::INFINITY]).unwrap();
        assert_eq!((series.n, series.samples), (1, vec![2.0]));
        assert!(of(vec![f64::NAN]).is_none());
    }

    #[test]
    fn checks_stand_beside_ok_in_json() {
        let calibration = Calibration::of([(
            "rtt_ms",
            Check {
                measured: 3.0,
                least: 2.0,
                most: Some(4.0),
            },
        )]);
        let json = serde_json::to_value(&calibration).unwrap();
        assert_eq!(json["ok"], true);
        assert_eq!(json["rtt_ms"]["measured"], 3.0);
        let back: Calibration = serde_json::from_value(json).unwrap();
        assert!(back.checks["rtt_ms"].holds());
    }
}
