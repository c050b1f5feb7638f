//! From times to figures, beside the paper's and the ideal.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::measure::{self, Measured};
use super::{Condition, Size, Way, route};
use crate::experiment::outcome::{Calibration, Check, Environment, Outcome, Series};
use crate::experiment::{Request, stats};
use crate::peer::curl::Times;

type Quantity = fn(&Times) -> f64;

/// The metrics of a download, as series are called.
const METRICS: [(&str, Quantity); 2] = [("ttfb", |t| t.first_byte), ("total", |t| t.total)];

pub(super) fn outcome(measured: &Measured, environment: Environment, request: &Request) -> Outcome {
    Outcome {
        experiment: super::EXPERIMENT.name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seed: request.seed,
        quick: request.quick,
        environment,
        calibration: calibration(measured),
        headline: headline(measured),
        series: series(measured),
        paper: paper(),
        ideal: ideal(),
        notes: notes(measured),
    }
}

fn middle(m: &Measured, key: (Condition, Way, Size), quantity: Quantity) -> Option<f64> {
    let samples: Vec<f64> = m.times.get(&key)?.iter().map(quantity).collect();
    stats::median(&samples)
}

/// The path has the round trips that were asked for, and a download over it is slow.
fn calibration(m: &Measured) -> Calibration {
    let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
    // The handshake as curl sees it: the round trip, and what a process takes to look.
    let handshake = |way| {
        middle(m, (Condition::Clean, way, Size::Kb10), |t| t.connect).map_or(f64::NAN, |s| s * 1e3)
    };
    let within = |measured, rtt| Check {
        measured,
        least: rtt,
        most: Some(rtt + 5.0),
    };
    let slow = total(m, Condition::Clean, Way::EndToEnd, Size::Mb1);
    let slack = slow.map_or(f64::NAN, |s| s / ideal_total(Size::Mb1));
    let big = |condition| total(m, condition, Way::EndToEnd, Size::Mb10).unwrap_or(f64::NAN);
    let loss_cost = big(Condition::Lossy) / big(Condition::Clean);
    Calibration::of([
        (
            "e2e_handshake_ms",
            within(handshake(Way::EndToEnd), ms(route::rtt())),
        ),
        (
            "client_leg_handshake_ms",
            within(handshake(Way::Relay), ms(route::LEGS[0].rtt())),
        ),
        (
            "share_of_downloads_with_a_late_link",
            Check {
                measured: m.disturbed as f64 / m.downloads() as f64,
                least: 0.0,
                most: Some(0.5),
            },
        ),
        (
            "e2e_10mb_loss_over_clean",
            Check {
                measured: loss_cost,
                least: 1.2,
                most: None,
            },
        ),
        (
            "e2e_1mb_over_ideal",
            Check {
                measured: slack,
                least: 3.0,
                most: None,
            },
        ),
    ])
}

fn total(m: &Measured, condition: Condition, way: Way, size: Size) -> Option<f64> {
    middle(m, (condition, way, size), |t| t.total)
}

fn headline(m: &Measured) -> BTreeMap<String, f64> {
    let totals = |condition, way, size| -> Vec<f64> {
        m.times
            .get(&(condition, way, size))
            .into_iter()
            .flatten()
            .map(|t| t.total)
            .collect()
    };
    let speedup = |condition, way, size| {
        let (e2e, split) = (
            totals(condition, Way::EndToEnd, size),
            totals(condition, way, size),
        );
        Some(stats::median(&e2e)? / stats::median(&split)?)
    };
    let ttfb = middle(m, (Condition::Clean, Way::Relay, Size::Kb10), |t| {
        t.first_byte
    });
    // With loss a download's time spreads over an order of magnitude, and so the ratio is only as
    // good as the number of samples: its interval says how good.
    let spread = stats::ratio_interval(
        &totals(Condition::Lossy, Way::EndToEnd, Size::Mb10),
        &totals(Condition::Lossy, Way::Relay, Size::Mb10),
    );
    [
        ("ttfb_over_floor_ms", ttfb.map(|s| (s - floor()) * 1e3)),
        (
            "speedup_1mb",
            speedup(Condition::Clean, Way::Relay, Size::Mb1),
        ),
        (
            "speedup_10mb",
            speedup(Condition::Clean, Way::Relay, Size::Mb10),
        ),
        (
            "speedup_10mb_loss_0p1",
            speedup(Condition::Lossy, Way::Relay, Size::Mb10),
        ),
        (
            "speedup_10mb_loss_0p1_bbr",
            speedup(Condition::Lossy, Way::RelayBbr, Size::Mb10),
        ),
        ("speedup_10mb_loss_0p1_low", spread.map(|(low, _)| low)),
        ("speedup_10mb_loss_0p1_high", spread.map(|(_, high)| high)),
    ]
    .into_iter()
    .filter_map(|(key, figure)| Some((key.to_owned(), figure?)))
    .collect()
}

