//! The binaries under test, and the kernels of their guests.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const LAB: &str = env!("CARGO_BIN_EXE_taut-lab");
/// The environment variable that names the directory of kernels.
const KERNELS: &str = "TAUT_LAB_KERNELS";

/// Runs `taut-lab` with these arguments, without standard input.
pub(crate) fn lab(args: &[&str]) -> Output {
    taut();
    let mut command = Command::new(LAB);
    command.args(args).env(KERNELS, kernels());
    command.stdin(Stdio::null()).output().unwrap()
}

/// Returns what a command wrote to standard error.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the path of the `taut` that `taut-lab` measures.
///
/// # Panics
/// If the binary is missing: `cargo test --workspace` builds both binaries, but testing this package
/// alone builds only `taut-lab`.
pub(crate) fn taut() -> PathBuf {
    let taut = Path::new(LAB).with_file_name("taut");
    assert!(
        taut.is_file(),
        "these tests run {}, which is not there: run `cargo build --package taut` first",
        taut.display()
    );
    taut
}

/// Returns the directory in which `make guests` puts the kernels: `TAUT_LAB_KERNELS`, or else the one
/// below Cargo's target directory, which the scripts and Cargo find by the same variable.
pub(crate) fn kernels() -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = || env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    match env::var_os(KERNELS) {
        Some(kernels) => kernels.into(),
        None => top.join(target()).join("kernels"),
    }
}
