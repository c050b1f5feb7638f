//! Computes series, gains and the calibration from measurements.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::measured::Measured;
use super::plan::{Arm, Browsing, Pattern, Plan, size_label};
use super::web::BrowsingResult;
use super::{EXPERIMENT, uml};
use crate::experiment::guests::configuration::{GUEST_RCVBUF, RING};
use crate::experiment::outcome::{Calibration, Check, Environment, Outcome, Series};
use crate::experiment::{Request, stats};

/// One figure of a run of browsers.
type Figure = fn(&BrowsingResult) -> f64;

/// The figures of browsers: name, unit, and value.
const METRICS: [(&str, &str, Figure); 3] = [
    ("web_requests", "requests/s", BrowsingResult::requests_s),
    ("web_latency_p50", "s", |seen| seen.p50_us / 1e6),
    ("web_latency_p90", "s", |seen| seen.p90_us / 1e6),
];

pub(super) fn outcome(
    measured: &Measured,
    plan: &Plan,
    programs: BTreeMap<String, String>,
    request: &Request,
) -> Outcome {
    let kernel = programs.get(uml::KERNEL.name).cloned().unwrap_or_default();
    let link = "1 Gbit/s, 0.1 ms round trip";
    let host = format!("{link}, through a driver domain in slices of 10 ms");
    Outcome {
        environment: Environment {
            links: BTreeMap::from([
                ("client-switch".to_owned(), link.to_owned()),
                ("switch-host-a".to_owned(), host.clone()),
                ("switch-host-b".to_owned(), host),
            ]),
            guests: vec![format!(
                "User Mode Linux {kernel}, {} GiB, slices of 30 ms, two on each of two hosts",
                uml::MEMORY_GIB
            )],
            programs,
            ..Environment::here()
        },
        calibration: calibration(measured, plan),
        headline: headline(measured, plan),
        series: series(measured, plan),
        paper: paper(),
        notes: notes(measured, plan),
        ..Outcome::new(EXPERIMENT.name, request)
    }
}

fn series(measured: &Measured, plan: &Plan) -> Vec<Series> {
    let mut all = Vec::new();
    for (metric, unit, figure) in METRICS {
        for arm in Arm::ALL {
            for browsing in &plan.web.browsing {
                let samples = measured.web(arm, *browsing, figure);
                all.extend(Series::of(&name(arm, *browsing), metric, unit, samples));
            }
        }
    }
    for pattern in Pattern::ALL {
        let metric = format!("mpi_{}", pattern.name());
        for arm in Arm::ALL {
            for bytes in &plan.mpi.sizes {
                let name = format!("{}/{}", arm.label(), size_label(*bytes));
                let times = measured.mpi(arm, pattern, *bytes).to_vec();
                all.extend(Series::of(&name, &metric, "s", times));
            }
        }
    }
    all
}

fn name(arm: Arm, browsing: Browsing) -> String {
    let plural = if browsing.browsers == 1 { "" } else { "s" };
    let name = format!("{}/{} browser{plural}", arm.label(), browsing.browsers);
    match browsing.connections.to_string() {
        default if default.is_empty() => name,
        connections => format!("{name}/{connections}"),
    }
}

fn headline(measured: &Measured, plan: &Plan) -> BTreeMap<String, f64> {
    let requests = |arm| measured.requests_s(arm, plan.web.headline);
    let web_gain = |arm| Some(requests(arm)? / requests(Arm::TUNED)?);
    let mpi_gain = |arm, pattern| measured.times_as_long(Arm::TUNED, arm, pattern);
    let (broadcast, alltoall) = (Pattern::Broadcast, Pattern::Alltoall);
    [
        ("web_requests_s_tuned", requests(Arm::TUNED)),
        ("web_requests_s_snoop", requests(Arm::SNOOP)),
        ("web_gain_snoop", web_gain(Arm::SNOOP)),
        ("web_gain_grow", web_gain(Arm::PAPERS)),
        ("mpi_bcast_gain", mpi_gain(Arm::SNOOP, broadcast)),
        ("mpi_bcast_gain_grow", mpi_gain(Arm::PAPERS, broadcast)),
        ("mpi_alltoall_gain", mpi_gain(Arm::SNOOP, alltoall)),
        ("mpi_alltoall_gain_grow", mpi_gain(Arm::PAPERS, alltoall)),
    ]
    .into_iter()
    .filter_map(|(key, figure)| Some((key.to_owned(), figure.filter(|f| f.is_finite())?)))
    .collect()
}

