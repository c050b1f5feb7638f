//! `taut`: takes the slack out of TCP.
#![forbid(unsafe_code)]

mod check;
#[cfg(test)]
mod commands;
mod confine;
mod doctor;
mod exit;
mod failure;
mod guest;
mod help;
#[cfg(test)]
mod kubernetes;
mod lab;
mod log;
mod manual;
mod mesh;
mod observe;
mod options;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod reference;
mod relay;
mod snoop;
mod status;
mod table;
mod terminal;
mod top;
mod tour;
mod tune;
mod watch;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::confine::Confinement;
use crate::exit::exit_code;
use crate::failure::Failure;

/// Takes the slack out of TCP.
#[derive(Parser)]
#[command(version, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "Examples:
  taut                    what there is on this machine, and what to do next
  taut doctor             what is wrong with this machine, and what mends it
  taut why                what limits the connections that carry most
  taut top --help         the options and examples of a command

Exit status of every command: 0 if it did what it was asked; 1 if it could not, or if a check has \
found what keeps Taut from working; 2 if the command line or the configuration file has a mistake.

TAUT_LOG sets what jobs log to standard error: error, warn, info (the default), debug, trace or off. \
TAUT_LOG_FORMAT=json makes each of these lines a JSON object with timestamp, level and message.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Top(top::Args),
    Why(why::Args),
    Watch(watch::Args),
    Tune(tune::Args),
    Relay(relay::Args),
    Mesh(mesh::Args),
    Snoop(snoop::Args),
    Guest(guest::Args),
    Tour(tour::Args),
    Lab(lab::Args),
    Doctor(doctor::Args),
    Status(status::Args),
    Check(check::Args),
    Completions(manual::CompletionsArgs),
    Man(manual::ManArgs),
}

fn main() -> ExitCode {
    let taut = help::grouped(Cli::command());
    let matches = match options::command_line(&taut) {
        Ok(matches) => matches,
        Err(failure) => return exit_code(Err(failure)),
    };
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.command {
        Command::Relay(mut args) => exit_code(if let Some(command) = args.take_command() {
            relay::operate(command)
        } else {
            relay::prepare(args).and_then(|job| {
                // Not started earlier, because it starts a thread. Its guard is dropped last, to write out
                // the remaining lines.
                let _log = log::to_stderr()?;
                relay::run(job)
            })
        }),
        Command::Mesh(args) => exit_code(match args.dns() {
            Ok(args) => mesh::dns::prepare(args).and_then(|job| {
                // As for the relay.
                let _log = log::to_stderr()?;
                mesh::dns::run(job)
            }),
            Err(args) => mesh::run(&args),
        }),
        Command::Snoop(args) => exit_code(snoop::prepare(args).and_then(|job| {
            // As for the relay.
            let _log = log::to_stderr()?;
            snoop::run(job)
        })),
        Command::Top(args) => exit_code(top::run(&args)),
        Command::Why(args) => exit_code(why::run(&args)),
        Command::Tune(args) => confined(&tune::confinement(&args), || tune::run(&args)),
        Command::Watch(args) => confined(&watch::confinement(&args), || watch::run(&args)),
        Command::Guest(args) => confined(&guest::confinement(&args), || guest::run(&args)),
        Command::Tour(args) => exit_code(tour::run(&args)),
        Command::Lab(args) => exit_code(lab::run(&args)),
        Command::Status(args) => exit_code(status::run(&args)),
        Command::Check(args) => exit_code(check::run(&args, &taut)),
        Command::Completions(args) => exit_code(manual::completions(&args, Cli::command())),
        Command::Man(args) => exit_code(manual::man(&args, Cli::command())),
        Command::Doctor(args) => match log::to_stderr() {
            Ok(_log) => doctor::run(&args),
            Err(failure) => exit_code(Err(failure)),
        },
    }
}

/// Runs a job that drops its privileges first.
fn confined(confinement: &Confinement, run: impl FnOnce() -> Result<(), Failure>) -> ExitCode {
    exit_code(confinement.enter().and_then(|confined| {
        // Not started earlier, because it starts a thread, and privileges are per thread.
        let _log = log::to_stderr()?;
        confined.log();
        run()
    }))
}
