//! The figures: the choice beside the best route, and the estimator beside the measured gain.

use std::collections::BTreeMap;

use serde_json::{Map, json};

use super::measure::{Measured, Samples};
use super::option::{self, Mode, Route};
use super::sites::{self, Pair};
use crate::experiment::outcome::{Calibration, Check, Environment, Outcome, Series};
use crate::experiment::{Request, stats};
use crate::peer::curl::Times;

/// The least gain over end to end that shows the paper's problem: a path so long that relays matter.
const LEAST_GAIN: f64 = 2.0;

/// A pair's routes and which is the best.
struct Compared<'a> {
    pair: Pair,
    samples: &'a Samples,
    choice: &'a Route,
}

/// The paper's estimator for a third relay (4.4), and what the relay gained.
struct Point {
    estimated: f64,
    gained: f64,
}

pub(super) fn outcome(measured: &Measured, environment: Environment, request: &Request) -> Outcome {
    let pairs = compared(measured);
    let points: Vec<Point> = measured.times.iter().flat_map(points).collect();
    Outcome {
        environment,
        calibration: calibration(&pairs, measured),
        headline: headline(&pairs, &points, measured),
        series: series(measured, &points),
        paper: paper(),
        ideal: Map::new(),
        notes: notes(&pairs, measured),
        ..Outcome::new(super::EXPERIMENT.name, request)
    }
}

fn compared(measured: &Measured) -> Vec<Compared<'_>> {
    let turbo = measured
        .times
        .iter()
        .filter(|((_, mode), _)| *mode == Mode::Turbo);
    turbo
        .filter_map(|((pair, _), samples)| {
            Some(Compared {
                pair: *pair,
                samples,
                choice: &measured.predicted.get(pair)?.first()?.route,
            })
        })
        .collect()
}

/// Returns the points of figure 12b: the routes with a third relay, beside the baseline.
fn points<'a>(
    (&(pair, mode), samples): (&(Pair, Mode), &'a Samples),
) -> impl Iterator<Item = Point> + use<'a> {
    let two = median(samples, &option::baseline(pair), |t| t.total);
    let thirds = samples
        .keys()
        .filter(move |route| mode == Mode::Cubic && route.len() == 3);
    thirds.filter_map(move |route| {
        let rtt = |a: usize, b: usize| sites::cloud_rtt(route[a], route[b]).as_secs_f64();
        Some(Point {
            estimated: rtt(0, 2) / rtt(0, 1).max(rtt(1, 2)),
            gained: two? / median(samples, route, |t| t.total)?,
        })
    })
}

fn median(samples: &Samples, route: &Route, of: fn(&Times) -> f64) -> Option<f64> {
    let times: Vec<f64> = samples.get(route)?.iter().map(of).collect();
    stats::median(&times)
}

// === impl Compared ===

impl Compared<'_> {
    /// Returns the median of a quantity by a route, and infinity if it was not measured.
    fn time(&self, route: &Route, of: fn(&Times) -> f64) -> f64 {
        median(self.samples, route, of).unwrap_or(f64::INFINITY)
    }

    /// Returns the best of the measured routes with `accept`able relays.
    fn best(&self, of: fn(&Times) -> f64, accept: impl Fn(&Route) -> bool) -> Option<&Route> {
        let routes = self.samples.keys().filter(|route| accept(route));
        routes.min_by(|a, b| self.time(a, of).total_cmp(&self.time(b, of)))
    }

    /// Returns the choice's time over the best route's.
    fn choice_over_best(&self, of: fn(&Times) -> f64) -> f64 {
        let best = self.best(of, |_| true).map(|route| self.time(route, of));
        self.time(self.choice, of) / best.unwrap_or(f64::NAN)
    }

    /// Returns whether the direct path was the best.
    fn direct_is_best(&self) -> bool {
        self.best(whole, |_| true).is_some_and(Vec::is_empty)
    }

    /// Returns whether the best single relay is in neither end's city.
    fn best_single_is_elsewhere(&self) -> bool {
        let single = self.best(whole, |route| route.len() == 1);
        single.is_some_and(|route| ![self.pair.client, self.pair.server].contains(&route[0]))
    }
}

/// The figures by which routes are compared, as in the planner: the time to the first byte and the time to the last.
fn whole(times: &Times) -> f64 {
    times.first_byte + times.total
}

