//! Computes series, ratios to the peers, and the calibration.

use std::collections::BTreeMap;

use super::contender::Contender::{
    self, Direct, Haproxy, HaproxyLarge, Nginx, Stunnel, Taut, TautNoPool,
};
use super::plan::Plan;
use super::wiretap::Tapped;
use crate::experiment::outcome::{Calibration, Check, Environment, Outcome, Series};
use crate::experiment::workload::echo::{Beside, Echo};
use crate::experiment::workload::idle::Idle;
use crate::experiment::workload::measured::Measured;
use crate::experiment::{Request, stats};

type Quantile = fn(&Echo) -> f64;

const P50: Quantile = |echo| echo.p50 * 1e6;
const P99: Quantile = |echo| echo.p99 * 1e6;

/// All observations.
#[derive(Default)]
pub(super) struct Found {
    pub(super) measured: Measured<Contender>,
    /// What could be read on the leg of each pair.
    pub(super) tapped: BTreeMap<Contender, Tapped>,
    /// The memory of an idle connection in Taut's pool, at both of its ends.
    pub(super) pooled: Vec<Idle>,
    /// The number of complete rounds.
    pub(super) rounds: usize,
}

/// The ratios of Taut's figures to those of a peer in the same rounds.
struct Ratio {
    /// The name in the headline, without the peer.
    key: &'static str,
    peer: Contender,
    samples: Vec<f64>,
}

pub(super) fn outcome(
    found: &Found,
    environment: Environment,
    request: &Request,
    plan: &Plan,
) -> Outcome {
    Outcome {
        environment,
        calibration: calibration(found),
        headline: headline(found),
        series: series(found),
        // No paper compares today's relays.
        notes: notes(found, plan),
        ..Outcome::new(super::EXPERIMENT.name, request)
    }
}

// === impl Found ===

impl Found {
    fn throughput(&self, of: Contender) -> Vec<f64> {
        self.measured.bulk(of, |b| b.gigabytes_per_second())
    }

    fn cpu(&self, of: Contender) -> Vec<f64> {
        self.measured.bulk(of, |b| b.cpu_per_gigabyte())
    }

    fn rate(&self, of: Contender) -> Vec<f64> {
        self.measured.storm(of, |s| s.per_second())
    }

    fn cpu_each(&self, of: Contender) -> Vec<f64> {
        self.measured.storm(of, |s| s.microseconds_each())
    }

    /// Returns the ratios that decide whether there are enough rounds: those to HAProxy that do not
    /// depend on single late bytes.
    pub(super) fn ratios(&self) -> Vec<Vec<f64>> {
        let all = self.all_ratios().into_iter();
        let decisive = |ratio: &Ratio| {
            ratio.peer == Haproxy && ["flow", "cpu_per_gb", "connections"].contains(&ratio.key)
        };
        all.filter(decisive).map(|ratio| ratio.samples).collect()
    }

