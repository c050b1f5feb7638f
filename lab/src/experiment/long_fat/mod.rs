//! `long-fat`: one connection over 1 Gbit/s and up to 200 ms: its throughput, and its throughput
//! after `taut tune --apply` has started (thesis 6.2).

mod stage;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::outcome::{Calibration, Check, Environment, Outcome, Series};
use super::progress::Progress;
use super::retry::{LeftOut, Retry};
use super::rounds::Rounds;
use super::{Experiment, ExperimentError, Form, Request, stats};
use crate::peer::program;
use stage::{Fixed, Settings, Stage, TransferRun};

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "long-fat",
    about: "one connection over 1 Gbit/s x 1 to 200 ms, with and without buffers fixed at 64 kB, before and after `taut tune`",
    has_parts: false,
    minutes: 13,
    run,
};

/// The link's rate, in bit/s.
const RATE: u64 = 1_000_000_000;
/// The round trip of the headline figures for applications with fixed buffers.
const LONG: Duration = Duration::from_millis(100);
/// Round trips of the paths.
const ROUND_TRIPS: [u64; 4] = [1, 20, 100, 200];
/// The size at which applications fix their buffers, in bytes.
const FIXED: u64 = 65_536;
/// The windows of the thesis' figure 6.2, and larger ones, in bytes.
const WINDOWS: [u64; 6] = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 8 << 20];

/// A cell: round-trip time in milliseconds, how buffers are set, and the end whose buffer is fixed.
type Key = (u64, Settings, Fixed);

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let rounds = Rounds::of(request);
    let round_trips: &[u64] = if request.form.is_short() {
        &[100]
    } else {
        &ROUND_TRIPS
    };
    let windows: &[u64] = request.form.pick(&WINDOWS[..], &WINDOWS[1..2], &[]);
    let programs = program::versions(&[program::SOCAT])?;
    let fixed_of = |millis, settings| -> Vec<Fixed> {
        let of = Fixed::ALL.into_iter();
        of.filter(|fixed| match request.form {
            Form::Full => is_in_full(millis, settings),
            Form::Quick => is_in_short(settings, *fixed),
            Form::Smoke => (settings, *fixed) == (Settings::Taut, Fixed::Receiver),
        })
        .collect()
    };
    let planned = |millis| {
        let cells = Settings::ALL.map(|settings| fixed_of(millis, settings).len());
        rounds.most * cells.iter().sum::<usize>() + windows.len()
    };
    let steps: usize = round_trips.iter().map(|millis| planned(*millis)).sum();
    let progress = Progress::new("long-fat: transfers", steps as u64);
    let mut all: BTreeMap<Key, Vec<TransferRun>> = BTreeMap::new();
    let mut by_window: BTreeMap<(u64, u64), TransferRun> = BTreeMap::new();
    let mut repeated = 0;
    for &millis in round_trips {
        let mut again = Retry::new(request.form.is_short(), planned(millis));
        for settings in Settings::ALL {
            let some = fixed_of(millis, settings);
            if some.is_empty() {
                continue;
            }
            let stage = Stage::build(Duration::from_millis(millis), RATE, settings, request)?;
            for _ in 0..rounds.most {
                for &fixed in &some {
                    progress.step();
                    let seen = all.entry((millis, settings, fixed)).or_default();
                    if !need_more(rounds, seen) {
                        continue;
                    }
                    let transfer = || stage.transfer(fixed, FIXED);
                    seen.push(again.measure(transfer, |seen| seen.overrun)?);
                }
            }
            if settings == Settings::Kernel {
                for &window in windows {
                    // Once: a fixed window in each round trip leaves little to chance.
                    progress.step();
                    let transfer = || stage.transfer(Fixed::ReceiverFromStart, window);
                    let seen = again.measure(transfer, |seen| seen.overrun)?;
                    by_window.insert((millis, window), seen);
                }
            }
        }
        repeated += again.count;
    }
    drop(progress);
    let mut left_out = LeftOut::default();
    for (key, seen) in &mut all {
        left_out.take(name(*key), seen, rounds.enough(), |seen| seen.overrun);
    }
    let mut environment = Environment::here();
    environment.programs = programs;
    for millis in round_trips {
        let link = "1 Gbit/s, a queue of as much as the path holds and 256 KiB at least";
        environment
            .links
            .insert(format!("{millis} ms"), link.to_owned());
    }
    Ok(outcome(
        request,
        environment,
        &all,
        &by_window,
        left_out.note("transfers", repeated),
    ))
}

fn name((millis, settings, fixed): Key) -> String {
    format!("{}/{millis} ms/{}", settings.name(), fixed.name())
}

/// Returns whether a cell is measured again: transfers during which the link was late do not count.
fn need_more(rounds: Rounds, seen: &[TransferRun]) -> bool {
    let on_time = || seen.iter().filter(|seen| !seen.overrun);
    let before: Vec<f64> = on_time().map(|seen| seen.before).collect();
    let after: Vec<f64> = on_time().filter_map(|seen| seen.after).collect();
    rounds.need_more(&before) || rounds.need_more(&after)
}

/// Returns whether the short form measures a configuration.
fn is_in_short(settings: Settings, fixed: Fixed) -> bool {
    match settings {
        Settings::Kernel => fixed == Fixed::Nobody,
        Settings::Tuned => false,
        Settings::Taut => matches!(fixed, Fixed::Receiver | Fixed::Sender),
        Settings::TautNarrow => fixed == Fixed::Receiver,
    }
}

/// Returns whether the full form measures settings on a path. Settings that `taut` is only compared
/// with are measured on the path of the headline figures.
fn is_in_full(millis: u64, settings: Settings) -> bool {
    matches!(settings, Settings::Kernel | Settings::Taut) || u128::from(millis) == LONG.as_millis()
}

