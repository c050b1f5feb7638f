//! `taut mesh`: the identities of relays.

use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use taut_relay::identity::PrivateKey;
use taut_sys::random;

use crate::Failure;

/// Make and show the identities of relays
#[derive(ClapArgs)]
#[command(after_help = "\
A relay of a mesh proves its identity by its private key, and knows other relays by their public \
keys, which stand in the list of members (relay.mesh.members_file):

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
    /// Write a new private key to FILE, for its owner only, and print its public key
    Keygen {
        /// The file; it must not exist
        file: PathBuf,
    },
    /// Print the public key of the private key in FILE
    Pubkey {
        /// The file with the private key
        file: PathBuf,
    },
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let key = match &args.action {
        Action::Keygen { file } => PrivateKey::create(file, &random::bytes()),
        Action::Pubkey { file } => PrivateKey::load(file),
    };
    let key = key.map_err(|e| Failure::Run(e.to_string()))?;
    writeln!(std::io::stdout(), "{}", key.public())
        .map_err(|e| Failure::Run(format!("cannot print the public key: {e}")))
}
