//! `incast`: blocks read over many connections at once from a guest whose processor is taken away
//! in slices (pvtcp, tables I to V).

mod stage;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::guests::hog::Share;
use super::guests::qemu::{self, Kernel};
use super::outcome::{Calibration, Check, Environment, Outcome, Series};
use super::progress::Progress;
use super::retry::{LeftOut, Retry};
use super::rounds::Rounds;
use super::{Experiment, ExperimentError, Request, stats};
use crate::peer::program;
use stage::{QUEUE, RATE, ReadRun, SHARE, Stage, Tcp};

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "incast",
    about: "blocks read over 1 to 20 connections at once from a guest that waits for its CPU, with and without taut_pvtcp",
    has_parts: true,
    minutes: 13,
    run,
};

/// The guest's kernel.
const KERNEL: &str = "6.12";
const CONNECTIONS: [usize; 6] = [1, 4, 8, 12, 16, 20];
const CONNECTIONS_QUICK: [usize; 2] = [1, 20];
/// Block sizes in KiB, as in the paper.
const BLOCKS: [u32; 4] = [128, 256, 512, 1024];
const BLOCKS_QUICK: [u32; 1] = [256];
/// The numbers of connections with blocks of other sizes than that of the headline figures, which
/// are read with the paper's settings. The others are measured only if `--only` selects them.
const ENDS: [usize; 2] = [1, 20];
/// How long blocks are read.
const TIME: Duration = Duration::from_secs(4);
const TIME_QUICK: Duration = Duration::from_secs(3);
const TIME_SMOKE: Duration = Duration::from_millis(300);
/// The block size of the headline figures.
const BLOCK: u32 = 256;

/// A figure's name, its unit, and the function that computes it.
type Column = (&'static str, &'static str, fn(&ReadRun) -> f64);

/// The key of a figure: block size in KiB, number of connections, and TCP settings.
type Key = (u32, usize, Tcp);

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let failed = ExperimentError::machine;
    let kernel = Kernel::find(KERNEL).map_err(failed("find the guest's kernel"))?;
    let programs = program::versions(&[qemu::EMULATOR])?;
    let rounds = Rounds::of(request);
    let (connections, blocks, time, ways) = request.form.pick(
        (&CONNECTIONS[..], &BLOCKS[..], TIME, &Tcp::ALL[..]),
        (
            &CONNECTIONS_QUICK[..],
            &BLOCKS_QUICK[..],
            TIME_QUICK,
            &Tcp::ALL[..3],
        ),
        (
            &CONNECTIONS_QUICK[..1],
            &BLOCKS_QUICK[..],
            TIME_SMOKE,
            &[Tcp::LONG, Tcp::PVTCP][..],
        ),
    );
    let takes = |key: Key| match &request.only {
        Some(only) => name(key).contains(only),
        None => key.0 == BLOCK || ENDS.contains(&key.1) && Tcp::ALL[..3].contains(&key.2),
    };
    let keys: Vec<Key> = blocks
        .iter()
        .flat_map(|block| {
            connections
                .iter()
                .map(move |connections| (*block, *connections))
        })
        .flat_map(|(block, connections)| ways.iter().map(move |tcp| (block, connections, *tcp)))
        .filter(|key| takes(*key))
        .collect();
    if let (true, Some(only)) = (keys.is_empty(), &request.only) {
        return Err(ExperimentError::NoPart(only.clone()));
    }
    let progress = Progress::new("incast: reads", (rounds.most * keys.len()) as u64);
    let mut all: BTreeMap<Key, Vec<ReadRun>> = BTreeMap::new();
    let mut undisturbed = Vec::new();
    let mut stage = Stage::boot(&kernel, request)?;
    let mut again = Retry::new(request.form.is_short(), rounds.most * keys.len());
    for _ in 0..rounds.most {
        // For comparison, measure a guest that has its core to itself.
        stage.be(Tcp::LONG)?;
        undisturbed.push(stage.read(1, BLOCK << 10, None, time)?);
        for key in &keys {
            let (block, connections, tcp) = *key;
            let seen = all.entry(*key).or_default();
            if !rounds.need_more(&goodputs_on_time(seen)) {
                progress.step();
                continue;
            }
            stage.be(tcp)?;
            let reading = || stage.read(connections, block << 10, Some(SHARE), time);
            seen.push(again.measure(reading, |seen| seen.overrun)?);
            progress.step();
        }
    }
    drop((progress, stage));
    let mut left_out = LeftOut::default();
    for (key, seen) in &mut all {
        left_out.take(name(*key), seen, rounds.enough(), |seen| seen.overrun);
    }
    let mut environment = Environment::here();
    environment.programs = programs;
    let release = kernel.release().map_err(failed("read the kernel's name"))?;
    environment.guests = vec![format!(
        "Linux {release} under QEMU (TCG), one processor, with taut_pvtcp"
    )];
    environment.links.insert(
        "path".to_owned(),
        format!(
            "{} Mbit/s x 0.5 ms, a queue of {} KiB",
            RATE / 1_000_000,
            QUEUE >> 10
        ),
    );
    Ok(outcome(
        request,
        environment,
        &all,
        &undisturbed,
        left_out.note("readings", again.count),
    ))
}

/// Returns the goodputs of readings during which the link was not late.
fn goodputs_on_time(seen: &[ReadRun]) -> Vec<f64> {
    let on_time = seen.iter().filter(|seen| !seen.overrun);
    on_time.map(|seen| seen.goodput).collect()
}

