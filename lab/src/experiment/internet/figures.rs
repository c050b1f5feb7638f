//! Computes the figures, beside the paper's and the ideal.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::download::{Size, Way};
use super::measure::Measured;
use super::path::{self, Path};
use crate::experiment::outcome::{Calibration, Check, Environment, Outcome, Series};
use crate::experiment::{Request, side_by_side, stats};
use crate::peer::curl::Times;

/// The path of the headline.
const MAIN: Path = Path::EuropeUsEast;

type Quantity = fn(&Times) -> f64;

/// A quantity's name, its unit, and its value of a download.
const METRICS: [(&str, Quantity); 2] = [("ttfb", |t| t.first_byte), ("total", |t| t.total)];

pub(super) fn outcome(measured: &Measured, environment: Environment, request: &Request) -> Outcome {
    Outcome {
        environment,
        calibration: calibration(measured),
        headline: headline(measured),
        series: series(measured),
        paper: paper(),
        ideal: ideal(),
        notes: notes(measured),
        ..Outcome::new(super::EXPERIMENT.name, request)
    }
}

// === impl Measured ===

impl Measured {
    fn samples(&self, path: Path, way: Way, size: Size, quantity: Quantity) -> Vec<f64> {
        let times = self.times.get(&(path, way, size));
        times.into_iter().flatten().map(quantity).collect()
    }

    /// Returns the median time of a whole download, in seconds.
    fn total(&self, path: Path, way: Way, size: Size) -> Option<f64> {
        stats::median(&self.samples(path, way, size, |t| t.total))
    }

    /// Returns how many times faster `way` is than `than`.
    fn speedup(&self, path: Path, way: Way, than: Way, size: Size) -> Option<f64> {
        Some(self.total(path, than, size)? / self.total(path, way, size)?)
    }
}

/// Checks that the paths have the configured round trips, and that a download over the Internet is
/// slow.
fn calibration(measured: &Measured) -> Calibration {
    let handshake = |way, rtt: std::time::Duration| {
        let rtt = rtt.as_secs_f64() * 1e3;
        let all = measured.samples(MAIN, way, Size::KB10, |t| t.connect);
        Check {
            measured: stats::median(&all).map_or(f64::NAN, |seconds| seconds * 1e3),
            least: rtt,
            most: Some(rtt + 5.0),
        }
    };
    let e2e = measured.total(MAIN, Way::EndToEnd, Size::MB4);
    let over_ideal = e2e.map_or(f64::NAN, |seconds| seconds / path::ideal(MAIN, Size::MB4.0));
    let late = measured.disturbed as f64 / measured.downloads() as f64;
    let problem = ("e2e_4mb_over_ideal", Check::at_least(over_ideal, 3.0));
    let handshake_by_taut = handshake(Way::Taut, MAIN.legs()[0]);
    let one_round_trip = Check {
        most: Some(2.0 * handshake_by_taut.least),
        ..handshake_by_taut
    };
    let product = ("client_leg_handshake_is_one_round_trip", one_round_trip);
    let checks = Calibration::of([problem, product]).and_machine([
        ("e2e_handshake_ms", handshake(Way::EndToEnd, MAIN.rtt())),
        ("client_leg_handshake_ms", handshake_by_taut),
        (
            "share_of_downloads_with_a_late_link",
            Check::at_most(late, 0.5),
        ),
    ]);
    checks.without_taut(&["e2e_4mb_over_ideal"])
}

/// Returns the figures that were measured: the short form leaves some out.
fn headline(measured: &Measured) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    let mut add = |key: String, figure: Option<f64>| {
        if let Some(figure) = figure {
            all.insert(key, figure);
        }
    };
    for size in Size::ALL {
        let name = size.file();
        let speedup = |way, than| measured.speedup(MAIN, way, than, size);
        add(format!("speedup_{name}"), speedup(Way::Taut, Way::EndToEnd));
        add(
            format!("speedup_{name}_over_e2e_bbr"),
            speedup(Way::Taut, Way::EndToEndBbr),
        );
        add(
            format!("speedup_{name}_over_e2e_turbo"),
            speedup(Way::Taut, Way::EndToEndTurbo),
        );
        add(
            format!("speedup_{name}_over_baseline"),
            speedup(Way::Taut, Way::Ssh),
        );
        add(
            format!("baseline_speedup_{name}"),
            speedup(Way::Ssh, Way::EndToEnd),
        );
        add(
            format!("bbr_speedup_{name}"),
            speedup(Way::EndToEndBbr, Way::EndToEnd),
        );
        for way in [Way::EndToEnd, Way::EndToEndBbr, Way::Ssh, Way::Taut] {
            let label = way.label().replace('-', "_");
            let times = measured
                .total(MAIN, way, size)
                .map(|seconds| seconds / path::ideal(MAIN, size.0));
            add(format!("times_ideal_{name}_{label}"), times);
        }
    }
    let totals = |way| measured.samples(MAIN, way, Size::MB4, |t| t.total);
    let interval = stats::ratio_interval(&totals(Way::EndToEnd), &totals(Way::Taut));
    add("speedup_4mb_low".into(), interval.map(|(low, _)| low));
    add("speedup_4mb_high".into(), interval.map(|(_, high)| high));
    // Figure 11: the relays' congestion control, on the leg between them.
    let over_cubic = |way| measured.speedup(MAIN, way, Way::Cubic, Size::MB4);
    add("relays_turbo_over_cubic_4mb".into(), over_cubic(Way::Taut));
    add("relays_bbr_over_cubic_4mb".into(), over_cubic(Way::Bbr));
    add(
        "relays_turbo_cubic_over_cubic_4mb".into(),
        over_cubic(Way::TurboCubic),
    );
    for path in Path::ALL.into_iter().filter(|path| *path != MAIN) {
        let key = path.key();
        for size in [Size::MB4, Size::MB100] {
            let name = size.file();
            let speedup = |than| measured.speedup(path, Way::Taut, than, size);
            add(format!("speedup_{name}_{key}"), speedup(Way::EndToEnd));
            add(
                format!("speedup_{name}_over_e2e_bbr_{key}"),
                speedup(Way::EndToEndBbr),
            );
        }
    }
    all
}

