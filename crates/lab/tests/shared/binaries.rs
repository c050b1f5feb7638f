//! The binaries under test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns a command that runs `taut-lab`, without standard input.
///
/// # Panics
/// If `taut` is missing: `cargo test --workspace` builds both binaries, but testing this package
/// alone builds only `taut-lab`.
pub(crate) fn lab() -> Command {
    taut();
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut-lab"));
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let target = option_env!("CARGO_TARGET_DIR").unwrap_or("target");
    command
        // The directory in which `make guests` puts the kernels.
        .env(
            "TAUT_LAB_KERNELS",
            Path::new(top).join(target).join("kernels"),
        )
        .stdin(Stdio::null());
    command
}

/// Returns the path of the `taut` that `taut-lab` measures.
///
/// # Panics
/// If the binary is missing.
pub(crate) fn taut() -> PathBuf {
    let taut = Path::new(env!("CARGO_BIN_EXE_taut-lab")).with_file_name("taut");
    assert!(
        taut.is_file(),
        "these tests run {}, which is not there: run `cargo build --package taut` first",
        taut.display()
    );
    taut
}
