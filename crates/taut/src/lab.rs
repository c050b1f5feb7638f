//! `taut lab`: executes `taut-lab`, a separate program.
//!
//! The experiments are a third of the code and create network namespaces, guests and traffic. A
//! binary that runs as root on other people's machines should not contain them.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use crate::failure::Failure;

const PROGRAM: &str = "taut-lab";

/// Run experiments in worlds on this machine (executes taut-lab)
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// As `taut lab --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Executes the `taut-lab` beside this binary, or the first one in `PATH`. Returns only if there is
/// none that can be executed.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let taut = std::env::current_exe()
        .map_err(|e| Failure::Run(format!("cannot find the program's own path: {e}")))?;
    let beside = taut.with_file_name(PROGRAM);
    for program in [&*beside, Path::new(PROGRAM)] {
        // The name that its help shows in the usage line.
        let error = Command::new(program)
            .arg0("taut lab")
            .args(&args.args)
            .exec();
        if error.kind() != io::ErrorKind::NotFound {
            return Err(Failure::Run(format!(
                "cannot execute {}: {error}",
                program.display()
            )));
        }
    }
    Err(Failure::Run(format!(
        "there is no `{PROGRAM}`, the program that runs experiments, beside {} or in PATH; build it with\n\n    \
         cargo build --release --package {PROGRAM}",
        taut.display()
    )))
}
