//! Computes series, ratios to the peers, and the calibration.

use std::collections::BTreeMap;

use super::contender::Contender::{
    self, Direct, Haproxy, HaproxySplice, Nginx, Taut, TautNoSandbox,
};
use super::plan::Plan;
use crate::experiment::outcome::{Calibration, Check, Environment, Outcome, Series};
use crate::experiment::workload::echo::{Beside, Echo};
use crate::experiment::workload::measured;
use crate::experiment::{Request, stats};

type Measured = measured::Measured<Contender>;
type Quantile = fn(&Echo) -> f64;

const P50: Quantile = |echo| echo.p50 * 1e6;
const P99: Quantile = |echo| echo.p99 * 1e6;

pub(super) fn outcome(
    measured: &Measured,
    environment: Environment,
    request: &Request,
    plan: &Plan,
) -> Outcome {
    Outcome {
        environment,
        calibration: calibration(measured),
        headline: headline(measured),
        series: series(measured),
        // No paper compares today's relays.
        notes: notes(measured, plan),
        ..Outcome::new(super::EXPERIMENT.name, request)
    }
}

fn series(m: &Measured) -> Vec<Series> {
    let mut all = Vec::new();
    let mut add = |what: &str, metric: &str, unit, samples: &dyn Fn(Contender) -> Vec<f64>| {
        for of in Contender::ALL {
            let name = format!("{}/{what}", of.label());
            all.extend(Series::of(&name, metric, unit, samples(of)));
        }
    };
    // A direct connection uses no relay's CPU time.
    let relays = |of, samples: Vec<f64>| if of == Direct { Vec::new() } else { samples };

    add("bulk", "throughput", "GB/s", &|of| {
        m.bulk(of, |b| b.gigabytes_per_second())
    });
    add("bulk", "cpu per GB", "s", &|of| {
        relays(of, m.bulk(of, |b| b.cpu_per_gigabyte()))
    });
    add("connections", "new connections", "1/s", &|of| {
        m.storm(of, |s| s.per_second())
    });
    add("connections", "cpu per connection", "us", &|of| {
        relays(of, m.storm(of, |s| s.microseconds_each()))
    });
    add("connections", "set-up p50", "us", &|of| {
        m.storm(of, |s| s.setup_p50 * 1e6)
    });
    add("connections", "set-up p99.9", "us", &|of| {
        m.storm(of, |s| s.setup_p999 * 1e6)
    });
    for (metric, quantile) in [("round trip p50", P50), ("round trip p99", P99)] {
        for (beside, what) in [
            (Beside::Nothing, "echo"),
            (Beside::Bulk, "echo/beside 1 Gbit/s"),
        ] {
            add(what, metric, "us", &|of| m.echo(beside, of, quantile));
        }
    }
    for (metric, quantile) in [("added p50", P50), ("added p99", P99)] {
        for (beside, what) in [
            (Beside::Nothing, "echo"),
            (Beside::Bulk, "echo/beside 1 Gbit/s"),
        ] {
            add(what, metric, "us", &|of| {
                relays(of, m.added(beside, of, Direct, quantile))
            });
        }
    }
    add("idle", "resident memory per session", "B", &|of| {
        relays(of, m.resident(of))
    });
    add("idle", "kernel memory per session", "B", &|of| {
        relays(of, slab(m, of))
    });
    all
}

/// Returns the slab memory of the relay's part of a session; empty if there are too few sessions to
/// be visible in the machine's slabs.
fn slab(m: &Measured, of: Contender) -> Vec<f64> {
    match of.holds_thousands() {
        true => m.slab(of, Direct),
        false => Vec::new(),
    }
}

/// Returns the ratio of Taut's median to a peer's.
fn ratio(taut: &[f64], peer: &[f64]) -> Option<f64> {
    Some(stats::median(taut)? / stats::median(peer)?)
}

