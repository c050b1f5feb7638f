//! `taut-lab`: runs the experiments and draws their report. `taut lab` executes it.
#![forbid(unsafe_code)]

mod all;
#[cfg(test)]
mod documents;
#[cfg(test)]
mod pages;

use std::io::{IsTerminal as _, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser as _;
use taut_lab::experiment::guests::guest::{self, Guest};
use taut_lab::experiment::guests::{driver, kernel};
use taut_lab::experiment::outcome::Outcome;
use taut_lab::experiment::{self, Experiment, Form, Request, table};
use taut_lab::report;
use taut_netlab::interrupt;
use taut_netlab::world::World;
use tracing_subscriber::EnvFilter;

/// Run experiments: worlds on this machine, measurements, figures
#[derive(clap::Parser)]
#[command(max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the experiments, and about how long the full form of each takes on two cores
    List,
    Run(Run),
    All(All),
    /// Make DIR/report.html from the outcomes (*.json) in DIR
    Report {
        /// The directory that `--json` files are in
        dir: PathBuf,
    },
    /// Remove what killed experiments have left on this machine (`run` does so too)
    Sweep,
    /// The init of a guest; experiments start it
    #[command(hide = true)]
    Guest(GuestArgs),
    /// Becomes a guest's kernel; experiments start it
    #[command(hide = true)]
    Kernel {
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// The driver domain between the TAPs on standard input and output; experiments start it
    #[command(hide = true)]
    Driver,
}

/// Options of a guest's init.
#[derive(clap::Args)]
struct GuestArgs {
    #[arg(long)]
    address: Ipv4Addr,
    #[arg(long, value_parser = guest::parse_mac)]
    mac: Mac,
    #[arg(long, value_parser = clap::value_parser!(u8).range(..=100))]
    load: u8,
    #[arg(long)]
    device: String,
    #[arg(long, value_parser = guest::parse_neighbour)]
    neighbour: Vec<(Ipv4Addr, [u8; 6])>,
}

type Mac = [u8; 6];

/// Run every experiment, one after the other, and make DIR/report.html
#[derive(clap::Args)]
struct All {
    /// The directory for the outcomes (NAME.json) and the page
    dir: PathBuf,
    /// Run the short forms, within 60 seconds each
    #[arg(long)]
    quick: bool,
    /// Seed of random choices; the same seed makes the same choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the outcomes that are in DIR and run only the other experiments
    #[arg(long)]
    resume: bool,
    /// Run only these experiments, which commas separate
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// The tree that this program was built from, such as a commit: the page marks outcomes of others
    #[arg(long, value_name = "TEXT")]
    tree: Option<String>,
    /// The `taut` binary to measure [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    taut: Option<PathBuf>,
}

/// Run one experiment and print its figures
#[derive(clap::Args)]
struct Run {
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

/// An error, and whether the command line caused it.
enum Failure {
    /// The command line is wrong: exit code 2.
    Usage(String),
    /// Anything else: exit code 1.
    Run(String),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env("TAUT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .init();
    let (sentence, code) = match run(cli.command) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Usage(sentence)) => (sentence, ExitCode::from(2)),
        Err(Failure::Run(sentence)) => (sentence, ExitCode::FAILURE),
    };
    // `eprintln!` would panic if standard error is closed.
    let _ = writeln!(std::io::stderr(), "taut: {sentence}");
    code
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List => {
            let lines = experiment::ALL
                .iter()
                .map(|e| format!("{:<16} {:>2} min  {}\n", e.name, e.minutes, e.about));
            print(&lines.collect::<String>())
        }
        Command::Run(run) => run_one(&run),
        Command::All(args) => all::run(&args),
        Command::Report { dir } => {
            let page = report::write(&dir).map_err(|e| Failure::Run(e.to_string()))?;
            print(&format!("{}\n", page.display()))
        }
        Command::Sweep => sweep(),
        Command::Guest(args) => {
            let failed = guest::run(&Guest {
                address: args.address,
                mac: args.mac,
                load: args.load,
                device: args.device,
                neighbours: args.neighbour,
            });
            failed.map_err(|e| Failure::Run(format!("the guest cannot go on: {e}")))
        }
        Command::Kernel { args } => {
            let e = kernel::become_one(&args);
            Err(Failure::Run(format!(
                "cannot become linux.uml: {e} (Debian package user-mode-linux)"
            )))
        }
        Command::Driver => driver(),
    }
}

