//! `snoop-hazards`: guests that lose bytes which `taut snoop` has acknowledged for them.
//!
//! A guest that forwards does not acknowledge: the receiver behind it does, and a segment lost
//! between guest and receiver is still needed. A guest whose application lowers SO_RCVBUF drops
//! data inside the window that it had advertised. Every transfer must complete despite this.

mod cell;
mod figures;
mod forwarding;
mod plan;
mod pump;
mod rcvbuf;
mod rig;
mod transfer;

use super::outcome::Outcome;
use super::progress::Progress;
use super::{Experiment, ExperimentError, Request};
use figures::Found;
use plan::Plan;
use pump::Cpu;
use rig::Rig;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "snoop-hazards",
    about: "whether every transfer completes with taut snoop and guests that forward or lower SO_RCVBUF",
    has_parts: true,
    minutes: 5,
    run,
};

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let plan = Plan::of(request);
    if let (true, Some(only)) = (plan.cells.is_empty(), &request.only) {
        return Err(ExperimentError::NoPart(only.clone()));
    }
    let rig = Rig::build(request)?;
    let cpu = Cpu::default();
    let progress = Progress::new("snoop-hazards: transfers", plan.transfers());
    let mut found = Found::default();
    std::thread::scope(|scope| {
        let carrying = scope.spawn(|| cpu.carry(&rig.taps));
        let mut done = Ok(());
        for cell in &plan.cells {
            cpu.pause(cell.paused);
            done = cell::run(&rig, cell, &progress).map(|part| found.parts.push(part));
            if done.is_err() {
                break;
            }
        }
        cpu.end();
        let carried = carrying
            .join()
            .unwrap_or_else(|p| std::panic::resume_unwind(p));
        done?;
        carried.map_err(ExperimentError::machine("carry frames"))
    })?;
    drop(progress);
    let Rig { taps, world, .. } = rig;
    // An open TAP keeps its namespace alive.
    drop(taps);
    world
        .tear_down()
        .map_err(ExperimentError::machine("take the world down"))?;
    Ok(figures::outcome(&found, &plan, request))
}