fn calibration(measured: &Measured, plan: &Plan) -> Calibration {
    let off: Vec<f64> = measured.off.iter().map(|off| off.abs()).collect();
    let slowed = |by: Option<f64>| Check::at_least(by.unwrap_or(f64::NAN), 1.5);
    let requests = |arm| measured.requests_s(arm, plan.web.headline);
    let slower = |pattern| measured.times_as_long(Arm::TUNED, Arm::NOT_SHARED, pattern);
    let web = requests(Arm::NOT_SHARED)
        .zip(requests(Arm::TUNED))
        .map(|(alone, shared)| alone / shared);
    let lost = measured
        .counters
        .iter()
        .map(|counters| counters.lost())
        .sum();
    Calibration::of([
        ("web_slowed_by_sharing", slowed(web)),
        (
            "mpi_broadcast_slowed_by_sharing",
            slowed(slower(Pattern::Broadcast)),
        ),
        (
            "mpi_alltoall_slowed_by_sharing",
            slowed(slower(Pattern::Alltoall)),
        ),
        ("pages_failed", Check::none(measured.errors())),
        (
            "slices_off_plan_p90_ms",
            Check::at_most(stats::quantile(&off, 0.9).unwrap_or(f64::NAN) * 1e3, 2.0),
        ),
        ("segments_dropped_by_guests", Check::none(lost)),
        (
            "lost_after_early_ack",
            Check::none(measured.lost_after_early_ack),
        ),
        (
            "stopped_guests_share_of_core",
            Check::at_most(measured.stopped_share, 0.02),
        ),
    ])
}

/// Returns the paper's figures: table II. Figure 8 has no numbers.
fn paper() -> Map<String, Value> {
    let mut paper = Map::new();
    paper.insert("web_requests_s_tuned".to_owned(), json!(29));
    paper.insert("web_requests_s_snoop".to_owned(), json!(37));
    paper.insert("web_gain_grow".to_owned(), json!(1.275));
    paper
}

fn notes(measured: &Measured, plan: &Plan) -> Vec<String> {
    let headline = plan.web.headline;
    let mut notes = vec![
        "Two hosts, each with a core, a gate and a driver domain of its own, and two guests that \
         run for 30 ms each, after 10 ms of the driver domain: 37.5 % of the core each. An idle \
         guest does not give its slice back. With two CPUs, the client and the links share the core \
         of host-b."
            .to_owned(),
        "Web: nginx and PHP in one guest, MariaDB in a guest on the other host; the other guest of \
         each host has a load of 30 %. A page is a category with all its items, 50 kB, for which \
         PHP opens a connection to the database (or keeps one: `connections kept`). Browsers \
         request the next page as soon as they have one (wrk)."
            .to_owned(),
        format!(
            "web_requests_s and web_gain are for {} browsers with new connections. web_gain_grow is \
             that of `{}`, the configuration of the paper's vSnoop; the paper's figures are for 180 \
             browsers and another application (RUBiS).",
            headline.browsers,
            Arm::PAPERS.label()
        ),
        "MPI: a process in each of the four guests, MPICH over TCP. A waiting process polls, so \
         each guest's neighbour is never idle. Times are those of the slowest process, from a \
         barrier on. The mpi gains are the ratios of `tuned`'s time to the other's: geometric means \
         over the message sizes."
            .to_owned(),
        format!(
            "Tuned: tap rings of {RING} entries, no queueing discipline, a default receive buffer \
             of 4 MiB and the largest initial window in all guests, also without shared cores. \
             --grow: --guest-rcvbuf {GUEST_RCVBUF}. `taut snoop` serves the taps of all four \
             guests."
        ),
    ];
    let late = |p| stats::quantile(&measured.late, p).unwrap_or(f64::NAN) * 1e3;
    let class = match measured.not_real_time {
        0 => "with SCHED_FIFO",
        _ => "WITHOUT SCHED_FIFO, which the kernel refused",
    };
    notes.push(format!(
        "Slices ended late by {:.3} ms (p50) and {:.3} ms (p99); the gates ran {class}.",
        late(0.5),
        late(0.99)
    ));
    notes.push(format!(
        "{} of {} deliveries of the links were more than 1 ms late.",
        measured.late_deliveries, measured.deliveries
    ));
    notes
}
