//! `taut watch`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args as ClapArgs, ValueEnum};
use taut_observe::watch::Watcher;
use taut_observe::watch::files::Rotation;
use taut_observe::watch::run::{self, Options, WatchError};

use crate::Failure;
use crate::observe::{Missing, Which};

/// Looks that a verdict rests on.
const SAMPLES: usize = 6;
/// Connections that are kept, if nothing else is said: 7 kB each.
const CONNECTIONS: usize = 100_000;

/// Write a record of each connection at its end
#[derive(ClapArgs)]
#[command(after_help = "\
  taut watch                                   lines of JSON, to standard output
  taut watch --to /var/log/taut --keep 30      to files there, of 100 MB or a day
  taut watch --open-every 1m dport 443         of these, and of open ones each minute
  taut watch --metrics 127.0.0.1:9466 --to /var/log/taut
  taut watch --format parquet --to /var/log/taut --file-time 1h

Nothing is changed. SIGTERM and SIGINT end it.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    /// Between looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = crate::top::interval)]
    interval: Duration,

    /// A record of each open connection, too, so often
    #[arg(long, value_name = "TIME", value_parser = crate::top::interval)]
    open_every: Option<Duration>,

    /// Write to files in this directory
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,

    /// With --to: what files are. One of Parquet can be read when it is whole, after --file-time at the latest
    #[arg(long, value_enum, default_value_t = Format::Jsonl, requires = "to")]
    format: Format,

    /// With --to: a file is no longer than this
    #[arg(long, value_name = "BYTES", default_value = "100MB", requires = "to")]
    file_size: ByteSize,

    /// With --to: a file is written for no longer than this
    #[arg(long, value_name = "TIME", default_value = "1d", requires = "to", value_parser = file_time)]
    file_time: Duration,

    /// With --to: so many files are kept, and older ones deleted
    #[arg(long, value_name = "COUNT", default_value_t = 30, requires = "to", value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,

    /// Serve metrics (OpenMetrics) at http://ADDRESS/metrics
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Lines of JSON
    Jsonl,
    /// Apache Parquet: a table with a column for each figure
    Parquet,
}

fn file_time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    match time {
        time if time < Duration::from_secs(1) => Err("1s at least".into()),
        time => Ok(time),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let filter = args.which.filter()?;
    let observer = args.which.observer(CONNECTIONS, SAMPLES);
    let rotation = Rotation {
        size: args.file_size.as_u64(),
        time: args.file_time,
        keep: usize::try_from(args.keep).unwrap_or(usize::MAX),
    };
    let format = match args.format {
        Format::Jsonl => run::Format::Lines,
        Format::Parquet => run::Format::Parquet,
    };
    let options = Options {
        interval: args.interval,
        open_every: args.open_every,
        to: args.to.clone().map(|dir| (dir, format, rotation)),
        metrics: args.metrics,
    };
    let mut missing = Missing::default();
    let watcher = Watcher::new(observer, filter);
    run::run(watcher, &options, |observer, summary| {
        missing.say(observer, summary)
    })
    .map_err(|e| match e {
        WatchError::Metrics { .. } | WatchError::Dir { .. } => Failure::Usage(e.to_string()),
        e => Failure::Run(e.to_string()),
    })
}