fn headline(m: &Measured) -> BTreeMap<String, f64> {
    let throughput = |of| m.bulk(of, |b| b.gigabytes_per_second());
    let cpu = |of| m.bulk(of, |b| b.cpu_per_gigabyte());
    let by_middle = |a: &Vec<f64>, b: &Vec<f64>| f64::total_cmp(&middle(a), &middle(b));
    // HAProxy has two variants in bulk transfers; the better one counts.
    let fastest = [Haproxy, HaproxySplice, Nginx].map(throughput);
    let fastest = fastest.into_iter().max_by(by_middle).unwrap_or_default();
    let cheapest = [Haproxy, HaproxySplice].map(cpu);
    let cheapest = cheapest.into_iter().min_by(by_middle).unwrap_or_default();
    let over_haproxy =
        |samples: &dyn Fn(Contender) -> Vec<f64>| ratio(&samples(Taut), &samples(Haproxy));
    let over_no_sandbox =
        |samples: &dyn Fn(Contender) -> Vec<f64>| ratio(&samples(Taut), &samples(TautNoSandbox));
    // Compare whole round trips. The delay that two relays add can be less than the noise, and the
    // ratio of two such delays can be anything, even negative.
    let echo = |beside, quantile| over_haproxy(&|of| m.echo(beside, of, quantile));
    [
        (
            "bulk_throughput_over_best_of_haproxy_nginx",
            ratio(&throughput(Taut), &fastest),
        ),
        ("cpu_per_gb_over_haproxy", ratio(&cpu(Taut), &cheapest)),
        (
            "connections_over_haproxy",
            over_haproxy(&|of| m.storm(of, |s| s.per_second())),
        ),
        (
            "cpu_per_connection_over_haproxy",
            over_haproxy(&|of| m.storm(of, |s| s.microseconds_each())),
        ),
        (
            "setup_p999_over_haproxy",
            over_haproxy(&|of| m.storm(of, |s| s.setup_p999)),
        ),
        ("echo_p50_over_haproxy", echo(Beside::Nothing, P50)),
        ("echo_p99_over_haproxy", echo(Beside::Nothing, P99)),
        ("echo_p99_beside_bulk_over_haproxy", echo(Beside::Bulk, P99)),
        (
            "idle_memory_over_haproxy",
            over_haproxy(&|of| m.resident(of)),
        ),
        (
            "idle_kernel_memory_over_haproxy",
            over_haproxy(&|of| slab(m, of)),
        ),
        (
            "bulk_throughput_over_no_sandbox",
            over_no_sandbox(&throughput),
        ),
        ("cpu_per_gb_over_no_sandbox", over_no_sandbox(&cpu)),
        (
            "connections_over_no_sandbox",
            over_no_sandbox(&|of| m.storm(of, |s| s.per_second())),
        ),
        (
            "cpu_per_connection_over_no_sandbox",
            over_no_sandbox(&|of| m.storm(of, |s| s.microseconds_each())),
        ),
        (
            "echo_p50_over_no_sandbox",
            over_no_sandbox(&|of| m.echo(Beside::Nothing, of, P50)),
        ),
    ]
    .into_iter()
    .filter_map(|(key, figure)| Some((key.to_owned(), figure.filter(|f| f.is_finite())?)))
    .collect()
}

fn middle(samples: &[f64]) -> f64 {
    stats::median(samples).unwrap_or(f64::NAN)
}

