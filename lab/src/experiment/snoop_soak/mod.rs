//! `snoop-soak`: `taut snoop` between real kernels under every fault that can be injected.
//!
//! Streams of every size flow between a peer and a guest that waits for its CPU and has a small
//! ring, over a network that loses, duplicates and reorders frames. Meanwhile the process at the
//! guest's tap is killed, stopped and turned off.
//!
//! Each stream must arrive as it was sent. A checker that sees every frame on both sides of the
//! host must see no early ACK that the guest might not cover. The same run without the process is
//! the control.

mod chaos;
mod checker;
mod ends;
mod figures;
mod mangle;
mod memory;
mod offer;
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
use super::threads::joined;
use super::{Experiment, ExperimentError, Request};
use chaos::Chaos;
use figures::{Found, Part};
use plan::{Phase, Plan};
use pumps::Shared;
use rig::Rig;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "snoop-soak",
    about: "whether every byte arrives with taut snoop under loss, reordering, full rings, paused guests, kills and --off",
    has_parts: true,
    minutes: 5,
    run,
};

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let plan = Plan::of(request);
    if let (true, Some(only)) = (plan.phases.is_empty(), &request.only) {
        return Err(ExperimentError::NoPart(only.clone()));
    }
    let rig = Rig::build(&request.taut, request.seed)?;
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
    found.retreats = seen.retreats;
    let Rig { taps, world, .. } = rig;
    // An open TAP keeps its namespace alive.
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
    let (dropped, guest_dropped, lost_behind) =
        (rig.dropped()?, rig.guest_dropped()?, rig.lost_behind()?);
    let began = Instant::now();
    let chaos = Chaos::start(rig, *phase, &mut found.done)?;
    let (say, over) = channel();
    let (tell, ended) = channel();
    let memory = rig.memory.as_ref().filter(|_| phase.faults.exhausts);
    let shortages = std::thread::scope(|scope| {
        let wreaking = scope.spawn(move || chaos.wreak(&over));
        let exhausting =
            memory.map(|memory| scope.spawn(move || memory::exhaust(memory, phase, &ended)));
        let carried = transfer::run(rig, phase, &found.streams, progress);
        drop((say, tell));
        let shortages = exhausting.map_or(Ok(0), joined);
        joined(wreaking).and(carried)?;
        shortages.map_err(ExperimentError::machine("limit the guest's TCP memory"))
    })?;
    let (data_then, early_then) = counts(shared);
    if memory.is_some() {
        *found.shortages.get_or_insert_default() += shortages;
    }
    found.parts.push(Part {
        phase: *phase,
        data: data_then - data,
        early: early_then - early,
        dropped: rig.dropped()?.saturating_sub(dropped),
        guest_dropped: rig.guest_dropped()?.saturating_sub(guest_dropped),
        lost_behind: rig.lost_behind()?.saturating_sub(lost_behind),
        time: began.elapsed(),
    });
    Ok(())
}

/// Returns the numbers of data frames and of early ACKs so far.
fn counts(shared: &Shared) -> (u64, u64) {
    let checker = shared.checker();
    (checker.seen.data, checker.seen.early)
}