fn series(measured: &Measured) -> Vec<Series> {
    let mut all = Vec::new();
    for (metric, quantity) in METRICS {
        for path in Path::ALL {
            for size in Size::ALL {
                for way in Way::ALL {
                    let name = format!("{}/{}/{}", way.label(), size.label(), path.label());
                    let samples = measured.samples(path, way, size, quantity);
                    all.extend(Series::of(&name, metric, "s", samples));
                }
            }
        }
    }
    for path in Path::ALL {
        for size in Size::ALL {
            for way in Way::ALL {
                let name = format!("{}/{}/{}", way.label(), size.label(), path.label());
                let totals = measured.samples(path, way, size, |t| t.total);
                let ideal = path::ideal(path, size.0);
                let times = totals.into_iter().map(|seconds| seconds / ideal).collect();
                all.extend(Series::of(&name, "times_ideal", "1", times));
            }
        }
    }
    all
}

fn ideal() -> Map<String, Value> {
    let of_path = |path: Path| {
        let sizes = Size::ALL.into_iter().map(|size| {
            let seconds = path::ideal(path, size.0);
            (size.label(), json!((seconds * 1e6).round() / 1e6))
        });
        (path.label().to_owned(), Value::Object(sizes.collect()))
    };
    Map::from_iter([(
        "total_s".to_owned(),
        Value::Object(Path::ALL.into_iter().map(of_path).collect()),
    )])
}

/// Returns the numbers in the text and captions of pied-piper 1, 2.3 and 4.2. The figures there are
/// bars.
pub(crate) fn paper() -> Map<String, Value> {
    [
        ("speedup_4mb", json!("5 (OCD Baseline, section 1)")),
        (
            "speedup_10mb",
            json!("at least 10 (OCD Baseline, section 2.3)"),
        ),
        (
            "speedup_100mb",
            json!("at least 12 (section 2.3), up to 33 (figure 3); OCD Baseline"),
        ),
        ("baseline_speedup_4mb", json!(5)),
        ("baseline_speedup_10mb", json!("at least 10")),
        ("baseline_speedup_100mb", json!("12 to 33")),
        (
            "baseline_speedup_10kb",
            json!("may hurt the smallest file (figure 3)"),
        ),
        ("bbr_speedup_100mb", json!("at most 1.26 (section 2.3)")),
        (
            "relays_turbo_cubic_over_cubic_4mb",
            json!("\u{201c}remarkably higher efficiency\u{201d}; 11.4 over e2e (figure 11)"),
        ),
        (
            "relays_bbr_over_cubic_4mb",
            json!("\u{201c}BBR did not achieve better performance than default TCP\u{201d} (4.2)"),
        ),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

fn notes(measured: &Measured) -> Vec<String> {
    let mut notes = vec![
        "Times are curl's, from its start: ttfb is time_starttransfer, total is time_total. The bytes of \
         every download were compared with the server's (SHA-256)."
            .to_owned(),
        "e2e is one connection over the Internet's path, with Cubic and the kernel's default buffers; \
         e2e-turbo has a first window and buffers for the whole path, e2e-bbr has BBR. The others go over \
         two relays: ssh is the paper's OCD Baseline; mesh-cubic, mesh-bbr and mesh-turbo-cubic are taut \
         relay with that congestion control between the relays (figure 11), and taut is taut relay as it \
         comes. The legs to the client and to the server have Cubic in all of them."
            .to_owned(),
        format!(
            "The Internet's path has the round trip of the route over the relays and loses 0.5 % of the \
             segments in each direction, 0.1 % where the name says so. Each of the other links loses 0.01 %. \
             Losses are random and independent. The client's line has {}. The sources are in \
             docs/lab-relay.md.",
            path::LINE
        ),
        "Random loss does not slow BBR down, so e2e-bbr gains far more here than the 1.26 of the paper: what \
         limited the paper's paths was not random loss alone."
            .to_owned(),
        format!(
            "{} The ways' n-th downloads of a size have the same seed of losses. \
             speedup_4mb_low and _high: 90 % interval of that ratio of medians (bootstrap).",
            side_by_side::note(measured.worlds, measured.repeated)
        ),
    ];
    if measured.disturbed > 0 {
        notes.push(format!(
            "During {} of {} downloads a link delivered more than 1 in 1000 trains over 5 ms late; these \
             downloads count.",
            measured.disturbed,
            measured.downloads()
        ));
    }
    notes
}