fn name((block, connections, tcp): Key) -> String {
    format!("{block} kB/{connections} senders/{}", tcp.name())
}

fn outcome(
    request: &Request,
    environment: Environment,
    all: &BTreeMap<Key, Vec<ReadRun>>,
    undisturbed: &[ReadRun],
    late_note: Option<String>,
) -> Outcome {
    let median = |key: Key, of: fn(&ReadRun) -> f64| {
        let seen = all.get(&key).map(Vec::as_slice).unwrap_or_default();
        let figures: Vec<f64> = seen.iter().map(of).collect();
        stats::median(&figures).unwrap_or(f64::NAN)
    };
    // Divides by the number of rounds, because a faster configuration transfers more blocks in the
    // same time.
    let sum = |key: Key, of: fn(&ReadRun) -> f64| {
        let seen = all.get(&key).map(Vec::as_slice).unwrap_or_default();
        let rounds: u64 = seen.iter().map(|seen| seen.rounds).sum();
        seen.iter().map(of).sum::<f64>() / rounds as f64
    };
    let timeouts: fn(&ReadRun) -> f64 = |seen| seen.counted.timeouts as f64;
    let goodput: fn(&ReadRun) -> f64 = |seen| seen.goodput;
    let one = |tcp| (BLOCK, 1, tcp);
    let many = |tcp| (BLOCK, 20, tcp);
    let mut series = Vec::new();
    for (key, seen) in all {
        let columns: [Column; 8] = [
            ("goodput", "Mbit/s", |seen| seen.goodput),
            ("rounds", "", |seen| seen.rounds as f64),
            ("time-outs", "", |seen| seen.counted.timeouts as f64),
            ("spurious time-outs", "", |seen| {
                seen.counted.spurious as f64
            }),
            ("reductions undone", "", |seen| seen.counted.undone as f64),
            ("segments sent again", "", |seen| {
                seen.counted.repeated as f64
            }),
            ("duplicates at the receiver", "", |seen| {
                seen.counted.duplicates as f64
            }),
            ("duplicate acknowledgements", "", |seen| {
                seen.duplicate_acks as f64
            }),
        ];
        for (metric, unit, of) in columns {
            series.extend(Series::of(
                &name(*key),
                metric,
                unit,
                seen.iter().map(of).collect(),
            ));
        }
    }
    series.extend(Series::of(
        "undisturbed",
        "goodput",
        "Mbit/s",
        undisturbed.iter().map(goodput).collect(),
    ));
    let seen = || all.values().flatten();
    let late: u64 = seen().map(|seen| seen.taken.late).sum();
    let slices: u64 = seen().map(|seen| seen.taken.slices).sum();
    let overruns = seen().filter(|seen| seen.overrun).count();
    let machine = [
        ("link_overruns", Check::none(overruns as u64)),
        (
            "late_slices",
            Check::at_most(late as f64 / slices.max(1) as f64, 0.01),
        ),
    ];
    let mut checks = Vec::new();
    let plain = median(one(Tcp::SHORT), timeouts);
    if !plain.is_nan() {
        // Checks that the problem exists: a descheduled sender times out.
        checks.push(("timeouts_1_sender", Check::at_least(plain, 10.0)));
    }
    let headline = [
        (
            "timeouts_cut_1_sender",
            1.0 - sum(one(Tcp::PVTCP), timeouts) / sum(one(Tcp::SHORT), timeouts),
        ),
        (
            "goodput_over_rto200_1_sender",
            median(one(Tcp::PVTCP), goodput) / median(one(Tcp::LONG), goodput),
        ),
        (
            "goodput_over_small_rto_20_senders",
            median(many(Tcp::PVTCP), goodput) / median(many(Tcp::SHORT), goodput),
        ),
    ];
    let share: Share = SHARE;
    Outcome {
        environment,
        calibration: Calibration::of(checks).and_machine(machine),
        headline: headline
            .into_iter()
            .filter(|(_, figure)| !figure.is_nan())
            .map(|(name, figure)| (name.to_owned(), figure))
            .collect(),
        series,
        paper: paper(),
        notes: [
            format!(
                "The paper's senders are guests on twenty hosts, and its switch has ports of 1 \
                 Gbit/s. Here all senders are connections of one guest, which is alternately \
                 descheduled for {} ms and scheduled for {} ms, and the path is slower than that \
                 guest.",
                share.off.as_millis(),
                share.on.as_millis()
            ),
            "`short`: the route's rto_min is 1 ms, which this kernel, with ticks of 4 ms, rounds up \
             to 8 ms. Without `probes`, tail loss probes are off (tcp_early_retrans = 0), as in the \
             paper's kernel."
                .to_owned(),
            "`timeouts_cut_1_sender` compares time-outs per round of blocks.".to_owned(),
        ]
        .into_iter()
        .chain(late_note)
        .collect(),
        ..Outcome::new(EXPERIMENT.name, request)
    }
}

/// The paper's figures.
pub(crate) fn paper() -> Map<String, Value> {
    json!({
        "timeouts_tcp_1ms_1_sender_1024_kb": 698, "timeouts_pvtcp_1ms_1_sender_1024_kb": 2,
        "goodput_gain_20_senders": {"1024_kb": 0.036, "512_kb": 0.058, "256_kb": 0.079, "128_kb": 0.094},
    })
    .as_object()
    .cloned()
    .unwrap_or_default()
}