fn calibration(m: &Measured) -> Calibration {
    let exact = m.exact.values().filter(|exact| **exact).count();
    let missing = |of| m.bulk(of, |b| b.sent.abs_diff(b.received) as f64);
    let missing: f64 = Contender::ALL.into_iter().flat_map(missing).sum();
    let failed = |of| m.storm(of, |s| s.failed as f64);
    let failed: f64 = Contender::ALL.into_iter().flat_map(failed).sum();

    // The two ends alone must be faster than the fastest relay, so that they do not limit it.
    let throughput = |of| middle(&m.bulk(of, |b| b.gigabytes_per_second()));
    let rate = |of| middle(&m.storm(of, |s| s.per_second()));
    let relays = || Contender::ALL.into_iter().filter(|of| *of != Direct);
    let fastest = |figure: &dyn Fn(Contender) -> f64| relays().map(figure).fold(0.0, f64::max);
    let faster =
        |figure: &dyn Fn(Contender) -> f64| Check::at_least(figure(Direct) / fastest(figure), 1.0);

    // Other work on the machine would spread the figures that the ratios are computed from.
    let spread = [Taut, Haproxy]
        .into_iter()
        .flat_map(|of| {
            [
                m.bulk(of, |b| b.cpu_per_gigabyte()),
                m.storm(of, |s| s.microseconds_each()),
            ]
        })
        .map(|samples| spread(&samples))
        .fold(0.0, f64::max);
    Calibration::of([
        (
            "contenders_that_relayed_exactly",
            Check::exactly(exact as f64, Contender::ALL.len() as f64),
        ),
        ("bulk_bytes_missing", Check::exactly(missing, 0.0)),
        ("connections_failed", Check::exactly(failed, 0.0)),
        ("direct_bulk_over_fastest_relay", faster(&throughput)),
        ("direct_connections_over_fastest_relay", faster(&rate)),
        ("cpu_spread_taut_haproxy", Check::at_most(spread, 0.5)),
    ])
}

/// Returns the range from the 10th to the 90th percentile divided by the median.
fn spread(samples: &[f64]) -> f64 {
    let quantile = |p| stats::quantile(samples, p).unwrap_or(f64::NAN);
    (quantile(0.9) - quantile(0.1)) / quantile(0.5)
}

fn notes(m: &Measured, plan: &Plan) -> Vec<String> {
    let thousands = plan.idle_sessions(Taut);
    let few = plan.idle_sessions(Contender::Ssh);
    let mut notes = vec![
        "Everything runs on one host over its loopback and shares its CPUs: throughput and new \
         connections per second depend on the number of CPUs, processor time much less. Processor \
         time is the user and system time of the relay's processes, children included; the kernel \
         charges its work for a segment on loopback to the sender."
            .to_owned(),
        "The bulk flow is written 256 KiB at a time and dropped by the receiver without a copy \
         (MSG_TRUNC); contents were compared (SHA-256) in a transfer of their own of 16 MiB."
            .to_owned(),
        "New connections: 64 at once, one byte each way, closed by the client. The world keeps no \
         TIME_WAIT (net.ipv4.tcp_max_tw_buckets=0), so that ports do not run out."
            .to_owned(),
        "Echo: one byte each millisecond, in turn on 8 connections. The added delay is the quantile \
         minus the median of the direct connection; the ratios are of whole round trips. The bulk \
         flow beside goes through the same relay, 125 kB each millisecond."
            .to_owned(),
        format!(
            "Idle: {thousands} sessions, {few} for socat and ssh, on a relay that has just started. \
             Resident memory is Pss. Kernel memory is the growth of the machine's slabs minus that \
             for as many direct connections; it is not reported for socat and ssh, whose {few} \
             sessions are too few to be visible."
        ),
        "HAProxy has `option splice-auto`, which may decide not to splice; haproxy-splice always \
         splices, with pipes of 256 KiB like taut's, and is measured in bulk only. Ratios in bulk \
         are to the better of the two. nginx and socat have their own buffer sizes and copy."
            .to_owned(),
        "ssh also encrypts, and all its sessions share one connection; socat starts a process for \
         each session."
            .to_owned(),
    ];
    let direct = m.echo(Beside::Nothing, Direct, P99);
    let quantile = |p| stats::quantile(&direct, p).unwrap_or(f64::NAN);
    let noise = quantile(0.9) - quantile(0.1);
    if noise > middle(&m.added(Beside::Nothing, Taut, Direct, P99)) {
        notes.push(format!(
            "The direct connection's own p99 varied by {noise:.0} us from round to round, more than a \
             relay adds: the machine was busy, and the p99 of this run does not tell relays apart."
        ));
    }
    notes
}
