//! `internet`: downloads over a lossy Internet path, and over a clean cloud leg between two relays
//! (pied-piper 2.3, figures 2 and 3; 4.2 and 4.3, figure 11).

mod download;
mod figures;
mod measure;
mod path;
mod plan;
mod stage;

use std::collections::BTreeMap;

use super::outcome::{Environment, Outcome};
use super::progress::Progress;
use super::{Experiment, ExperimentError, Request};
use crate::peer::program;
#[cfg(test)]
pub(crate) use figures::paper;

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "internet",
    about: "downloads of 10 kB to 100 MB over a lossy Internet path, with three congestion controls, and over two relays in a cloud",
    has_parts: false,
    minutes: 10,
    run,
};

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let programs = program::versions(&[
        program::NGINX,
        program::CURL,
        program::SSH,
        program::SSHD,
        program::IP,
    ])?;
    let batches = plan::of(request);
    let downloads = batches.iter().map(|batch| batch.jobs.len() as u64).sum();
    let progress = Progress::new("internet: downloads", downloads);
    let measured = measure::measure(&batches, request, &progress)?;
    drop(progress);

    let mut paths: Vec<path::Path> = batches.iter().map(|batch| batch.path).collect();
    paths.dedup();
    let environment = Environment {
        links: BTreeMap::from_iter(paths.into_iter().flat_map(path::Path::describe)),
        programs,
        ..Environment::here()
    };
    Ok(figures::outcome(&measured, environment, request))
}
