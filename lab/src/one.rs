//! `taut-lab run`: one experiment.

use std::path::PathBuf;

use taut_lab::experiment::outcome::Trust;
use taut_lab::experiment::progress::say;
use taut_lab::experiment::{Form, Request, table};

use crate::running::{Failure, beside, busy, find, prepare, print, write_json};

/// Run one experiment and print its figures
#[derive(clap::Args)]
pub(crate) struct Run {
    /// The experiment's name, from `taut lab list`
    name: String,
    /// Run the short form, within 60 seconds
    #[arg(long)]
    quick: bool,
    /// Run the smallest part, in a few seconds; its figures mean nothing
    #[arg(long, hide = true, conflicts_with = "quick")]
    smoke: bool,
    /// Seed of random choices; the same seed makes the same choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measurements of each configuration [default: the experiment's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Run only the parts with this in their names, such as `10 MB` or `2 guests` (consolidate)
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Also write the outcome to this file, as one JSON object (docs/lab.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The `taut` binary to measure [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    taut: Option<PathBuf>,
}

pub(crate) fn run(args: &Run) -> Result<(), Failure> {
    let experiment = find(&args.name)?;
    let failed = |e: &dyn std::fmt::Display| Failure::Run(format!("{}: {e}", args.name));
    if args.only.is_some() && !experiment.has_parts {
        return Err(Failure::Usage(format!(
            "{} has no parts to select with --only",
            args.name
        )));
    }
    // Checked before minutes of measurements, not after. An existing file stays until the new file
    // is complete.
    let json = args
        .json
        .as_deref()
        .map(|file| Ok((file, beside(file)?)))
        .transpose();
    let json = json.map_err(|e: std::io::Error| match &args.json {
        Some(file) => Failure::Usage(format!("--json {}: {e}", file.display())),
        None => Failure::Usage(e.to_string()),
    })?;
    let taut = prepare(args.taut.as_deref())?;
    let request = Request {
        form: match args.smoke {
            true => Form::Smoke,
            false => Form::of(args.quick),
        },
        seed: args.seed,
        runs: args.runs.map(usize::from),
        only: args.only.clone(),
        taut,
    };
    let outcome = (experiment.run)(&request).map_err(|e| failed(&e))?;
    if let Some((file, beside)) = json {
        write_json(&outcome, beside, file)
            .map_err(|e| Failure::Run(format!("--json {}: {e}", file.display())))?;
    }
    print(&table::render(&outcome))?;
    match outcome.calibration.trust() {
        Trust::Calibrated | Trust::Unchecked => {}
        Trust::Busy => say(&format!("taut: {}: {}", args.name, busy(&outcome))),
        Trust::Failed => {
            return Err(failed(
                &"this world did not show the problem that it is built to show (see calibration), so the figures prove nothing",
            ));
        }
    }
    Ok(())
}