    fn all_ratios(&self) -> Vec<Ratio> {
        // HAProxy has two variants in bulk transfers; the better one counts.
        let both = [Haproxy, HaproxyLarge];
        let by = |figure: fn(&Self, Contender) -> Vec<f64>| {
            move |a: &Contender, b: &Contender| {
                f64::total_cmp(&middle(&figure(self, *a)), &middle(&figure(self, *b)))
            }
        };
        let fastest = both.into_iter().max_by(by(Self::throughput));
        let cheapest = both.into_iter().min_by(by(Self::cpu));
        let echo = |beside, quantile| move |of| self.measured.echo(beside, of, quantile);
        let mut all = Vec::new();
        for peer in [Haproxy, Nginx, Stunnel] {
            let variant = |of: Option<Contender>| match peer {
                Haproxy => of.unwrap_or(peer),
                _ => peer,
            };
            let mut add = |key, taut: Vec<f64>, peers: Vec<f64>| {
                let samples = taut.iter().zip(&peers).map(|(a, b)| a / b).collect();
                all.push(Ratio { key, peer, samples });
            };
            let (fast, cheap) = (variant(fastest), variant(cheapest));
            add("flow", self.throughput(Taut), self.throughput(fast));
            add("cpu_per_gb", self.cpu(Taut), self.cpu(cheap));
            add("connections", self.rate(Taut), self.rate(peer));
            let without = "connections_without_pool";
            add(without, self.rate(TautNoPool), self.rate(peer));
            let cpu_each = "cpu_per_connection";
            add(cpu_each, self.cpu_each(Taut), self.cpu_each(peer));
            // Whole round trips: the delay that relays add can be less than the noise.
            for (key, figure) in [
                ("echo_p50", echo(Beside::Nothing, P50)),
                ("echo_p99", echo(Beside::Nothing, P99)),
                ("echo_p99_beside_bulk", echo(Beside::Bulk, P99)),
            ] {
                add(key, figure(Taut), figure(peer));
            }
            let idle = |of| self.measured.resident(of);
            add("idle_memory", idle(Taut), idle(peer));
        }
        all
    }
}

// === impl Ratio ===

impl Ratio {
    fn key(&self) -> String {
        let peer = self.peer.label().replace('-', "_");
        format!("{}_over_{peer}", self.key)
    }
}