fn series(m: &Measured) -> Vec<Series> {
    let mut all = Vec::new();
    for condition in Condition::ALL {
        for size in Size::ALL {
            for way in Way::ALL {
                let Some(times) = m.times.get(&(condition, way, size)) else {
                    continue;
                };
                let name = format!("{}/{}{}", way.label(), size.label(), condition.suffix());
                for (metric, quantity) in METRICS {
                    let samples = times.iter().map(quantity).collect();
                    all.extend(Series::of(&name, metric, "s", samples));
                }
            }
        }
    }
    all
}

/// The least time to the first byte, in seconds: the client's handshake with the near relay and
/// one round trip of the whole route. (The paper's "ideal" has no handshake at all.)
fn floor() -> f64 {
    (route::LEGS[0].rtt() + route::rtt()).as_secs_f64()
}

/// The least time of a download, in seconds: the floor, and the file at the rate of the slowest link.
fn ideal_total(size: Size) -> f64 {
    let slowest = route::LEGS
        .iter()
        .map(|leg| leg.rate().0)
        .min()
        .unwrap_or(u64::MAX);
    floor() + size.bytes() as f64 * 8.0 / slowest as f64
}

/// To the microsecond: the rest is the arithmetic's.
fn micro(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

fn ideal() -> Map<String, Value> {
    let totals: Map<_, _> = Size::ALL
        .iter()
        .map(|s| (s.label().to_owned(), json!(micro(ideal_total(*s)))))
        .collect();
    Map::from_iter([
        ("ttfb_s".to_owned(), json!(micro(floor()))),
        ("total_s".to_owned(), Value::Object(totals)),
    ])
}

/// What section 3.3 says in words; its figures 7 and 8 are bars without numbers.
fn paper() -> Map<String, Value> {
    Map::from_iter([
        ("rtt_client_near_ms".to_owned(), json!(32.7)),
        ("rtt_near_far_ms".to_owned(), json!(215)),
        ("rtt_far_server_ms".to_owned(), json!(26)),
        ("early_syn_saves_ms".to_owned(), json!(60)),
        ("pool_saves_ms".to_owned(), json!(180)),
        ("speedup_pied_piper_over_e2e_at_most".to_owned(), json!(3)),
        ("speedup_64k_window_at_most".to_owned(), json!(7.91)),
    ])
}

fn notes(m: &Measured) -> Vec<String> {
    let mut notes = vec![
        "Times are curl's, from its start: ttfb is time_starttransfer, total is time_total. Every \
         download was compared with the server's file (SHA-256)."
            .to_owned(),
        "e2e is routed over the relays' hosts; the paper's went over the Internet. Congestion \
         control is Cubic, as in the paper, and buffers are the kernel's defaults; in relay-bbr alone \
         the near relay sends to the client by BBR."
            .to_owned(),
        "The relays connect onward only when a client has connected: no early SYN, connection pool \
         or turbo start. The paper's figures of Pied Piper have all of them; its OCD baseline is \
         `ssh` here."
            .to_owned(),
    ];
    let worlds: usize = measure::LANES.iter().map(|(_, lanes)| lanes).sum();
    notes.push(format!(
        "{worlds} worlds ran side by side on this machine. The ways' n-th downloads of a size met \
         the same losses. speedup_10mb_loss_0p1_low and _high: 90 % interval of that ratio of \
         medians (bootstrap)."
    ));
    if m.disturbed > 0 {
        notes.push(format!(
            "During {} of {} downloads a link delivered more than 1 in 1000 trains over 5 ms late; \
             they count.",
            m.disturbed,
            m.downloads()
        ));
    }
    notes
}
