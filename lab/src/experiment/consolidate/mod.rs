//! `consolidate`: transfers to a guest that shares its CPU core with other guests and with its
//! driver domain (vsnoop-paper V-C, figures 5 and 6).
//!
//! Each guest is a separate kernel (User Mode Linux) on a tap. A gate plays the hypervisor's
//! scheduler. See `docs/design/lab-worlds.md`.

mod costs;
mod figures;
mod measured;
mod network;
mod plan;
mod rig;

use taut_sys::steal::Steal;

use super::guests::cores::Cores;
use super::guests::uml;
use super::outcome::Outcome;
use super::progress::Progress;
use super::{Experiment, ExperimentError, Form, Request};
use crate::peer::program;
#[cfg(test)]
pub(crate) use figures::paper;
use measured::Measured;
use plan::{Part, Plan, Scenario};
use rig::Rig;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "consolidate",
    about: "transfers to a guest that shares a CPU core: untuned, tuned, and with taut snoop",
    has_parts: true,
    minutes: 15,
    run,
};

/// The number of failed transfers at which the run fails. With fewer failures, the run reports its
/// measurements and the failures.
const FAILURES_MAX: usize = 10;

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let programs = program::versions(&[uml::KERNEL])?;
    let failed = ExperimentError::machine;
    let cores = Cores::choose().map_err(failed("share a core among guests"))?;
    let plan = Plan::of(request);
    if let (true, Some(only)) = (plan.parts.is_empty(), &request.only) {
        return Err(ExperimentError::NoPart(only.clone()));
    }
    let began = Steal::read();
    let progress = Progress::new("consolidate: transfers", plan.steps());
    let mut measured = Measured::default();
    // Runs on its own thread: only the processes that this thread starts inherit its CPU affinity.
    let measure = || {
        cores
            .keep_off()
            .map_err(failed("keep off the shared core"))?;
        for part in &plan.parts {
            measure(request, part, cores, &mut measured, &progress)?;
        }
        Ok::<_, ExperimentError>(())
    };
    std::thread::scope(|scope| match scope.spawn(measure).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })?;
    drop(progress);
    // This takes longer than all else of the smallest form.
    if request.form != Form::Smoke {
        super::progress::say("consolidate: measuring the cost of a packet");
        let costs = costs::measure(request).map_err(failed("measure the cost of a packet"))?;
        measured.costs = costs;
    }
    measured.steal = began
        .zip(Steal::read())
        .and_then(|(began, ended)| ended.share_since(began));
    Ok(figures::outcome(&measured, programs, request))
}

fn measure(
    request: &Request,
    part: &Part,
    cores: Cores,
    measured: &mut Measured,
    progress: &Progress,
) -> Result<(), ExperimentError> {
    let failed = ExperimentError::machine;
    let sender = part.has(Scenario::is_sent_by_guest);
    let mut rig = Rig::build(request, part.machine, sender, cores)?;
    let share = rig.stopped_share();
    let share = share.map_err(failed("see what stopped guests take"))?;
    measured.stopped_share = measured.stopped_share.max(share);
    for block in &part.blocks {
        let label = block.configuration.label();
        let configured = rig.configure(block.configuration);
        configured.map_err(failed(&format!("set up `{label}`")))?;
        for (cell, often) in &block.transfers {
            if request.runs.is_none() && measured.is_decided(cell) {
                (0..*often).for_each(|_| progress.step());
                continue;
            }
            let action = format!(
                "transfer {} {} with `{label}`",
                cell.size_label(),
                cell.condition
            );
            let done = rig.transfers(cell, *often, |sample| {
                tracing::debug!(
                    "{label}, {} {}: {sample:?}",
                    cell.size_label(),
                    cell.condition
                );
                measured.add(cell, block.configuration, sample);
                progress.step();
            });
            if let Err(e) = done {
                tracing::error!("cannot {action}: {e}");
                measured.failures.push(format!("cannot {action}: {e}"));
                if measured.failures.len() > FAILURES_MAX {
                    return Err(failed(&action)(e));
                }
            }
        }
        let broken = rig.lost_after_early_ack();
        let broken = broken.map_err(failed("read the counters of taut snoop"))?;
        measured.lost_after_early_ack += broken;
        if broken > 0 {
            let (guests, load) = (part.machine.guests, part.machine.load);
            let note = format!(
                "{broken} segments were lost after an early ACK with `{label}` ({guests} guests, load of {load} %); counters of taut snoop: {:?}",
                rig.snoop_says()
            );
            tracing::error!("{note}");
            measured.broken.push(note);
        }
    }
    measured.end(rig.end()?);
    Ok(())
}
