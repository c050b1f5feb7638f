//! Computes the figures, beside the paper's and the ideal.

mod calibration;
mod headline;
mod notes;
#[cfg(test)]
pub(crate) use notes::paper;
mod series;

use super::download::{Condition, Size, Way};
use super::fairness::{self, Contests};
use super::measure::Measured;
use crate::experiment::outcome::{Environment, Outcome};
use crate::experiment::{Request, stats};
use crate::peer::curl::Times;

/// All measurements.
pub(super) struct Found {
    pub(super) measured: Measured,
    pub(super) contests: Contests,
    /// The file that each flow of a contest downloaded.
    pub(super) flow: Size,
}

type Quantity = fn(&Times) -> f64;

pub(super) fn outcome(found: &Found, environment: Environment, request: &Request) -> Outcome {
    Outcome {
        environment,
        calibration: calibration::of(found),
        headline: headline::of(found),
        series: series::of(found),
        paper: notes::paper(),
        ideal: notes::ideal(),
        notes: notes::notes(found),
        ..Outcome::new(super::EXPERIMENT.name, request)
    }
}

// === impl Found ===

impl Found {
    fn median(
        &self,
        condition: Condition,
        way: Way,
        size: Size,
        quantity: Quantity,
    ) -> Option<f64> {
        stats::median(&self.measured.samples(condition, way, size, quantity))
    }

    /// Returns the median time of a whole download, in seconds.
    fn total(&self, condition: Condition, way: Way, size: Size) -> Option<f64> {
        self.median(condition, way, size, |t| t.total)
    }

    /// Returns the median time to the first byte without loss, in seconds. It uses the smallest
    /// file, because the size does not affect this time.
    fn first_byte(&self, way: Way) -> Option<f64> {
        self.median(Condition::Clean, way, Size::Kb10, |t| t.first_byte)
    }

    /// Returns Jain's index of each contest whose long flow went this way.
    fn jain(&self, way: Way) -> Vec<f64> {
        self.of_contests(way, fairness::share::Contest::jain)
    }

    /// Returns the long flow's share in each of the same contests.
    fn long_share(&self, way: Way) -> Vec<f64> {
        self.of_contests(way, fairness::share::Contest::long_share)
    }

    fn of_contests(&self, way: Way, figure: fn(&fairness::share::Contest) -> f64) -> Vec<f64> {
        self.contests
            .get(&way)
            .into_iter()
            .flatten()
            .map(figure)
            .collect()
    }
}
