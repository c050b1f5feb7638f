//! `pied-piper`: a download over a 274 ms path, end to end and through two relays.
//!
//! The route, the configurations and the programs are those of pied-piper 3.3: a client in San
//! Francisco, a relay in Oregon, a relay in Mumbai, a server in Bangalore; curl and a web server.
//! The memory-limited client is that of figure 9, and the two flows at one bottleneck are those of
//! 6.3 (figures 14 and 15). The paper's "e2e" used the Internet's own path, which the paper does
//! not describe. Here that path has the round trip of the route over the relays.

mod download;
mod fairness;
mod figures;
mod ideal;
mod measure;
mod plan;
mod relays;
mod route;
mod stage;
mod window;

use std::collections::BTreeMap;

use super::outcome::{Environment, Outcome};
use super::progress::Progress;
use super::{Experiment, ExperimentError, Request};
use crate::peer::program;
use figures::Found;
#[cfg(test)]
pub(crate) use figures::paper;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "pied-piper",
    about: "downloads over a 274 ms path: end to end, through ssh, and through two taut relays; two flows at a bottleneck",
    has_parts: false,
    minutes: 7,
    run,
};

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let programs = program::versions(&[
        program::NGINX,
        program::CURL,
        program::SSH,
        program::SSHD,
        program::SS,
    ])?;
    let batches = plan::of(request);
    let downloads = batches.iter().map(|batch| batch.jobs.len() as u64).sum();
    let progress = Progress::new("pied-piper: downloads", downloads);
    let measured = measure::measure(&batches, request, &progress)?;
    drop(progress);

    // These flows run after the downloads, which they would disturb: they fill their links.
    let plan = fairness::Plan::of(request);
    let progress = Progress::new("pied-piper: pairs of flows", plan.contests());
    let contests = fairness::measure(&plan, request, &progress)?;
    drop(progress);

    let environment = Environment {
        links: BTreeMap::from_iter(route::describe()),
        programs,
        ..Environment::here()
    };
    let found = Found {
        measured,
        contests,
        flow: plan.size,
    };
    Ok(figures::outcome(&found, environment, request))
}
