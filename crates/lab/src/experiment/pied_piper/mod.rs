//! `pied-piper`: a download over a 274 ms path, end to end and through two relays.
//!
//! The route, the file sizes and the programs are those of pied-piper 3.3: a client in San
//! Francisco, a relay in Oregon, a relay in Mumbai, a server in Bangalore; curl and a web server.
//! The paper's "e2e" went over the Internet's own path; here it goes over the relays' hosts as
//! routers, so that only the splitting differs.

mod figures;
mod measure;
mod route;

use std::collections::BTreeMap;

use taut_sys::socket::has_congestion_control;

use super::outcome::{Environment, Outcome};
use super::progress::Progress;
use super::{Experiment, ExperimentError, Request};
use crate::peer::program;
use measure::Plan;

/// For the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "pied-piper",
    about: "a 274 ms path: downloads end to end, through ssh on two relays, and through two taut relays",
    run,
};

/// A file to be downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Size {
    Kb10,
    Kb100,
    Mb1,
    Mb10,
}

/// How a download goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// One connection from the client to the server.
    EndToEnd,
    /// ssh port forwarding on both relays: the paper's "OCD baseline".
    Ssh,
    /// `taut relay` on both.
    Relay,
    /// The same, and the relay near the client uses BBR towards it.
    RelayBbr,
}

/// What the client's link does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Condition {
    Clean,
    /// One segment in a thousand is lost, each way.
    Lossy,
}

impl Size {
    pub(crate) const ALL: [Self; 4] = [Self::Kb10, Self::Kb100, Self::Mb1, Self::Mb10];

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Kb10 => 10_000,
            Self::Kb100 => 100_000,
            Self::Mb1 => 1_000_000,
            Self::Mb10 => 10_000_000,
        }
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Kb10 => "10 kB",
            Self::Kb100 => "100 kB",
            Self::Mb1 => "1 MB",
            Self::Mb10 => "10 MB",
        }
    }

    /// Its name on the server.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Kb10 => "10kB",
            Self::Kb100 => "100kB",
            Self::Mb1 => "1MB",
            Self::Mb10 => "10MB",
        }
    }
}

impl Way {
    pub(crate) const ALL: [Self; 4] = [Self::EndToEnd, Self::Ssh, Self::Relay, Self::RelayBbr];

    /// The ways there are on this machine.
    pub(crate) fn available() -> Vec<Self> {
        let bbr = has_congestion_control("bbr");
        Self::ALL
            .into_iter()
            .filter(|way| bbr || *way != Self::RelayBbr)
            .collect()
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::EndToEnd => "e2e",
            Self::Ssh => "ssh",
            Self::Relay => "relay",
            Self::RelayBbr => "relay-bbr",
        }
    }
}

impl Condition {
    pub(crate) const ALL: [Self; 2] = [Self::Clean, Self::Lossy];

    /// What is added to a series' name.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Clean => "",
            Self::Lossy => "/0.1 % loss",
        }
    }
}

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let programs =
        program::versions(&[program::NGINX, program::CURL, program::SSH, program::SSHD])?;
    let plan = Plan::of(request);
    let progress = Progress::new("pied-piper: downloads", plan.downloads());
    let measured = measure::measure(&plan, request, &progress)?;
    drop(progress);

    let environment = Environment {
        links: BTreeMap::from_iter(route::describe()),
        programs,
        ..Environment::here()
    };
    Ok(figures::outcome(&measured, environment, request))
}
