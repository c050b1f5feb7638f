//! `taut-lab`: runs the experiments and draws their report. `taut lab` executes it.
#![forbid(unsafe_code)]

mod all;
#[cfg(test)]
mod documents;
mod one;
#[cfg(test)]
#[path = "../../crates/taut/src/pages.rs"]
mod pages;
mod running;

use std::io::{IsTerminal as _, Write as _};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser as _;
use taut_lab::experiment::guests::guest::{self, Guest};
use taut_lab::experiment::guests::{driver, kernel};
use taut_lab::{registry, report};
use taut_netlab::world::World;
use tracing_subscriber::EnvFilter;

use crate::running::{Failure, print};

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
    Run(one::Run),
    All(all::All),
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
            let lines = registry::ALL
                .iter()
                .map(|e| format!("{:<16} {:>2} min  {}\n", e.name, e.minutes, e.about));
            print(&lines.collect::<String>())
        }
        Command::Run(args) => one::run(&args),
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