fn outcome(
    request: &Request,
    environment: Environment,
    all: &BTreeMap<Key, Vec<TransferRun>>,
    by_window: &BTreeMap<(u64, u64), TransferRun>,
    late_note: Option<String>,
) -> Outcome {
    let millis = LONG.as_millis() as u64;
    let before: fn(&TransferRun) -> Option<f64> = |seen| Some(seen.before);
    let after: fn(&TransferRun) -> Option<f64> = |seen| seen.after;
    let median = |settings, fixed, of| {
        let seen = all.get(&(millis, settings, fixed));
        let rates: Vec<f64> = seen.into_iter().flatten().filter_map(of).collect();
        stats::median(&rates).unwrap_or(f64::NAN)
    };
    // The payload share of the link's bits on one connection; the rest is headers.
    let payload = RATE as f64 / 1e6 * 1448.0 / 1514.0;
    let share = |fixed| median(Settings::Taut, fixed, after) / payload;
    let narrow = median(Settings::TautNarrow, Fixed::Receiver, after) / payload;
    let fixed_before = median(Settings::Taut, Fixed::Receiver, before);
    let free = median(Settings::Kernel, Fixed::Nobody, after) / payload;
    let mut series = Vec::new();
    // The lateness that a link may have depends on its path, so each path has a count.
    let mut overruns: BTreeMap<u64, u64> = BTreeMap::new();
    for (key, seen) in all {
        let name = name(*key);
        let windows = seen.first().map(|seen| seen.windows.clone());
        for (metric, unit, samples) in [
            ("before", "Mbit/s", seen.iter().filter_map(before).collect()),
            ("after", "Mbit/s", seen.iter().filter_map(after).collect()),
            ("window, each 250 ms", "kB", windows.unwrap_or_default()),
        ] {
            series.extend(Series::of(&name, metric, unit, samples));
        }
        *overruns.entry(key.0).or_default() +=
            seen.iter().filter(|seen| seen.overrun).count() as u64;
    }
    for ((millis, window), seen) in by_window {
        let name = format!("window/{millis} ms/{} KiB", window >> 10);
        let rate = vec![seen.before];
        series.extend(Series::of(&name, "throughput", "Mbit/s", rate));
        *overruns.entry(*millis).or_default() += u64::from(seen.overrun);
    }
    for (millis, overruns) in &overruns {
        let name = format!("path/{millis} ms");
        series.extend(Series::of(
            &name,
            "transfers with a late link",
            "",
            vec![*overruns as f64],
        ));
    }
    Outcome {
        environment,
        calibration: Calibration::of([
            // Checks that the problem exists: about 64 kB in each 100 ms.
            ("locked_rcvbuf_before_mbit", Check { measured: fixed_before, least: 3.0, most: Some(12.0) }),
        ])
        .and_machine([("link_overruns", Check::none(overruns.get(&millis).copied().unwrap_or(0)))]),
        headline: BTreeMap::from([
            ("locked_rcvbuf_before_mbit".to_owned(), fixed_before),
            ("locked_rcvbuf_after_share".to_owned(), share(Fixed::Receiver)),
            ("locked_sndbuf_after_share".to_owned(), share(Fixed::Sender)),
            ("kernel_alone_share".to_owned(), free),
            ("locked_rcvbuf_after_share_narrow".to_owned(), narrow),
        ]),
        series,
        paper: paper(),
        ideal: json!({"locked_rcvbuf_after_share": 1.0, "locked_sndbuf_after_share": 1.0})
            .as_object()
            .cloned()
            .unwrap_or_default(),
        notes: vec![
            "`before` is the third and fourth second of a connection; `after` is the fifth second \
             after `taut tune --apply` started at both ends (`taut`), or the same time without a \
             change (`kernel`) and with the settings of tuned's profile network-throughput \
             (`tuned`). Shares are of the payload that the link can carry."
                .to_owned(),
            "Buffers are fixed after connecting (socat's rcvbuf-late and sndbuf-late), except in \
             `window`, where the receiver fixes its buffer before, which also fixes the scale of \
             its window."
                .to_owned(),
            "`kernel` and `taut` have the maxima of Linux 6.16 and later (32 MiB to receive, 4 MiB \
             to send); `taut, 6 MiB at first` has the earlier ones: they fix the window scale at 7 \
             when a connection starts, so that no window can exceed 8,388,480 bytes, or 671 Mbit/s \
             at 100 ms, whatever changes later."
                .to_owned(),
            "A share can be above 1: `after` is one second, and if losses are repaired in it, it also \
             counts the segments that arrived earlier, behind the lost ones."
                .to_owned(),
            "`link_overruns` is that of the path of 100 ms, to which all headline figures belong; \
             the others' are in `path`: a gigabit in user space, with both ends beside it on two \
             cores, is sometimes late by a millisecond, which matters if a round trip is as short."
                .to_owned(),
            "The thesis measured on gigabit Ethernet without added delay, and kernels of 2008.".to_owned(),
        ]
        .into_iter()
        .chain(late_note)
        .collect(),
        ..Outcome::new(EXPERIMENT.name, request)
    }
}

/// The thesis's figures.
pub(crate) fn paper() -> Map<String, Value> {
    json!({
        "throughput_mbit_s_window_16_kb": 132, "throughput_mbit_s_window_2_mb": 438,
        "throughput_mbit_s_before": 150, "throughput_mbit_s_after": 580, "window_untuned_bytes": 2896,
    })
    .as_object()
    .cloned()
    .unwrap_or_default()
}
