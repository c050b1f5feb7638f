//! `snoop-soak`: `taut snoop` between real kernels while everything happens that can happen.
//!
//! Streams of every size between a peer and a guest that waits for its CPU and has a small ring, over
//! a network that loses, doubles and reorders; meanwhile the process at the guest's tap is killed,
//! stopped and turned off. Each stream has to arrive as it was sent, and a checker that sees every
//! frame on both sides of the host has to see no promise that could be broken. The same without
//! the process is the control.

mod chaos;
mod checker;
mod figures;
mod mangle;
mod plan;
mod pumps;
mod rig;
mod segment;
mod transfer;

use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Instant;

use super::outcome::Outcome;
use super::progress::Progress;
use super::{Experiment, ExperimentError, Request};
use chaos::Chaos;
use figures::{Found, Part};
use plan::{Phase, Plan};
use pumps::Shared;
use rig::Rig;

/// For the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "snoop-soak",
    about: "taut snoop under loss, reordering, full rings, pauses of the guest, kills and --off: is every byte there",
    has_parts: false,
    run,
};

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let plan = Plan::of(request);
    let rig = Rig::build(&request.taut)?;
    let shared = Shared::default();
    let mut found = Found {
        planned: plan.phases.iter().map(|phase| phase.transfers).sum(),
        ..Found::default()
    };
    let seed = request.seed;
    let progress = Progress::new("snoop-soak", found.planned);
    let taps = &rig.taps;
    let carried = std::thread::scope(|scope| {
        let network = scope.spawn(|| pumps::network(&taps.peer, &taps.up, seed, &shared));
        let cpu = scope.spawn(|| pumps::cpu(&taps.ring, &taps.guest, seed, &shared));
        let mut done = Ok(());
        for phase in &plan.phases {
            done = run_phase(&rig, phase, &shared, &mut found, &progress);
            if done.is_err() || found.streams.has_failed() {
                break;
            }
        }
        shared.end();
        let network = joined(network);
        let cpu = joined(cpu);
        done?;
        cpu.and(network)
            .map_err(ExperimentError::machine("carry frames"))
    });
    drop(progress);
    found.mangled = carried?;
    found.pauses = shared.pauses.load(Ordering::Relaxed);
    found.refused = shared.refused.load(Ordering::Relaxed);
    let seen = shared.checker().seen.clone();
    found.violations = seen.violations;
    found.described = seen.described;
    let Rig { taps, world, .. } = rig;
    // A namespace lives for as long as a TAP of it is open.
    drop(taps);
    world
        .tear_down()
        .map_err(ExperimentError::machine("take the world down"))?;
    Ok(figures::outcome(&found, request))
}

fn run_phase(
    rig: &Rig,
    phase: &Phase,
    shared: &Shared,
    found: &mut Found,
    progress: &Progress,
) -> Result<(), ExperimentError> {
    rig.prepare(phase)?;
    shared.single.store(phase.single, Ordering::Relaxed);
    shared.checker().begin_phase(phase.options.beyond());
    let (data, early) = counts(shared);
    let dropped = rig.dropped()?;
    let began = Instant::now();
    let chaos = Chaos::start(rig, *phase, &mut found.done)?;
    let (say, over) = channel();
    std::thread::scope(|scope| {
        let wreaking = scope.spawn(move || chaos.wreak(&over));
        let carried = transfer::run(rig, phase, &found.streams, progress);
        drop(say);
        joined(wreaking).and(carried)
    })?;
    let (data_then, early_then) = counts(shared);
    found.parts.push(Part {
        options: phase.options,
        data: data_then - data,
        early: early_then - early,
        dropped: rig.dropped()?.saturating_sub(dropped),
        time: began.elapsed(),
    });
    Ok(())
}

/// Frames of data, and early acknowledgements, up to now.
fn counts(shared: &Shared) -> (u64, u64) {
    let checker = shared.checker();
    (checker.seen.data, checker.seen.early)
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|p| std::panic::resume_unwind(p))
}
