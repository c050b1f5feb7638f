//! `taut why`: observes for some seconds and explains what limits connections.

mod with;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use taut_observe::explain;
use taut_observe::observation::Observation;
use taut_tune::log;

use self::with::{Started, WithArgs};
use crate::confine;
use crate::failure::Failure;
use crate::observe::{ConnectionArgs, Ends, Missing, filter_help, wait_until};
use crate::terminal;

/// The time between scans; longer if scans would take more than a tenth of a core.
const BETWEEN: Duration = Duration::from_millis(100);
/// The number of samples kept of each connection.
const SAMPLES: usize = 60;
/// The default number of connections kept, 57 kB each.
const CONNECTIONS: usize = 10_000;

/// Explain what limits connections
#[derive(ClapArgs)]
#[command(after_help = concat!("Examples:
  taut why                                   those with the most trouble first
  taut why nginx                             those of processes of this name
  taut why dst 10.0.0.0/8 and dport 443      to these addresses and this port
  taut why dport 443 --with root@web1        from both ends, by ssh to the other

It observes for some seconds and then explains. It changes nothing.

",
    filter_help!()
))]
pub(crate) struct Args {
    #[command(flatten)]
    connections: ConnectionArgs,

    /// How long to observe
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = watch, help_heading = "Scans")]
    time: Duration,

    /// Print this many paragraphs: those with the most trouble first, then those that carry most
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 10,
        help_heading = "Output"
    )]
    explain: usize,

    /// Print a line of JSON for each connection
    #[arg(long, conflicts_with = "explain", help_heading = "Output")]
    json: bool,

    #[command(flatten)]
    with: WithArgs,

    /// The log in which `taut tune` writes its changes
    #[arg(long, value_name = "FILE", default_value = log::PATH, help_heading = "Output")]
    tune_log: PathBuf,
}

fn watch(text: &str) -> Result<Duration, String> {
    match crate::top::interval(text)? {
        time if time < Duration::from_millis(500) => Err("must be at least 500ms".into()),
        time => Ok(time),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // Outside the sandbox: the user's configuration of ssh may run any program.
    let started = args.with.start(args.time)?;
    confine::explainer(args.connections.sandbox())
        .enter()?
        .say();
    let other = started.map(Started::read).transpose()?;
    let filter = args.connections.filter()?;
    let mut observer = args
        .connections
        .observer(CONNECTIONS, SAMPLES, Ends::Recorded);
    // Scans beyond the number of samples would be wasted.
    let between = BETWEEN.max(args.time / SAMPLES as u32);
    observer.measure_cpu_time();
    if args.connections.counts_events() {
        observer.count_host_drops();
    }
    let mut observation = Observation::new(observer, filter);
    let progress = progress(args.time);
    let mut missing = Missing::default();
    let mut unseen = Vec::new();
    let began = Instant::now();
    // A verdict needs two scans, however long they take. Drops on this host are kept from the second one on.
    let mut is_first = true;
    loop {
        let scan = Instant::now();
        let summary = observation
            .scan()
            .map_err(|e| Failure::Run(e.to_string()))?;
        let cost = scan.elapsed();
        unseen.extend(missing.sentence(observation.observer(), &summary));
        progress.set_position(began.elapsed().as_millis() as u64);
        let left = args.time.saturating_sub(began.elapsed());
        let pause = match std::mem::take(&mut is_first) {
            true => Duration::ZERO,
            false if left.is_zero() => break,
            false => between.max(cost * 10).saturating_sub(cost).min(left),
        };
        wait_until(Instant::now() + pause, || observation.poll());
    }
    observation.poll();
    let dropping = observation.dropping();
    progress.finish_and_clear();
    if !args.json && observation.is_empty() {
        // The second scan finds the owners of what the first one has added. The report is complete without.
        let _ = observation.scan_all().and_then(|_| observation.scan_all());
    }
    let tuned = tuned(&args.tune_log);
    let other = other.map(|other| (other.name.clone(), other.finish()));
    let mut explanations = explain::explanations(&observation, &tuned);
    // A report of the other end that cannot be used does not lose this one.
    let joined = match &other {
        Some((name, Ok(report))) if !explain::join(&mut explanations, name, report) => {
            let (there, here) = (report.len(), explanations.len());
            Err(Failure::Run(format!(
                "--with {name}: its connections ({there}) are none of those here ({here}); do both ends observe at the same time, \
                 with the same filter?"
            )))
        }
        _ => Ok(()),
    };
    let text = match args.json {
        true => explain::json(&explanations, observation.groups(), &dropping)
            .map_err(|e| Failure::Run(e.to_string()))?,
        false => terminal::fitted(&explain::text(
            &explanations,
            &observation,
            &dropping,
            args.explain,
            terminal::emphasis(),
        )),
    };
    let printed = crate::failure::print(&text);
    unseen.iter().for_each(|sentence| crate::log::say(sentence));
    printed?;
    match other {
        Some((_, Err(failure))) => Err(failure),
        _ => joined,
    }
}

/// Returns the changes that `taut tune` made to each connection, as sentences by cookie.
fn tuned(log: &Path) -> HashMap<u64, Vec<String>> {
    match log::read(log) {
        Ok(all) => {
            let sentences =
                |of: Vec<log::LoggedChange>| of.iter().map(log::LoggedChange::sentence).collect();
            all.into_iter()
                .map(|(cookie, of)| (cookie, sentences(of)))
                .collect()
        }
        Err(error) => {
            tracing::debug!(%error, path = %log.display(), "the log of taut tune cannot be read");
            HashMap::new()
        }
    }
}

/// Returns a bar, which is drawn only on a terminal.
fn progress(time: Duration) -> ProgressBar {
    let bar = ProgressBar::new(time.as_millis() as u64);
    let style = ProgressStyle::with_template("watching {wide_bar} {passed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    // An estimate would jump: the first scan takes longer than the others.
    bar.with_style(style.with_key(
        "passed",
        |state: &ProgressState, to: &mut dyn fmt::Write| {
            // Writing to a string cannot fail.
            let _ = to.write_str(&passed(state.pos(), state.len().unwrap_or_default()));
        },
    ))
}

/// Returns how much of a time has passed, both in milliseconds: `2 of 5 s`.
fn passed(elapsed: u64, total: u64) -> String {
    format!(
        "{} of {} s",
        elapsed.min(total) / 1000,
        Duration::from_millis(total).as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_the_time_that_has_passed_of_all() {
        assert_eq!(passed(0, 5000), "0 of 5 s");
        assert_eq!(passed(2999, 5000), "2 of 5 s");
        assert_eq!(passed(5100, 5000), "5 of 5 s");
        assert_eq!(passed(100, 500), "0 of 0.5 s");
    }
}
