//! What an experiment found, in the form that `--json` writes and `taut lab report` reads.
//!
//! `docs/lab.md` describes every field; they are a promise to programs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::stats;

/// One run of an experiment.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Outcome {
    /// The experiment's name, as `taut lab run` takes it.
    pub experiment: String,
    /// The version of Taut that ran it.
    pub version: String,
    /// Where its random choices came from; the same seed makes the same choices.
    pub seed: u64,
    /// Whether it was the short form.
    pub quick: bool,
    /// What it ran on.
    pub environment: Environment,
    /// Whether the world showed the problem it is there to show.
    pub calibration: Calibration,
    /// The figures that the experiment is run for.
    pub headline: BTreeMap<String, f64>,
    /// What was measured.
    pub series: Vec<Series>,
    /// The paper's own figures.
    pub paper: Map<String, Value>,
    /// What an ideal system would show.
    pub ideal: Map<String, Value>,
    /// What a reader has to know beside the figures.
    pub notes: Vec<String>,
}

/// What an experiment ran on.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Environment {
    /// The kernel's release.
    pub kernel: String,
    /// CPUs of the machine.
    pub cpus: usize,
    /// The links of the world: a name and a description each.
    pub links: BTreeMap<String, String>,
    /// Guest kernels, where there are guests.
    pub guests: Vec<String>,
    /// Programs that took part, with their versions.
    pub programs: BTreeMap<String, String>,
}

/// Whether the world showed the problem it is there to show.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Calibration {
    /// Every check held.
    pub ok: bool,
    /// What was compared, by name.
    #[serde(flatten)]
    pub checks: BTreeMap<String, Check>,
}

/// A measured figure and where it had to lie.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Check {
    /// What was measured.
    pub measured: f64,
    /// The least that is accepted.
    pub least: f64,
    /// The most that is accepted, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<f64>,
}

// === impl Check ===

impl Check {
    /// This figure and no other.
    pub fn exactly(measured: f64, figure: f64) -> Self {
        Self {
            measured,
            least: figure,
            most: Some(figure),
        }
    }

    /// Nothing of what is counted.
    pub fn none(measured: u64) -> Self {
        Self::exactly(measured as f64, 0.0)
    }

    /// From `least` on.
    pub fn at_least(measured: f64, least: f64) -> Self {
        Self {
            measured,
            least,
            most: None,
        }
    }

    /// From 0 to `most`.
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
    /// What was measured, such as `ttfb`.
    pub metric: String,
    /// Its unit, such as `s`.
    pub unit: String,
    /// How often.
    pub n: usize,
    /// The middle sample.
    pub median: f64,
    /// A tenth of the samples lie below.
    pub p10: f64,
    /// A tenth of the samples lie above.
    pub p90: f64,
    /// All samples, in the order they were taken.
    pub samples: Vec<f64>,
}

// === impl Environment ===

impl Environment {
    /// This machine, with nothing said of links, guests and programs yet.
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
    /// The verdict on a set of checks.
    pub fn of(checks: impl IntoIterator<Item = (&'static str, Check)>) -> Self {
        let checks: BTreeMap<_, _> = checks.into_iter().map(|(n, c)| (n.to_owned(), c)).collect();
        Self {
            ok: checks.values().all(Check::holds),
            checks,
        }
    }
}

// === impl Check ===

impl Check {
    /// Whether the figure lies where it has to.
    pub fn holds(&self) -> bool {
        self.measured >= self.least && self.most.is_none_or(|most| self.measured <= most)
    }
}

// === impl Series ===

impl Series {
    /// The series of these samples; `None` without any.
    pub fn of(name: &str, metric: &str, unit: &str, samples: Vec<f64>) -> Option<Self> {
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
