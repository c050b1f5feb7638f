//! `applications`: what early acknowledgement gains for programs in guests, a web server with its
//! database and a parallel program (vsnoop-paper V-D, table II and figure 8).
//!
//! The guests and gates are those of [`super::consolidate`]. See `docs/design/lab-worlds.md`.

mod figures;
mod measured;
mod mpi;
mod network;
mod plan;
mod rig;
mod web;

use super::guests::cores::Cores;
use super::guests::uml;
use super::outcome::Outcome;
use super::progress::Progress;
use super::{Experiment, ExperimentError, Form, Request};
use crate::peer::program;
use measured::Measured;
use mpi::Collectives;
use plan::Plan;
use rig::Rig;
use web::Auction;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "applications",
    about: "a web server with its database and an MPI program, in guests that share a CPU core",
    has_parts: false,
    minutes: 8,
    run,
};

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    // The parallel program takes longer than the web server, and its guests never rest: the smallest form
    // leaves it out.
    let has_mpi = request.form != Form::Smoke;
    let mut programs = vec![
        uml::KERNEL,
        program::NGINX,
        web::PHP,
        web::MARIADB,
        web::WRK,
    ];
    programs.extend(has_mpi.then_some(mpi::MPIEXEC));
    let programs = program::versions(&programs)?;
    let failed = ExperimentError::machine;
    let cores = Cores::choose().map_err(failed("share cores among guests"))?;
    let plan = Plan::of(request);
    let progress = Progress::new("applications: runs", plan.steps());
    let mut measured = Measured::default();
    // Runs on its own thread: only the processes that this thread starts inherit its CPU affinity.
    let measure = || {
        cores
            .keep_off()
            .map_err(failed("keep off the shared core"))?;
        web(request, &plan, cores, &mut measured, &progress)?;
        if has_mpi {
            mpi(request, &plan, cores, &mut measured, &progress)?;
        }
        Ok::<_, ExperimentError>(())
    };
    std::thread::scope(|scope| match scope.spawn(measure).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })?;
    drop(progress);
    Ok(figures::outcome(&measured, &plan, programs, request))
}

fn web(
    request: &Request,
    plan: &Plan,
    cores: Cores,
    measured: &mut Measured,
    progress: &Progress,
) -> Result<(), ExperimentError> {
    let failed = ExperimentError::machine;
    let mut rig = Rig::build(request, plan::WEB_LOADS, cores)?;
    let share = rig.stopped_share();
    measured.stopped_share = share.map_err(failed("see what stopped guests take"))?;
    let auction = Auction::start(&mut rig).map_err(failed("start the web server"))?;
    for arm in &plan.order {
        let label = arm.label();
        let configured = rig.configure(*arm);
        configured.map_err(failed(&format!("set up `{label}`")))?;
        auction
            .connect_anew(&mut rig)
            .map_err(failed("restart PHP"))?;
        for browsing in &plan.web.browsing {
            let seen = auction.browse(&mut rig, *arm, *browsing, &plan.web);
            let seen = seen.map_err(failed(&format!("browse with `{label}`")))?;
            tracing::debug!("{label}, {browsing:?}: {seen:?}");
            measured.browsed(*arm, *browsing, seen);
            progress.step();
        }
        let broken = rig.lost_after_early_ack();
        measured.lost_after_early_ack +=
            broken.map_err(failed("read the counters of taut snoop"))?;
    }
    measured.end(rig.end()?);
    Ok(())
}

fn mpi(
    request: &Request,
    plan: &Plan,
    cores: Cores,
    measured: &mut Measured,
    progress: &Progress,
) -> Result<(), ExperimentError> {
    let failed = ExperimentError::machine;
    let mut rig = Rig::build(request, plan::MPI_LOADS, cores)?;
    let program = Collectives::compile(&rig).map_err(failed("compile the parallel program"))?;
    for arm in &plan.order {
        let label = arm.label();
        let configured = rig.configure(*arm);
        configured.map_err(failed(&format!("set up `{label}`")))?;
        let timed = program.run(&mut rig, *arm, &plan.mpi);
        let timed = timed.map_err(failed(&format!("run the parallel program with `{label}`")))?;
        measured.timed(*arm, &timed);
        progress.step();
        let broken = rig.lost_after_early_ack();
        measured.lost_after_early_ack +=
            broken.map_err(failed("read the counters of taut snoop"))?;
    }
    measured.end(rig.end()?);
    Ok(())
}
