//! `failover`: sessions over two alternative relays to one destination, while these relays are killed,
//! drained, cut off and slowed down.
//!
//! Two hundred sessions per second, of every size and in both orders of half-close, go through a near
//! relay that may use either of two others. Every byte is compared. The figures are for how long new
//! sessions failed after each fault, and how many.

mod aftermath;
mod faults;
mod figures;
mod plan;
mod rig;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use super::descriptors::enough_descriptors;
use super::outcome::Outcome;
use super::sessions::arrivals::arrivals;
use super::sessions::ends::{self, Patience, Run};
use super::sessions::transfer::Traffic;
use super::threads::{inside, joined};
use super::{Experiment, ExperimentError, Request};
use faults::Faults;
use figures::Found;
use plan::{Plan, RATE};
use rig::Rig;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "failover",
    about: "sessions over two alternative relays while these are killed, drained, cut off and slowed down",
    has_parts: false,
    minutes: 4,
    run,
};

/// The patience of both ends. It is shorter than every fault, so that a session which waits for a relay
/// that is cut off fails.
const PATIENCE: Patience = Patience {
    connect: Duration::from_secs(2),
    idle: Duration::from_secs(2),
};

/// The maximum number of bytes in one direction of a session. The experiment is about setting sessions
/// up: a machine that is busy with their bytes would make them fail.
const LONGEST: u64 = 128 << 10;

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let machine = ExperimentError::machine;
    enough_descriptors(ends::AT_ONCE).map_err(machine("hold both ends of every session"))?;
    let plan = Plan::of(request);
    let rig = Rig::build(request.seed, &request.taut)?;
    rig.write_files()?;
    let server = rig.world.host("server");
    let listener = server.run(|| TcpListener::bind(rig.server()))?;
    let listener = listener.map_err(machine("listen"))?;
    let mut faults = Faults::start(&rig)?;

    super::progress::say(&format!(
        "failover: {} s of {RATE} sessions/s, {} faults",
        plan.load.as_secs(),
        plan.events.len()
    ));
    let traffic = Traffic {
        seed: plan.seed,
        longest: LONGEST,
    };
    let run = Arc::new(Run::new(PATIENCE));
    let load = std::thread::scope(|scope| {
        let served = scope.spawn(|| {
            inside(&rig.world, "server", || {
                ends::serve(listener, traffic, &run)
            })
        });
        let load = scope.spawn(|| {
            let arrivals = arrivals(plan.seed, RATE, plan.load);
            let load = inside(&rig.world, "client", || {
                ends::load(traffic, arrivals, rig.entrance(), &run)
            });
            run.over.notify_one();
            load
        });
        let wreaked = faults.wreak(&plan, &run);
        if wreaked.is_err() {
            run.give_up();
        }
        let load = joined(load)?;
        joined(served)?;
        wreaked?;
        Ok::<_, ExperimentError>(load)
    })?;
    let found = Found {
        sum: run.ledger.sum(),
        records: run.ledger.records(),
        planned: arrivals(plan.seed, RATE, plan.load).count() as u64,
        load,
        done: faults.finish()?,
    };
    rig.world
        .tear_down()
        .map_err(machine("take the world down"))?;
    Ok(figures::outcome(&found, &plan, request))
}
