//! `taut mesh`: the identities of relays, what they know of each other, and their routes. One file a
//! subcommand.

pub(crate) mod dns;
mod keys;
mod plan;
mod rtt;
mod sign;
mod status;

use clap::{Args as ClapArgs, Subcommand};

use crate::failure::Failure;

/// Manage a mesh of relays: keys, members, paths, routes, DNS
#[derive(ClapArgs)]
#[command(after_help = "Example:
  taut mesh keygen /etc/taut/mesh.key    make a key, print the public one

A relay of a mesh proves its identity by its private key, and knows other relays by their public \
keys, which are in the list of members (relay.mesh.members_file):

  [[member]]
  name = \"fra1\"
  keys = [\"the output of keygen on fra1\"]
  addresses = [\"203.0.113.7:7440\"]")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Dns(dns::Args),
    Keygen(keys::KeygenArgs),
    Pubkey(keys::PubkeyArgs),
    Plan(Box<plan::Args>),
    Rtt(rtt::RttArgs),
    Status(status::StatusArgs),
    Sign(sign::SignArgs),
}

impl Args {
    /// Returns the arguments of the DNS server, which is a job, or the other command.
    pub(crate) fn dns(self) -> Result<dns::Args, Self> {
        match self.action {
            Action::Dns(args) => Ok(args),
            action => Err(Self { action }),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.action {
        // A job, which `main` starts.
        Action::Dns(_) => Ok(()),
        Action::Keygen(args) => keys::keygen(args),
        Action::Pubkey(args) => keys::pubkey(args),
        Action::Plan(args) => plan::run(args),
        Action::Rtt(args) => rtt::run(args),
        Action::Status(args) => status::run(args),
        Action::Sign(args) => sign::run(args),
    }
}
