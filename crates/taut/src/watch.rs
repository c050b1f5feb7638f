//! `taut watch`: the arguments of the command.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args as ClapArgs;
use taut_observe::watch::files::Rotation;
use taut_observe::watch::run::{self, Options, WatchError};
use taut_observe::watch::{Counts, Watcher};
use taut_sys::listen::Listen;

use crate::confine::{self, Confinement};
use crate::failure::Failure;
use crate::observe::{ConnectionArgs, Ends, Missing, filter_help};
use crate::options::FileArgs;

/// The number of samples that a verdict is based on.
const SAMPLES: usize = 6;
/// The default number of connections kept, 7 kB each.
const CONNECTIONS: usize = 100_000;

/// Record each connection when it ends
#[derive(ClapArgs)]
#[command(after_help = concat!("Examples:
  taut watch                                   lines of JSON to standard output
  taut watch --to /var/log/taut --keep 30      to files of up to 100 MB or a day
  taut watch --open-every 1m dport 443         these; open ones every minute too
  taut watch --for 10m > ended.jsonl           end after ten minutes
  taut watch --metrics 127.0.0.1:9466 --to /var/log/taut

It changes nothing. It watches until Ctrl-C or SIGTERM, or for the time given with --for.

",
    filter_help!()
))]
pub(crate) struct Args {
    #[command(flatten)]
    connections: ConnectionArgs,

    #[command(flatten)]
    _file: FileArgs,

    /// Time between scans
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = crate::top::interval, help_heading = "Scans")]
    interval: Duration,

    /// Exit after this time [default: never]
    #[arg(long = "for", value_name = "TIME", value_parser = at_least_a_second, help_heading = "Scans")]
    time: Option<Duration>,

    /// Also record each open connection, at this interval
    #[arg(long, value_name = "TIME", value_parser = crate::top::interval, help_heading = "Scans")]
    open_every: Option<Duration>,

    /// Write to files in this directory, which is created if the one above it exists
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    to: Option<PathBuf>,

    /// With --to: start a new file at this size
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "100MB",
        requires = "to",
        help_heading = "Files"
    )]
    file_size: ByteSize,

    /// With --to: start a new file after this time
    #[arg(long, value_name = "TIME", default_value = "1d", requires = "to", value_parser = at_least_a_second, help_heading = "Files")]
    file_time: Duration,

    /// With --to: keep this many files and delete older ones
    #[arg(long, value_name = "COUNT", default_value_t = 30, requires = "to", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Files")]
    keep: u32,

    /// Serve metrics (OpenMetrics) at http://ADDRESS/metrics
    #[arg(long, value_name = "ADDRESS", help_heading = "Metrics")]
    metrics: Option<Listen>,
}

fn at_least_a_second(text: &str) -> Result<Duration, String> {
    match crate::top::time(text)? {
        time if time < Duration::from_secs(1) => Err("must be at least 1s".into()),
        time => Ok(time),
    }
}

/// Returns what it may do.
pub(crate) fn confinement(args: &Args) -> Confinement {
    confine::observer(args.connections.sandbox())
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let filter = args.connections.filter()?;
    let mut observer = args
        .connections
        .observer(CONNECTIONS, SAMPLES, Ends::Recorded);
    observer.measure_cpu_time();
    let rotation = Rotation {
        size: args.file_size.as_u64(),
        time: args.file_time,
        keep: usize::try_from(args.keep).unwrap_or(usize::MAX),
    };
    let options = Options {
        interval: args.interval,
        time: args.time,
        open_every: args.open_every,
        to: args.to.clone().map(|dir| (dir, rotation)),
        metrics: args.metrics,
    };
    let (mut missing, mut has_said) = (Missing::default(), false);
    let watcher = Watcher::new(observer, filter);
    run::run(watcher, &options, |watcher, summary| {
        missing.report(watcher.observer(), summary);
        // The sentences of the scan say it already if the programs are missing, or their memory.
        let says_why = summary.without_bpf || summary.without_events || summary.without_ends;
        if !(has_said || says_why || summary.without_slot > 0)
            && let Some(sentence) = without_phases(watcher.counts())
        {
            crate::log::say(&sentence);
            has_said = true;
        }
    })
    .map_err(|e| match e {
        WatchError::Dir(e) => Failure::Usage(format!("--to {e}")),
        e => Failure::Run(e.to_string()),
    })
}

/// Returns what to say once more than a hundredth of the ended connections has no phases.
fn without_phases(counts: Counts) -> Option<String> {
    let Counts {
        ended,
        without_phases,
        ..
    } = counts;
    (without_phases >= 10 && without_phases > ended / 100).then(|| {
        format!(
            "{without_phases} of {ended} ended connections have no phases, and some no process: reports of their ends \
             were lost, or came too late; taut_watch_without_phases_total counts them"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_without_phases_are_spoken_of_if_they_are_many() {
        let said = |ended, without| {
            without_phases(Counts {
                ended,
                without_phases: without,
                ..Counts::default()
            })
        };
        assert_eq!(said(100, 9), None);
        assert_eq!(said(10_000, 100), None);
        let sentence = said(10_000, 101).unwrap();
        assert!(
            sentence.starts_with("101 of 10000 ended connections have no phases"),
            "{sentence}"
        );
    }
}