fn calibration(pairs: &[Compared<'_>], measured: &Measured) -> Calibration {
    let far: Vec<_> = pairs.iter().filter(|c| !c.pair.is_local()).collect();
    let elsewhere = far.iter().filter(|c| c.best_single_is_elsewhere()).count();
    let gains = far.iter().map(|c| {
        let best = c
            .best(|t| t.total, |_| true)
            .map(|route| c.time(route, |t| t.total));
        c.time(&Vec::new(), |t| t.total) / best.unwrap_or(f64::INFINITY)
    });
    let direct = pairs.iter().filter(|c| c.direct_is_best()).count();
    Calibration::of([
        // The paper's finding: the best single relay is next to neither end.
        (
            "pairs_with_best_single_relay_elsewhere",
            Check::at_least(elsewhere as f64, far.len() as f64 / 2.0),
        ),
        (
            "least_gain_of_distant_pairs",
            Check::at_least(gains.fold(f64::INFINITY, f64::min), LEAST_GAIN),
        ),
        (
            "pairs_with_direct_path_best",
            Check::at_least(direct as f64, 1.0),
        ),
    ])
    .and_machine([(
        "routes_with_too_many_late_downloads",
        Check::none(measured.too_few),
    )])
}

fn headline(
    pairs: &[Compared<'_>],
    points: &[Point],
    measured: &Measured,
) -> BTreeMap<String, f64> {
    let worst = |of: fn(&Times) -> f64| {
        pairs
            .iter()
            .map(|c| c.choice_over_best(of))
            .fold(0.0, f64::max)
    };
    let direct: Vec<_> = pairs.iter().filter(|c| c.direct_is_best()).collect();
    let chosen = direct.iter().filter(|c| c.choice.is_empty()).count();
    let (estimated, gained): (Vec<f64>, Vec<f64>) =
        points.iter().map(|p| (p.estimated, p.gained)).unzip();
    let (predicted, taken) = predictions(pairs, measured);
    let figures = [
        ("choice_over_best", Some(worst(whole))),
        ("choice_over_best_first_byte", Some(worst(|t| t.first_byte))),
        ("choice_over_best_1mb", Some(worst(|t| t.total))),
        (
            "estimator_correlation_three_relays",
            correlation(&estimated, &gained),
        ),
        ("prediction_correlation", correlation(&predicted, &taken)),
        (
            "direct_chosen_where_best",
            (!direct.is_empty()).then(|| chosen as f64 / direct.len() as f64),
        ),
        ("pairs", Some(pairs.len() as f64)),
        ("three_relay_routes", Some(points.len() as f64)),
        ("repeated_downloads", Some(measured.repeated as f64)),
        ("late_downloads", Some(measured.late as f64)),
    ];
    let known = figures
        .into_iter()
        .filter_map(|(key, figure)| Some((key.to_owned(), figure?)));
    known.collect()
}

/// Returns the predicted and the measured time of a download for every route that the planner showed.
fn predictions(pairs: &[Compared<'_>], measured: &Measured) -> (Vec<f64>, Vec<f64>) {
    let all = pairs.iter().flat_map(|compared| {
        let predicted = measured.predicted.get(&compared.pair).into_iter().flatten();
        predicted.filter_map(|p| Some((p.finish, median(compared.samples, &p.route, |t| t.total)?)))
    });
    all.unzip()
}

/// Returns Pearson's correlation coefficient; `None` if either does not vary.
fn correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        a.iter()
            .zip(b)
            .map(|(a, b)| of(a - mean_a, b - mean_b))
            .sum()
    };
    let deviations = (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt();
    (deviations > 0.0).then(|| sum(&|a, b| a * b) / deviations)
}

fn series(measured: &Measured, points: &[Point]) -> Vec<Series> {
    let mut series = Vec::new();
    for ((pair, mode), samples) in &measured.times {
        for (route, times) in samples {
            let name = format!("{}/{}/{}", option::label(route), pair.name(), mode.label());
            let of = |of: fn(&Times) -> f64| times.iter().map(of).collect();
            series.extend(Series::of(&name, "ttfb", "s", of(|t| t.first_byte)));
            series.extend(Series::of(&name, "total", "s", of(|t| t.total)));
        }
    }
    let of = |of: fn(&Point) -> f64| points.iter().map(of).collect();
    series.extend(Series::of(
        "third relay/estimated",
        "gain",
        "x",
        of(|p| p.estimated),
    ));
    series.extend(Series::of(
        "third relay/measured",
        "gain",
        "x",
        of(|p| p.gained),
    ));
    series
}

fn paper() -> Map<String, serde_json::Value> {
    let figures = json!({
        "figure 10, gains over e2e (Mumbai to San Francisco, Cubic)": {
            "best single relay": 6.64, "median single relay": 1.99, "best three relays": 8.64
        },
    });
    figures.as_object().cloned().unwrap_or_default()
}

fn notes(pairs: &[Compared<'_>], measured: &Measured) -> Vec<String> {
    let mut notes = vec![
        format!(
            "{} cities of IBM Cloud with the round trips of its documentation (28 September to 27 October \
             2024) between relays. The Internet's paths are assumed to be 1.2 times as long, and lose nothing.",
            measured.sites
        ),
        "The planner knows the round trips and rates of the links, and nothing of the downloads. Routes are compared \
         by the sum of the time to the first byte and to the last of 1 MB, as the planner does."
            .to_owned(),
        "Figure 12: 4 MB, Cubic between the relays. The gain is that of a third relay over the two next to \
         the ends."
            .to_owned(),
    ];
    for compared in pairs {
        let total = |route: &Route| compared.time(route, |t| t.total);
        let best = compared.best(whole, |_| true);
        let single = compared.best(whole, |route| route.len() == 1);
        let show = |route: Option<&Route>| match route {
            Some(route) => format!("{} {:.3} s", option::label(route), total(route)),
            None => "none".to_owned(),
        };
        notes.push(format!(
            "{}: e2e {:.3} s; best {}; best single {}; the planner's choice {} ({:.1} % over the best)",
            compared.pair.name(),
            total(&Vec::new()),
            show(best),
            show(single),
            show(Some(compared.choice)),
            (compared.choice_over_best(whole) - 1.0) * 100.0
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(first_byte: f64, total: f64) -> Vec<Times> {
        vec![Times {
            connect: 0.0,
            first_byte,
            total,
        }]
    }

    #[test]
    fn the_choice_is_compared_with_the_best_measured_route() {
        let samples: Samples = [
            (vec![], times(0.7, 2.8)),
            (vec![2, 5], times(0.3, 0.4)),
            (vec![0], times(0.5, 2.0)),
            (vec![5], times(0.6, 2.4)),
        ]
        .into();
        let pair = sites::PAIRS[0];
        let compared = |choice| Compared {
            pair,
            samples: &samples,
            choice,
        };
        let (good, bad) = (vec![2, 5], vec![0]);
        assert!((compared(&good).choice_over_best(whole) - 1.0).abs() < 1e-9);
        assert!((compared(&bad).choice_over_best(|t| t.total) - 5.0).abs() < 1e-9);
        assert!(compared(&good).best_single_is_elsewhere());
        assert!(!compared(&good).direct_is_best());
    }

    #[test]
    fn a_third_relay_is_estimated_by_its_slower_leg() {
        let pair = sites::PAIRS[0];
        let samples: Samples = [
            (vec![2, 5], times(0.3, 3.0)),
            (vec![2, 4, 5], times(0.3, 2.5)),
        ]
        .into();
        let points: Vec<Point> = points((&(pair, Mode::Cubic), &samples)).collect();
        assert_eq!(points.len(), 1);
        // London - Sydney 261 ms; London - Tokyo 242 ms, Tokyo - Sydney 115 ms.
        assert!((points[0].estimated - 261.0 / 242.0).abs() < 1e-9);
        assert!((points[0].gained - 1.2).abs() < 1e-9);
        assert_eq!(super::points((&(pair, Mode::Turbo), &samples)).count(), 0);
    }

    #[test]
    fn the_correlation_is_one_for_a_line_and_none_without_variation() {
        let close = |a: Option<f64>, b: f64| a.is_some_and(|a| (a - b).abs() < 1e-9);
        assert!(close(correlation(&[1.0, 2.0, 4.0], &[3.0, 5.0, 9.0]), 1.0));
        assert!(close(correlation(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), -1.0));
        assert_eq!(correlation(&[1.0, 1.0], &[3.0, 5.0]), None);
        assert_eq!(correlation(&[], &[]), None);
    }
}
