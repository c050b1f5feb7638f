//! `taut lab`.

use std::path::{Path, PathBuf};

use taut_lab::experiment::outcome::Outcome;
use taut_lab::experiment::{self, Experiment, Request, table};
use taut_lab::world::World;
use taut_lab::{interrupt, report};

use crate::Failure;

/// Run experiments: worlds on this machine, measurements, figures
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the experiments
    List,
    Run(Run),
    /// Make DIR/report.html from the outcomes (*.json) in DIR
    Report {
        /// Where `--json` wrote them
        dir: PathBuf,
    },
    /// Remove what experiments that were killed have left on this machine (`run` does so too)
    Sweep,
}

/// Run one experiment and print its figures
#[derive(clap::Args)]
struct Run {
    /// Which one: see `taut lab list`
    name: String,
    /// The short form: within 60 seconds
    #[arg(long)]
    quick: bool,
    /// Where random choices come from; the same seed makes the same choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measurements of each configuration [default: the experiment's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Write the outcome here too, as one JSON object (docs/lab.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::List => {
            for experiment in experiment::ALL {
                println!("{:<16} {}", experiment.name, experiment.about);
            }
            Ok(())
        }
        Command::Run(run) => run_one(&run),
        Command::Report { dir } => {
            let page = report::write(&dir).map_err(|e| Failure::Run(e.to_string()))?;
            println!("{}", page.display());
            Ok(())
        }
        Command::Sweep => sweep(),
    }
}

fn run_one(args: &Run) -> Result<(), Failure> {
    let experiment = find(&args.name)?;
    let failed = |e: &dyn std::fmt::Display| Failure::Run(format!("{}: {e}", args.name));
    if let Some(file) = &args.json {
        // Before minutes of measuring, not after.
        writable(file).map_err(|e| Failure::Usage(format!("--json {}: {e}", file.display())))?;
    }
    interrupt::tear_down_on_signals().map_err(|e| failed(&e))?;
    let request = Request {
        quick: args.quick,
        seed: args.seed,
        runs: args.runs.map(usize::from),
        taut: std::env::current_exe().map_err(|e| failed(&e))?,
    };
    let outcome = (experiment.run)(&request).map_err(|e| failed(&e))?;
    print!("{}", table::render(&outcome));
    if let Some(file) = &args.json {
        write_json(&outcome, file)
            .map_err(|e| Failure::Run(format!("--json {}: {e}", file.display())))?;
    }
    if !outcome.calibration.ok {
        return Err(failed(
            &"the world did not show what it is there to show (see calibration)",
        ));
    }
    Ok(())
}

fn find(name: &str) -> Result<&'static Experiment, Failure> {
    experiment::ALL
        .iter()
        .find(|e| e.name == name)
        .ok_or_else(|| {
            let names: Vec<_> = experiment::ALL.iter().map(|e| e.name).collect();
            Failure::Usage(format!(
                "there is no experiment `{name}`; there are {}",
                names.join(", ")
            ))
        })
}

fn writable(file: &Path) -> std::io::Result<()> {
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .map(drop)
}

fn write_json(outcome: &Outcome, file: &Path) -> std::io::Result<()> {
    let mut text = serde_json::to_string_pretty(outcome)?;
    text.push('\n');
    std::fs::write(file, text)
}

fn sweep() -> Result<(), Failure> {
    let swept = World::sweep().map_err(|e| Failure::Run(format!("cannot sweep: {e} (root?)")))?;
    match swept.len() {
        0 => println!("nothing was left behind"),
        _ => println!("removed what was left of {}", swept.join(", ")),
    }
    Ok(())
}