fn driver() -> Result<(), Failure> {
    use std::os::fd::AsFd as _;
    let ends = || {
        let wire = std::io::stdin().as_fd().try_clone_to_owned()?;
        let uplink = std::io::stdout().as_fd().try_clone_to_owned()?;
        driver::carry(wire, uplink)
    };
    ends().map_err(|e| Failure::Run(format!("the driver domain cannot go on: {e}")))
}

fn run_one(args: &Run) -> Result<(), Failure> {
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
    if !outcome.calibration.ok {
        return Err(failed(
            &"this world did not show the problem that it is built to show (see calibration), so the figures prove nothing",
        ));
    }
    Ok(())
}

/// Makes this process ready for experiments, and returns the path of the `taut` binary to measure.
fn prepare(taut: Option<&Path>) -> Result<PathBuf, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::Run(
            "experiments need root, to make network namespaces: run this as root".to_owned(),
        ));
    }
    let taut = taut_binary(taut)?;
    interrupt::tear_down_on_signals()
        .map_err(|e| Failure::Run(format!("cannot handle signals: {e}")))?;
    Ok(taut)
}

/// Returns the path of the `taut` binary: the requested path, or the binary beside this program.
fn taut_binary(asked_for: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = asked_for {
        return std::fs::canonicalize(path)
            .map_err(|e| Failure::Usage(format!("--taut {}: {e}", path.display())));
    }
    let lab = std::env::current_exe()
        .map_err(|e| Failure::Run(format!("cannot find the program's own path: {e}")))?;
    let taut = lab.with_file_name("taut");
    match taut.is_file() {
        true => Ok(taut),
        false => Err(Failure::Run(format!(
            "there is no `taut` beside {}; name one with --taut PATH, or build it with\n\n    \
             cargo build --package taut",
            lab.display()
        ))),
    }
}

/// Prints to standard output. A closed pipe (`| head`) is not an error.
fn print(text: &str) -> Result<(), Failure> {
    use std::io::ErrorKind;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::Run(format!(
            "cannot write to standard output: {e}"
        ))),
        _ => Ok(()),
    }
}

fn find(name: &str) -> Result<&'static Experiment, Failure> {
    experiment::ALL
        .iter()
        .find(|e| e.name == name)
        .ok_or_else(|| {
            let names: Vec<_> = experiment::ALL.iter().map(|e| e.name).collect();
            Failure::Usage(format!(
                "there is no experiment `{name}`; the experiments are {}",
                names.join(", ")
            ))
        })
}

/// Creates a temporary file in the directory of `file`, to replace `file` later.
fn beside(file: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    tempfile::Builder::new()
        // The permissions of an ordinary file, less the umask.
        .permissions(std::fs::Permissions::from_mode(0o644))
        .prefix(".taut-lab-")
        .tempfile_in(dir.unwrap_or(Path::new(".")))
}

fn write_json(
    outcome: &Outcome,
    mut beside: tempfile::NamedTempFile,
    file: &Path,
) -> std::io::Result<()> {
    serde_json::to_writer_pretty(&mut beside, outcome)?;
    beside.write_all(b"\n")?;
    beside.persist(file)?;
    Ok(())
}

fn sweep() -> Result<(), Failure> {
    let swept = World::sweep().map_err(|e| {
        let hint = match taut_sys::probe::is_root() {
            true => "",
            false => " (run this as root)",
        };
        Failure::Run(format!(
            "cannot remove what is left of killed experiments: {e}{hint}"
        ))
    })?;
    match swept.len() {
        0 => print("nothing was left behind\n"),
        _ => print(&format!("removed what was left of {}\n", swept.join(", "))),
    }
}
