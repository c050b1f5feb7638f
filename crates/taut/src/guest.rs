//! `taut guest`: loads and unloads the congestion controls, and reports on off-CPU gaps.

use std::io::{self, Write as _};
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
use taut_guest::verdict::Descheduling;
use taut_guest::watch::Watch;

use crate::Failure;
use crate::confine::{self, Confinement, SandboxArgs};

/// The time that `status` watches by default if nothing is loaded.
const WATCH: Duration = Duration::from_secs(10);
/// The interval at which a wait checks for signals.
const NAP: Duration = Duration::from_millis(50);

/// Correct congestion control in a virtual machine that is descheduled
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  taut guest status                          whether this machine is descheduled, and whether that matters
  taut guest up                              load taut_bbr and taut_cubic, for programs that ask for them
  taut guest up --default bbr                and make taut_bbr the default of new connections
  taut guest down                            unload them and restore the default")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    sandbox: SandboxArgs,
}

#[derive(Subcommand)]
enum Command {
    /// Load taut_bbr and taut_cubic, until `down` or a reboot
    Up {
        /// Make it the default of new connections in this network namespace: bbr or cubic
        #[arg(long, value_name = "NAME")]
        default: Option<Control>,
    },
    /// Unload them and restore the default
    Down,
    /// Show how often this machine is descheduled, what was done about it, and whether it matters
    Status {
        /// Watch for this time [default: 10s if nothing is loaded, else since the programs were loaded]
        #[arg(long = "for", value_name = "TIME", value_parser = crate::top::interval)]
        time: Option<Duration>,

        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Returns what it may do.
pub(crate) fn confinement(args: &Args) -> Confinement {
    confine::guest(args.sandbox)
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match args.command {
        Command::Up { default } => up(default),
        Command::Down => down(),
        Command::Status { time, json } => status(time, json),
    }
}

fn up(default: Option<Control>) -> Result<(), Failure> {
    let lock = Lock::take().map_err(failure)?;
    let up = load::up(&lock).map_err(failure)?;
    match up.was_up {
        true => say("taut_bbr and taut_cubic are already loaded"),
        false => say("taut_bbr and taut_cubic are loaded, until `taut guest down` or a reboot"),
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
        Restored::Others(now) => say(&format!(
            "the default congestion control stays {now}, which another program has set since"
        )),
    }
    match load::down(&lock).map_err(failure)? {
        true => say(
            "taut_bbr and taut_cubic are unloaded; connections that use them keep them until they end",
        ),
        false => say("nothing was loaded"),
    }
    Ok(())
}

fn status(time: Option<Duration>, json: bool) -> Result<(), Failure> {
    let watch = Watch::open().map_err(failure)?;
    let time = time.or_else(|| (!watch.is_up()).then_some(WATCH));
    let report = report(&watch, time)?;
    let text = match json {
        true => serde_json::to_string_pretty(&report).unwrap_or_default() + "\n",
        false => report.to_string(),
    };
    match io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Run(format!(
            "cannot write to standard output: {e}"
        ))),
        _ => Ok(()),
    }
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

fn failure(error: impl std::fmt::Display) -> Failure {
    Failure::Run(error.to_string())
}

fn say(sentence: &str) {
    // The reader of standard error may be gone; the error is ignored.
    let _ = writeln!(io::stderr(), "taut: {sentence}");
}
