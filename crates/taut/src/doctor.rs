//! `taut doctor`: lists the features of this kernel and machine, the settings that limit Taut, and
//! the commands that change them.
//!
//! `taut_sys::probe` probes the features. The modules below assess the results and have no I/O.
//! They are in this crate because they depend on every command, and no command depends on them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

use taut_relay::intercept;
use taut_sys::probe;

use self::report::Report;
use self::setting::Host;
use self::severity::Severity;

mod feature;
mod leftover;
mod report;
mod setting;
mod severity;
mod table;

/// Check this machine's features and settings, and print the commands that improve them.
///
/// Changes nothing without --repair. Exit status: 0 if nothing blocks, 1 if something does or
/// cannot be repaired, 2 for a usage error.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Also show settings that need no change
    #[arg(long)]
    all: bool,
    /// First remove what killed processes of Taut have left (root)
    #[arg(long)]
    repair: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let is_repaired = !args.repair || repair();
    let report = examine();
    let written = match args.json {
        true => json(&report),
        false => io::stdout().write_all(table::render(&report, args.all).as_bytes()),
    };
    // A reader that closes the pipe (`| head`) is not an error.
    if let Err(e) = written
        && e.kind() != io::ErrorKind::BrokenPipe
    {
        eprintln!("taut doctor: cannot write to standard output: {e}");
        return ExitCode::FAILURE;
    }
    match report.verdict {
        Severity::Slows | Severity::Fine if is_repaired => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Removes what killed processes have left. Returns whether nothing of it stays.
fn repair() -> bool {
    let (removed, stays) = leftover::remove();
    let sentences = removed.iter().chain(&stays);
    sentences.for_each(|sentence| eprintln!("taut doctor: {sentence}"));
    if removed.is_empty() && stays.is_empty() {
        eprintln!("taut doctor: killed processes have left nothing");
    }
    stays.is_empty()
}

fn examine() -> Report {
    let features = feature::FEATURES
        .iter()
        .map(|f| feature::assess(f, (f.probe)()))
        .collect::<Vec<_>>();
    let settings = setting::assess(&host());
    Report::new(
        probe::kernel_release(),
        probe::is_root(),
        features,
        settings,
        leftover::find(),
    )
}

fn host() -> Host {
    // A sysctl that this kernel lacks or hides is omitted.
    let read = |name: &&str| Some(((*name).to_owned(), probe::setting::sysctl(name).ok()??));
    Host {
        sysctls: setting::SYSCTLS
            .iter()
            .filter_map(read)
            .collect::<BTreeMap<_, _>>(),
        open_files: probe::setting::open_files_hard_limit(),
        page: probe::setting::page_size(),
        root: probe::is_root(),
        intercepting: match intercept::is_running() {
            Ok(true) => intercept::presence().ok(),
            _ => None,
        },
    }
}

fn json(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, report)?;
    writeln!(out)
}