fn series(found: &Found) -> Vec<Series> {
    let m = &found.measured;
    let mut all = Vec::new();
    let mut add = |what: &str, metric: &str, unit, samples: &dyn Fn(Contender) -> Vec<f64>| {
        for of in Contender::ALL {
            let name = format!("{}/{what}", of.label());
            all.extend(Series::of(&name, metric, unit, samples(of)));
        }
    };
    // A direct connection uses no relay's CPU time.
    let relays = |of, samples: Vec<f64>| if of == Direct { Vec::new() } else { samples };

    add("flow", "throughput", "GB/s", &|of| found.throughput(of));
    add("flow", "cpu per GB", "s", &|of| relays(of, found.cpu(of)));
    add("connections", "new connections", "1/s", &|of| {
        found.rate(of)
    });
    add("connections", "cpu per connection", "us", &|of| {
        relays(of, found.cpu_each(of))
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
    add("idle session", "resident memory", "B", &|of| {
        relays(of, m.resident(of))
    });
    add("idle session", "kernel memory", "B", &|of| {
        relays(of, m.slab(of, Direct))
    });
    let pooled = |of: fn(&Idle) -> f64| found.pooled.iter().map(of).collect();
    for (metric, samples) in [
        ("resident memory", pooled(|idle| idle.resident)),
        ("kernel memory", pooled(|idle| idle.slab)),
    ] {
        all.extend(Series::of("taut/pooled connection", metric, "B", samples));
    }
    for ratio in found.all_ratios() {
        let name = format!("over {}/{}", ratio.peer.label(), ratio.key);
        all.extend(Series::of(&name, "paired ratio", "ratio", ratio.samples));
    }
    all
}

fn headline(found: &Found) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    let mut add = |key: String, figure: Option<f64>| {
        if let Some(figure) = figure.filter(|figure| figure.is_finite()) {
            all.insert(key, figure);
        }
    };
    for ratio in found.all_ratios() {
        let key = ratio.key();
        add(key.clone(), stats::median(&ratio.samples));
        let interval = stats::ratio_interval(&ratio.samples, &[1.0]);
        if ratio.peer == Haproxy && ratio.samples.len() > 1 {
            add(format!("{key}_low"), interval.map(|(low, _)| low));
            add(format!("{key}_high"), interval.map(|(_, high)| high));
        }
    }
    let pooled: Vec<f64> = found.pooled.iter().map(|idle| idle.resident).collect();
    add("pooled_connection_bytes".to_owned(), stats::median(&pooled));
    all
}

fn middle(samples: &[f64]) -> f64 {
    stats::median(samples).unwrap_or(f64::NAN)
}

fn calibration(found: &Found) -> Calibration {
    let m = &found.measured;
    let exact = m.exact.values().filter(|exact| **exact).count();
    let missing = |of| m.bulk(of, |b| b.sent.abs_diff(b.received) as f64);
    let missing: f64 = Contender::ALL.into_iter().flat_map(missing).sum();
    let failed = |of| m.storm(of, |s| s.failed as f64);
    let failed: f64 = Contender::ALL.into_iter().flat_map(failed).sum();
    let count = |holds: fn(&Tapped) -> bool| found.tapped.values().filter(|t| holds(t)).count();
    let legs = Contender::ALL.len() - 1;

    // The two ends alone must be faster than the fastest pair, so that they do not limit it.
    let relays = || Contender::ALL.into_iter().filter(|of| *of != Direct);
    let fastest = |figure: &dyn Fn(Contender) -> f64| relays().map(figure).fold(0.0, f64::max);
    let faster =
        |figure: &dyn Fn(Contender) -> f64| Check::at_least(figure(Direct) / fastest(figure), 1.0);
    Calibration::of([
        (
            "contenders_that_relayed_exactly",
            Check::exactly(exact as f64, Contender::ALL.len() as f64),
        ),
        ("bulk_bytes_missing", Check::exactly(missing, 0.0)),
        ("connections_failed", Check::exactly(failed, 0.0)),
        (
            "legs_tapped",
            Check::exactly(count(|t| t.frames > 0) as f64, legs as f64),
        ),
        (
            "legs_with_readable_bytes",
            Check::none(count(|t| t.readable > 0) as u64),
        ),
        (
            "direct_flow_over_fastest_pair",
            faster(&|of| middle(&found.throughput(of))),
        ),
        (
            "direct_connections_over_fastest_pair",
            faster(&|of| middle(&found.rate(of))),
        ),
    ])
}

fn notes(found: &Found, plan: &Plan) -> Vec<String> {
    let readable = |(of, tapped): (&Contender, &Tapped)| {
        let why = "what the client sent could be read between the two relays";
        (tapped.readable > 0).then(|| format!("{}: {why}", of.label()))
    };
    let mut notes: Vec<String> = found.tapped.iter().filter_map(readable).collect();
    notes.extend([
        "Everything runs on one host over its loopback and shares its CPUs. Processor time is the \
         user and system time of both relays of a pair; the kernel charges its work for a segment \
         on loopback to the sender."
            .to_owned(),
        format!(
            "Ratios are medians over {} rounds of Taut's figure to the peer's in the same round; \
             `_low` and `_high` are the ends of their 90 % interval. The full form ends when those \
             of `flow`, `cpu_per_gb` and `connections` to HAProxy are at most 10 % wide, or after \
             {} rounds.",
            found.rounds, plan.most
        ),
        "TLS 1.3 with certificates at both ends everywhere: P-256 and AES-128-GCM for the peers; \
         Taut has raw Ed25519 keys, and its suite is the one that its two relays negotiate."
            .to_owned(),
        "HAProxy keeps no connections ready in TCP mode. HAProxy, nginx and stunnel make a \
         connection and resume a session of TLS for each session. haproxy-tls-large has buffers of \
         64 KiB, and is measured in bulk only; ratios in bulk are to the better of the two."
            .to_owned(),
        "Taut's legs are without turbo start, which is for long paths.".to_owned(),
        format!(
            "Idle: {} sessions through relays that have just started. Resident memory is Pss, of \
             both relays. The memory of a pooled connection is the difference of two pools, of {} \
             and {} connections.",
            plan.sessions,
            super::SMALL_POOL,
            plan.pooled
        ),
        "Left out: ghostunnel, which Debian does not package, and WireGuard, which is a kernel \
         module and not a relay (it would have to be measured in a guest, whose times are not \
         comparable)."
            .to_owned(),
    ]);
    notes
}
