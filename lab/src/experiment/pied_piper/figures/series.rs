//! The series. The report arranges figures by their names (docs/lab-report.md).

use std::time::Duration;

use super::super::download::{Condition, Size, Way};
use super::super::fairness::{self, share::Contest};
use super::super::ideal::Distance;
use super::{Found, Quantity};
use crate::experiment::outcome::Series;

/// The metrics of a download.
const METRICS: [(&str, Quantity); 2] = [("ttfb", |t| t.first_byte), ("total", |t| t.total)];
/// The width of a bin of the two flows' throughput over time, as in the paper's figures 14 and 15.
const BIN: Duration = Duration::from_secs(1);
/// The maximum number of bins. Two flows take about 40 seconds; later bytes are left out.
const MOST_BINS: u32 = 60;

pub(super) fn of(found: &Found) -> Vec<Series> {
    let mut all = Vec::new();
    for condition in Condition::ALL {
        for size in Size::ALL {
            for way in Way::ALL {
                for (metric, quantity) in METRICS {
                    let samples = found.measured.samples(condition, way, size, quantity);
                    let name = name(way, size, condition);
                    all.extend(Series::of(&name, metric, "s", samples));
                }
            }
        }
    }
    all.extend(distances(found));
    for way in fairness::WAYS {
        all.extend(shares(found, way));
    }
    all
}

pub(super) fn name(way: Way, size: Size, condition: Condition) -> String {
    format!("{}/{}{}", way.label(), size.label(), condition.suffix())
}

/// Returns the distance of each way and size from the ideal pipe. It uses the world without loss or
/// a limited window, because the ideal pipe has neither.
fn distances(found: &Found) -> Vec<Series> {
    type Figure = fn(Distance) -> f64;
    let figures: [(&str, &str, Figure); 2] = [
        ("over_ideal", "ms", |d| d.over_ms),
        ("times_ideal", "1", |d| d.times),
    ];
    let mut all = Vec::new();
    for (metric, unit, figure) in figures {
        for size in Size::ALL {
            for way in Way::ALL {
                let totals = found
                    .measured
                    .samples(Condition::Clean, way, size, |t| t.total);
                let samples = totals.into_iter().map(|t| figure(Distance::of(t, size)));
                let name = name(way, size, Condition::Clean);
                all.extend(Series::of(&name, metric, unit, samples.collect()));
            }
        }
    }
    all
}

/// A function that returns one flow's throughput in a number of bins of a given width.
type Rates = fn(&Contest, Duration, u32) -> Vec<f64>;

/// Returns the two flows' fairness, and their throughput second by second.
fn shares(found: &Found, way: Way) -> Vec<Series> {
    let Some(contests) = found.contests.get(&way) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    let group = format!("{}/two flows", way.label());
    all.extend(Series::of(&group, "jain", "1", found.jain(way)));
    all.extend(Series::of(
        &group,
        "long_flow_share",
        "1",
        found.long_share(way),
    ));
    let end = contests.iter().map(Contest::end).max().unwrap_or_default();
    // One more bin, without bytes, shows the end.
    let bins = (end.as_secs() as u32 + 2).min(MOST_BINS);
    for (flow, rates) in [
        ("flow from near", Contest::short_rates as Rates),
        ("flow from server", Contest::long_rates),
    ] {
        let rates: Vec<Vec<f64>> = contests.iter().map(|c| rates(c, BIN, bins)).collect();
        for bin in 0..bins as usize {
            let name = format!("{flow}/{bin} s/long flow {}", way.label());
            let samples = rates.iter().map(|rates| rates[bin]).collect();
            all.extend(Series::of(&name, "throughput", "Mbit/s", samples));
        }
    }
    all
}
