//! `taut mesh keygen` and `taut mesh pubkey`: the keys by which a relay proves its identity.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use taut_relay::identity::{KeyError, PrivateKey};
use taut_sys::random;

use crate::failure::Failure;

/// Write a new private key to FILE, for its owner only, and print its public key
#[derive(ClapArgs)]
#[command(after_help = "Example:
  taut mesh keygen /etc/taut/mesh.key")]
pub(super) struct KeygenArgs {
    /// The file; it must not exist. Missing directories are made, for their owner only
    file: PathBuf,
}

/// Print the public key of the private key in FILE
#[derive(ClapArgs)]
#[command(after_help = "Example:
  taut mesh pubkey /etc/taut/mesh.key")]
pub(super) struct PubkeyArgs {
    /// The file with the private key
    file: PathBuf,
}

pub(super) fn keygen(args: &KeygenArgs) -> Result<(), Failure> {
    if let Some(directory) = args.file.parent() {
        // If it cannot be made, the error of the file says why.
        let _ = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory);
    }
    print(PrivateKey::create(&args.file, &random::bytes()))
}

pub(super) fn pubkey(args: &PubkeyArgs) -> Result<(), Failure> {
    print(PrivateKey::load(&args.file))
}

fn print(key: Result<PrivateKey, KeyError>) -> Result<(), Failure> {
    let key = key.map_err(|e| Failure::Run(e.to_string()))?;
    crate::failure::print(&format!("{}\n", key.public()))
}
