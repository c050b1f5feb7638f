//! `mesh-peers`: compares two `taut relay` of a mesh, whose legs are protected, with pairs of HAProxy,
//! nginx and stunnel with TLS between them.
//!
//! The world is one host, and all traffic uses its loopback, as in `relay-peers`. The figures are
//! those of both relays of a pair together.

mod contender;
mod figures;
mod plan;
mod rig;
mod wiretap;

use std::collections::BTreeMap;

use super::descriptors::enough_descriptors;
use super::outcome::{Environment, Outcome};
use super::progress::Progress;
use super::workload::idle::Memory;
use super::workload::{bulk, idle};
use super::{Experiment, ExperimentError, Request};
use crate::peer::relay_pair::Pool;
use crate::peer::{nginx_stream, program};
use contender::Contender;
use figures::Found;
use plan::Plan;
use rig::Rig;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "mesh-peers",
    about: "two taut relay with a protected leg beside two HAProxy, nginx and stunnel with TLS between them",
    has_parts: false,
    minutes: 5,
    run,
};

/// The number of connections in the smaller of the two pools whose memory is compared.
const SMALL_POOL: u32 = 4;

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let programs = program::versions(&[
        program::HAPROXY,
        program::NGINX,
        program::STUNNEL,
        program::OPENSSL,
    ])?;
    nginx_stream::available()?;
    let mut plan = Plan::of(request);
    let rig = Rig::build(request)?;
    let mut found = Found::default();
    let all = Contender::ALL;
    let steps = (plan.idle.len() + 2 * plan.pools + all.len()) as u64;
    let progress = Progress::new("mesh-peers: idle memory, contents", steps);

    rig.host.inside("hold both ends of every session", || {
        enough_descriptors(plan.sessions)
    })?;
    // Each relay has just started: memory that it reserved for other work would hide that of idle
    // sessions.
    for &contender in &plan.idle {
        let entrance = rig.start(contender, Pool::Own)?;
        let what = format!("open idle sessions through {}", contender.label());
        let idle = rig
            .host
            .inside(&what, || idle::measure(&entrance, plan.sessions))?;
        found.measured.idle.insert(contender, vec![idle]);
        progress.step();
    }
    for _ in 0..plan.pools {
        let [small, large] = [SMALL_POOL, plan.pooled].map(|pool| {
            let entrance = rig.start(Contender::Taut, Pool::Exactly(pool))?;
            let memory = rig
                .host
                .inside("measure the memory of a pool", || Memory::now(&entrance));
            progress.step();
            memory
        });
        let more = (plan.pooled - SMALL_POOL) as usize;
        found.pooled.push(large?.each_since(&small?, more));
    }

    let mut entrances = BTreeMap::new();
    for contender in all {
        let entrance = rig.start(contender, Pool::Own)?;
        let what = format!("compare the bytes through {}", contender.label());
        let exact = rig
            .host
            .inside(&what, || bulk::relays_exactly(&entrance, request.seed))?;
        found.measured.exact.insert(contender, exact);
        if contender != Contender::Direct {
            let between = contender.between_port();
            let what = format!("tap the leg of {}", contender.label());
            let tapped = rig
                .host
                .inside(&what, || wiretap::tap(&entrance, between))?;
            found.tapped.insert(contender, tapped);
        }
        entrances.insert(contender, entrance);
        progress.step();
    }
    drop(progress);

    while !plan.is_enough(found.rounds, &found.ratios()) {
        let round = plan.round();
        let name = format!("mesh-peers: round {}", found.rounds + 1);
        let progress = Progress::new(&name, round.len() as u64);
        for (job, contender) in round {
            let what = format!("{} through {}", job.verb(), contender.label());
            rig.host.inside(&what, || {
                let entrance = &entrances[&contender];
                found
                    .measured
                    .measure(job, contender, entrance, &plan.times)
            })?;
            progress.step();
        }
        found.rounds += 1;
    }

    let environment = Environment {
        links: BTreeMap::from([("lo".to_owned(), "loopback, no delay".to_owned())]),
        programs,
        ..Environment::here()
    };
    Ok(figures::outcome(&found, environment, request, &plan))
}
