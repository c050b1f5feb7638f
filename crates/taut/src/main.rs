//! `taut`: takes the slack out of TCP.
#![forbid(unsafe_code)]

mod doctor;
mod lab;
mod relay;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Takes the slack out of TCP.
#[derive(Parser)]
#[command(version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Relay(relay::Args),
    Lab(lab::Args),
    Doctor(doctor::Args),
}

/// What went wrong, and whether it was the user's doing.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line or the configuration file: exit code 2.
    Usage(String),
    /// Anything else: exit code 1.
    Run(String),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr();
    match cli.command {
        Command::Relay(args) => exit_code(relay::run(args)),
        Command::Lab(args) => exit_code(lab::run(args)),
        Command::Doctor(args) => doctor::run(&args),
    }
}

fn exit_code(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(sentence)) => {
            eprintln!("taut: {sentence}");
            ExitCode::from(2)
        }
        Err(Failure::Run(sentence)) => {
            eprintln!("taut: {sentence}");
            ExitCode::FAILURE
        }
    }
}

/// Logs go to standard error, `info` and above unless `TAUT_LOG` says otherwise (the syntax of
/// tracing's `EnvFilter`, such as `TAUT_LOG=debug` or `TAUT_LOG=taut_relay=trace`).
fn log_to_stderr() {
    use std::io::IsTerminal;

    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("TAUT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}
