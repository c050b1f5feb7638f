//! `taut top`.

use std::io::{self, BufWriter, ErrorKind, IsTerminal as _, Write};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use taut_observe::filter::Filter;
use taut_observe::observer::{Observer, Seen};
use taut_observe::record::Record;
use taut_observe::screen;
use taut_observe::view::{self, Row, Sort};

use crate::Failure;
use crate::observe::{Missing, Which};

/// Looks that a verdict rests on.
const SAMPLES: usize = 6;
/// Connections that are kept, if nothing else is said: 7 kB each.
const CONNECTIONS: usize = 100_000;

/// What each TCP connection is doing, and what limits it
#[derive(ClapArgs)]
#[command(after_help = "\
  taut top                           a table that goes on; ? for its keys
  taut top --batch                   a table each second, the fastest first
  taut top --batch -n 2 dport 443    of these only; rates and limits are there from the second on
  taut top --json | jq .             a line for each connection and look")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    /// Tables one after the other, for scripts
    #[arg(long, conflicts_with = "json")]
    batch: bool,

    /// A line of JSON for each connection and look
    #[arg(long)]
    json: bool,

    /// Between looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,

    /// With --batch and --json: so many looks; without it there is no end
    #[arg(short = 'n', long, value_name = "COUNT")]
    looks: Option<u64>,

    /// With --batch and --json: so many lines at most
    #[arg(long, value_name = "COUNT")]
    rows: Option<usize>,

    /// By what the lines are sorted
    #[arg(long, value_name = "KEY", default_value = Sort::default().name(), value_parser = sort())]
    sort: Sort,
}

/// The name of an order.
fn sort() -> impl TypedValueParser<Value = Sort> {
    let names = PossibleValuesParser::new(Sort::ALL.map(Sort::name));
    names.map(|name| {
        Sort::ALL
            .into_iter()
            .find(|sort| sort.name() == name)
            .unwrap_or_default()
    })
}

/// A time between looks.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    match time {
        time if time < Duration::from_millis(10) => Err("10ms at least".into()),
        time if time > Duration::from_secs(3600) => Err("1h at most".into()),
        time => Ok(time),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let filter = args.which.filter()?;
    let mut observer = args.which.observer(CONNECTIONS, SAMPLES);
    let mut missing = Missing::default();
    if !args.batch && !args.json {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            let what = "there is no terminal: use --batch, or --json";
            return Err(Failure::Usage(what.into()));
        }
        if args.looks.is_some() || args.rows.is_some() {
            let what = "--looks and --rows need --batch or --json";
            return Err(Failure::Usage(what.into()));
        }
        let options = screen::Options {
            filter: args.which.text(),
            interval: args.interval,
            sort: args.sort,
        };
        let missing = |observer: &Observer, summary: &_| missing.sentence(observer, summary);
        return screen::run(&mut observer, filter, &options, missing)
            .map_err(|e| Failure::Run(e.to_string()));
    }
    let mut next = Instant::now();
    let mut left = args.looks;
    while left != Some(0) {
        let summary = observer
            .scan(&filter)
            .map_err(|e| Failure::Run(e.to_string()))?;
        missing.say(&observer, &summary);
        match args.tell(&observer, &filter) {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(()),
            told => told.map_err(|e| Failure::Run(format!("cannot write: {e}")))?,
        }
        left = left.map(|left| left - 1);
        // A look that took too long is not made up for.
        next = (next + args.interval).max(Instant::now());
        if left != Some(0) {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }
    Ok(())
}

// === impl Args ===

impl Args {
    fn tell(&self, observer: &Observer, filter: &Filter) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
        let mut seen: Vec<(Row, Seen<'_>)> = observer
            .seen(filter)
            .map(|seen| (Row::of(&seen), seen))
            .collect();
        view::sort_by(&mut seen, |(row, _)| row, self.sort);
        seen.truncate(self.rows.unwrap_or(usize::MAX));
        if self.json {
            for (_, seen) in &seen {
                let verdict = observer.verdict(seen);
                let record = Record::of(seen.cookie, seen.tracked, seen.process, verdict);
                serde_json::to_writer(&mut out, &record)?;
                out.write_all(b"\n")?;
            }
        } else {
            let rows = seen
                .into_iter()
                .map(|(row, seen)| row.judged(observer.limit(&seen)));
            view::table(rows, &mut out)?;
            out.write_all(b"\n")?;
        }
        out.flush()
    }
}
