//! `routes`: every route between clients and servers in other cities, measured, beside the planner's choice.
//!
//! Figures 10 and 12 of pied-piper 4.1 and 4.4: end to end, through every single relay, through the relays
//! nearest to both ends, and through a third relay between these. The paper finds that the best single relay
//! is next to neither end and hard to guess. Here `taut mesh plan` guesses, from the table of round trips
//! alone, and the downloads say how good its choice is.

mod choice;
mod figures;
mod measure;
mod option;
mod rig;
mod sites;

use std::collections::BTreeMap;

use super::outcome::{Environment, Outcome};
use super::progress::Progress;
use super::{Experiment, ExperimentError, Request};
use crate::peer::program;
use measure::Plan;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "routes",
    about: "every route between clients and servers in other cities, beside the one that `taut mesh plan` chooses",
    has_parts: false,
    minutes: 13,
    run,
};

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let programs = program::versions(&[program::NGINX, program::CURL])?;
    let plan = Plan::of(request);
    let progress = Progress::new("routes: worlds", plan.worlds.len() as u64);
    let measured = measure::measure(&plan, request, &progress)?;
    drop(progress);
    let environment = Environment {
        links: BTreeMap::from_iter(sites::describe(plan.sites)),
        programs,
        ..Environment::here()
    };
    Ok(figures::outcome(&measured, environment, request))
}
