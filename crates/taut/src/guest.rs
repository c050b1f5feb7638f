//! `taut guest`: loads and unloads the congestion controls, and reports on off-CPU gaps.

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args as ClapArgs, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use taut_guest::control::Control;
use taut_guest::default_control::{self, Restored};
use taut_guest::gaps::Gaps;
use taut_guest::load::{self, Lock};
use taut_guest::module;
use taut_guest::report::Report;
use taut_guest::textfile;
use taut_guest::verdict::Descheduling;
use taut_guest::watch::Watch;
use taut_observe::versioned::Versioned;
use taut_sys::job_dir::JobDir;

use crate::confine::{self, Confinement, SandboxArgs};
use crate::failure::Failure;
use crate::log::say;
use crate::options::FileArgs;

/// The time that `status` watches by default if nothing is loaded.
const WATCH: Duration = Duration::from_secs(10);
/// The interval at which a wait checks for signals.
const NAP: Duration = Duration::from_millis(50);

/// Correct congestion control in a guest that is descheduled
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  taut guest status              is this machine descheduled, does it matter?
  taut guest up                  load taut_bbr and taut_cubic
  taut guest up --default bbr    and make taut_bbr the default
  taut guest down                unload them and restore the default")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    sandbox: SandboxArgs,
}

#[derive(Subcommand)]
enum Command {
    /// Load taut_bbr and taut_cubic, until `down` or a reboot
    #[command(after_help = "Example:
  taut guest up --default bbr")]
    Up {
        /// Make it the default of new connections in this network namespace: bbr or cubic
        #[arg(long, value_name = "NAME", help_heading = "Congestion control")]
        default: Option<Control>,

        #[command(flatten)]
        _file: FileArgs,
    },
    /// Unload them and restore the default
    #[command(after_help = "Example:
  taut guest down")]
    Down,
    /// Show how often this machine is descheduled, what was done about it, and whether it matters
    #[command(after_help = "Example:
  taut guest status --for 1m")]
    Status {
        /// Watch for this time [default: 10s if nothing is loaded, else since the programs were loaded]
        #[arg(long = "for", value_name = "TIME", value_parser = crate::top::interval, help_heading = "Measurement")]
        time: Option<Duration>,

        /// Print one JSON object
        #[arg(long, help_heading = "Output")]
        json: bool,

        /// Print metrics for node_exporter's textfile collector: counters since the programs were loaded
        #[arg(long, conflicts_with_all = ["json", "time"], help_heading = "Output")]
        prometheus: bool,
    },
}

/// Returns what it may do.
pub(crate) fn confinement(args: &Args) -> Confinement {
    let changes = !matches!(args.command, Command::Status { .. });
    if changes {
        // The sandbox allows a directory only if it exists. An error is reported with the lock.
        let _ = JobDir::create(Path::new(load::DIRECTORY));
    }
    confine::guest(args.sandbox, changes)
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match args.command {
        Command::Up { default, .. } => up(default),
        Command::Down => down(),
        Command::Status {
            prometheus: true, ..
        } => metrics(),
        Command::Status { time, json, .. } => status(time, json),
    }
}

fn up(default: Option<Control>) -> Result<(), Failure> {
    let lock = Lock::take().map_err(failure)?;
    let up = load::up(&lock, default).map_err(failure)?;
    if !up.already.is_empty() {
        say(&format!("{} already loaded", are(&up.already)));
    }
    if !up.loaded.is_empty() {
        let loaded = are(&up.loaded);
        say(&format!(
            "{loaded} loaded, until `taut guest down` or a reboot"
        ));
    }
    up.warnings.iter().for_each(|warning| say(warning));
    let Some(control) = default else {
        return Ok(());
    };
    default_control::set(control, &lock).map_err(failure)?;
    say(&format!(
        "new connections in this network namespace use {control}"
    ));
    Ok(())
}

pub(crate) fn down() -> Result<(), Failure> {
    let lock = Lock::take().map_err(failure)?;
    // Restored first, because the default keeps a congestion control in the kernel.
    match default_control::restore(&lock).map_err(failure)? {
        Restored::Untouched => {}
        Restored::To(before) => say(&format!("the default congestion control is {before} again")),
        Restored::Gone => say(
            "the network namespace in which the default congestion control was changed is gone, and with it its default",
        ),
        Restored::Others(now) => say(&format!(
            "the default congestion control stays {now}, which another program has set since"
        )),
    }
    match load::down(&lock).map_err(failure)? {
        true => say(
            "the congestion controls are unloaded; connections that use them keep them until they end",
        ),
        false => say("nothing was loaded"),
    }
    Ok(())
}

fn status(time: Option<Duration>, json: bool) -> Result<(), Failure> {
    let watch = Watch::open().map_err(failure)?;
    let time = time.or_else(|| (!watch.is_up()).then_some(WATCH));
    if let Some(time) = time.filter(|_| io::stderr().is_terminal()) {
        let time = humantime::format_duration(time);
        say(&format!("watching for {time}; Ctrl-C ends it earlier"));
    }
    let report = report(&watch, time)?;
    let text = match json {
        true => Versioned::new(&report).pretty().map_err(failure)?,
        false => report.to_string(),
    };
    crate::failure::print(&text)
}

/// Returns what `status` prints of the programs that are loaded.
pub(crate) fn since_load() -> Result<String, Failure> {
    Ok(report(&Watch::open().map_err(failure)?, None)?.to_string())
}

fn metrics() -> Result<(), Failure> {
    let watch = Watch::open().map_err(failure)?;
    // A counter has to cover all time, and a collector does not wait.
    let time = (!watch.is_up()).then_some(Duration::ZERO);
    crate::failure::print(&textfile::metrics(&report(&watch, time)?))
}

/// Returns the report on `time` from now, or on all time since the programs were loaded.
fn report(watch: &Watch, time: Option<Duration>) -> Result<Report, Failure> {
    let (before, watched) = match time {
        Some(time) => (watch.sample().map_err(failure)?, wait(time)?),
        None => (watch.at_load(), watch.age()),
    };
    let now = watch.sample().map_err(failure)?;
    let cpus = watch.cpus();
    let each = now.gaps_since(&before);
    let gaps = Gaps::sum(&each);
    let shares = each.iter().map(|gaps| gaps.share(watched, 1));
    Ok(Report {
        is_up: watch.is_up(),
        controls: watch.controls().to_vec(),
        default: default_control::current(),
        cpus,
        watched,
        gap_share: gaps.share(watched, cpus),
        worst_gap_share: shares.fold(0.0, f64::max),
        verdict: Descheduling::of(&each, watched),
        gaps,
        steal_share: now.steal_share_since(&before),
        counts: now.counts.since(&before.counts),
        module: module::counters(),
    })
}

/// Waits until the time is over or a signal arrives. Returns the time waited.
fn wait(time: Duration) -> Result<Duration, Failure> {
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&ends))
            .map_err(|e| Failure::Run(format!("cannot handle signals: {e}")))?;
    }
    let began = Instant::now();
    while !ends.load(Ordering::Relaxed) && began.elapsed() < time {
        std::thread::sleep(NAP.min(time.saturating_sub(began.elapsed())));
    }
    Ok(began.elapsed())
}

/// Returns the subject and the verb of a sentence about congestion controls, of which there is at least one.
fn are(controls: &[Control]) -> String {
    let names: Vec<_> = controls.iter().map(Control::to_string).collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(" and "))
}

fn failure(error: impl std::fmt::Display) -> Failure {
    Failure::Run(error.to_string())
}
