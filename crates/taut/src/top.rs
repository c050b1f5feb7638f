//! `taut top`: arguments, and the output without a terminal.

use std::io::{self, BufWriter, ErrorKind, IsTerminal as _, Write};
use std::time::{Duration, Instant, SystemTime};

use clap::Args as ClapArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use taut_observe::ended::Groups;
use taut_observe::filter::{Filter, Subject};
use taut_observe::observer::{Observed, Observer};
use taut_observe::record::Record;
use taut_observe::screen;
use taut_observe::versioned::Versioned;
use taut_observe::view::{self, Row, Sort};

use crate::confine;
use crate::failure::Failure;
use crate::observe::{ConnectionArgs, Ends, Missing, filter_help, wait_until};

/// The number of samples that a verdict is based on.
const SAMPLES: usize = 6;
/// The default number of connections kept, 7 kB each.
const CONNECTIONS: usize = 100_000;

/// Show what each TCP connection is doing, and what limits it
#[derive(ClapArgs)]
#[command(after_help = concat!("Examples:
  taut top                           a live table; press ? for the keys
  taut top --batch                   a table each second, the fastest first
  taut top --batch -n 2 dport 443    two tables; rates appear in the second
  taut top --json | jq .             a line for each connection and scan

",
    filter_help!()
))]
pub(crate) struct Args {
    #[command(flatten)]
    connections: ConnectionArgs,

    /// Print tables one after the other, for scripts
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    batch: bool,

    /// Print a line of JSON for each connection and scan
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// Time between scans
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval, help_heading = "Scans")]
    interval: Duration,

    /// With --batch or --json: stop after this many scans [default: never]
    #[arg(short = 'n', long, value_name = "COUNT", help_heading = "Scans")]
    scans: Option<u64>,

    /// With --batch or --json: print at most this many lines a scan
    #[arg(long, value_name = "COUNT", help_heading = "Output")]
    rows: Option<usize>,

    /// Sort the lines by this key
    #[arg(long, value_name = "KEY", default_value = Sort::default().name(), value_parser = sort(), help_heading = "Output")]
    sort: Sort,
}

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    /// The time of the scan (RFC 3339, UTC).
    time: &'a str,
    #[serde(flatten)]
    record: Record<'a>,
}

/// Parses the name of a sort key.
fn sort() -> impl TypedValueParser<Value = Sort> {
    let names = PossibleValuesParser::new(Sort::ALL.iter().map(|sort| sort.name()));
    names.map(|name| {
        let mut all = Sort::ALL.iter().copied();
        all.find(|sort| sort.name() == name).unwrap_or_default()
    })
}

/// Parses a time. A number without a unit is in seconds.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => humantime::parse_duration(text).map_err(|e| e.to_string()),
    }
}

/// Parses a time between scans, as [`time`] does.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    match time(text)? {
        time if time < Duration::from_millis(10) => Err("must be at least 10ms".into()),
        time if time > Duration::from_secs(3600) => Err("must be at most 1h".into()),
        time => Ok(time),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    confine::observer(args.connections.sandbox()).enter()?.say();
    let filter = args.connections.filter()?;
    let mut observer = args
        .connections
        .observer(CONNECTIONS, SAMPLES, Ends::Recorded);
    observer.measure_cpu_time();
    let mut missing = Missing::default();
    if !args.batch && !args.json {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            let what = "standard input or output is not a terminal: use --batch or --json";
            return Err(Failure::Usage(what.into()));
        }
        if args.scans.is_some() || args.rows.is_some() {
            let what = "--scans and --rows need --batch or --json";
            return Err(Failure::Usage(what.into()));
        }
        let options = screen::Options {
            filter: args.connections.text(),
            interval: args.interval,
            sort: args.sort,
        };
        let missing = |observer: &Observer, summary: &_| missing.sentence(observer, summary);
        return screen::run(&mut observer, filter, &options, missing)
            .map_err(|e| Failure::Run(e.to_string()));
    }
    let mut next = Instant::now();
    let mut left = args.scans;
    let mut ended = Groups::default();
    while left != Some(0) {
        let summary = observer
            .scan(&filter)
            .map_err(|e| Failure::Run(e.to_string()))?;
        poll_ended(&mut observer, &filter, &mut ended);
        match args.print(&observer, &filter, &std::mem::take(&mut ended)) {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(()),
            printed => printed.map_err(|e| Failure::Run(format!("cannot write: {e}")))?,
        }
        missing.report(&observer, &summary);
        left = left.map(|left| left - 1);
        // A scan that takes too long delays the next ones.
        next = (next + args.interval).max(Instant::now());
        if left != Some(0) {
            wait_until(next, || poll_ended(&mut observer, &filter, &mut ended));
        }
    }
    Ok(())
}

fn poll_ended(observer: &mut Observer, filter: &Filter, ended: &mut Groups) {
    observer.poll_ended(|one| {
        if filter.matches(&Subject::of_ended(one)) {
            ended.add(one);
        }
    });
}

// === impl Args ===

impl Args {
    fn print(&self, observer: &Observer, filter: &Filter, ended: &Groups) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        // If all rows are printed, their limits cost less while their samples are in the cache.
        let needs_limits = !self.json && self.rows.is_none() || self.sort == Sort::Trouble;
        let mut rows: Vec<(Row, Observed<'_>)> = Vec::with_capacity(observer.kept());
        rows.extend(observer.connections(filter).map(|observed| {
            let row = Row::of(&observed);
            match needs_limits {
                true => (row.with_limit(observer.limit(&observed)), observed),
                false => (row, observed),
            }
        }));
        let mut rows: Vec<_> = rows.iter_mut().collect();
        view::sort_by(&mut rows, |(row, _)| row, self.sort);
        rows.truncate(self.rows.unwrap_or(usize::MAX));
        if self.json {
            for (_, observed) in &rows {
                let verdict = observer.verdict(observed);
                let record =
                    Record::of(observed.cookie, observed.tracked, observed.process, verdict);
                let line = Line {
                    time: &time,
                    record,
                };
                serde_json::to_writer(&mut out, &Versioned::new(line))?;
                out.write_all(b"\n")?;
            }
            out.write_all(ended.json()?.as_bytes())?;
        } else {
            if !needs_limits {
                for (row, observed) in &mut rows {
                    row.limit = observer.limit(observed);
                }
            }
            writeln!(out, "{time}")?;
            view::table(rows.iter().map(|(row, _)| row), &mut out)?;
            if let Some(line) = ended.line() {
                writeln!(out, "{line}")?;
            }
            out.write_all(b"\n")?;
        }
        out.flush()
    }
}
