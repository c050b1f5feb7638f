//! `relay-peers`: compares `taut relay` with HAProxy, nginx, socat and ssh at the same work.
//!
//! The world is one host, and all traffic uses its loopback. A link would be a process that takes
//! CPU time from the relays and hides their cost. The figures show what a relay needs for a byte, a
//! message, a connection and an idle session. Both ends of every connection run on the same host,
//! which is the same handicap for all relays.

mod contender;
mod figures;
mod plan;
mod rig;

use std::collections::BTreeMap;

use super::descriptors::enough_descriptors;
use super::outcome::{Environment, Outcome};
use super::progress::Progress;
use super::workload::measured::Measured;
use super::workload::{bulk, idle};
use super::{Experiment, ExperimentError, Request};
use crate::peer::{nginx_stream, program};
use contender::Contender;
use plan::Plan;
use rig::Rig;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "relay-peers",
    about: "taut relay beside HAProxy, nginx, socat and ssh: bulk, new connections, latency, idle memory",
    has_parts: false,
    minutes: 3,
    run,
};

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let programs = program::versions(&[
        program::HAPROXY,
        program::NGINX,
        program::SOCAT,
        program::SSH,
        program::SSHD,
    ])?;
    nginx_stream::available()?;
    let plan = Plan::of(request);
    let progress = Progress::new("relay-peers: measurements", plan.steps());
    let mut measured = Measured::default();

    let rig = Rig::build(request)?;
    // Each relay has just started: memory that a relay reserved during a storm of connections would
    // hide the memory of idle sessions.
    for &contender in &plan.idle {
        let sessions = plan.idle_sessions(contender);
        rig.host.inside("hold both ends of every session", || {
            enough_descriptors(sessions)
        })?;
        let entrance = rig.start(contender)?;
        let what = format!(
            "open {sessions} idle sessions through {}",
            contender.label()
        );
        let idle = rig
            .host
            .inside(&what, || idle::measure(&entrance, sessions))?;
        measured.idle.entry(contender).or_default().push(idle);
        progress.step();
    }
    let entrances = rig.start_all(&Contender::ALL)?;
    for (contender, entrance) in &entrances {
        let exact = rig.host.inside("compare the relayed bytes", || {
            bulk::relays_exactly(entrance, request.seed)
        })?;
        measured.exact.insert(*contender, exact);
    }
    for round in &plan.rounds {
        for &(job, contender) in round {
            let entrance = &entrances[&contender];
            let what = format!("{} through {}", job.verb(), contender.label());
            rig.host.inside(&what, || {
                measured.measure(job, contender, entrance, &plan.times)
            })?;
            progress.step();
        }
    }
    drop(progress);

    let environment = Environment {
        links: BTreeMap::from([("lo".to_owned(), "loopback, no delay".to_owned())]),
        programs,
        ..Environment::here()
    };
    Ok(figures::outcome(&measured, environment, request, &plan))
}
