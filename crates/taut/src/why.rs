//! `taut why`.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use indicatif::{ProgressBar, ProgressStyle};
use taut_observe::explain;
use taut_tune::log;

use crate::Failure;
use crate::observe::{Missing, Which};

/// Between looks, unless they would take more than a tenth of a core.
const BETWEEN: Duration = Duration::from_millis(100);
/// Looks that are kept of each connection.
const SAMPLES: usize = 60;
/// Connections that are kept, if nothing else is said: 57 kB each.
const CONNECTIONS: usize = 10_000;

/// Explain what limits connections
#[derive(ClapArgs)]
#[command(after_help = "\
  taut why                                   the connections that carry most
  taut why nginx                             of processes of this name
  taut why dst 10.0.0.0/8 and dport 443      to these

It watches for some seconds and then says what it saw. Nothing is changed.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    /// How long it watches
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = watch)]
    time: Duration,

    /// So many connections are explained, those that carry most
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    explain: usize,

    /// A line of JSON for each connection
    #[arg(long, conflicts_with = "explain")]
    json: bool,

    /// Where `taut tune` writes what it has changed
    #[arg(long, value_name = "FILE", default_value = log::PATH)]
    tune_log: PathBuf,
}

fn watch(text: &str) -> Result<Duration, String> {
    match crate::top::interval(text)? {
        time if time < Duration::from_millis(500) => Err("500ms at least".into()),
        time => Ok(time),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let filter = args.which.filter()?;
    let mut observer = args.which.observer(CONNECTIONS, SAMPLES);
    // Not more often than is kept.
    let between = BETWEEN.max(args.time / SAMPLES as u32);
    observer.measure_descheduling();
    let progress = progress(args.time);
    let mut missing = Missing::default();
    let began = Instant::now();
    loop {
        let look = Instant::now();
        let summary = observer
            .scan(&filter)
            .map_err(|e| Failure::Run(e.to_string()))?;
        let cost = look.elapsed();
        progress.suspend(|| missing.say(&observer, &summary));
        progress.set_position(began.elapsed().as_millis() as u64);
        let left = args.time.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(between.max(cost * 10).saturating_sub(cost).min(left));
    }
    progress.finish_and_clear();
    let tuned = tuned(&args.tune_log);
    let judged = explain::judged(&observer, &filter, &tuned);
    let text = match args.json {
        true => explain::json(&judged).map_err(|e| Failure::Run(e.to_string()))?,
        false => explain::text(&judged, observer.elapsed(), args.explain),
    };
    match io::stdout().write_all(text.as_bytes()) {
        // Nobody reads any more.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|e| Failure::Run(format!("cannot write: {e}"))),
    }
}

/// What `taut tune` has done to each connection, by cookie, in sentences.
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

fn progress(time: Duration) -> ProgressBar {
    // It is drawn only at a terminal.
    let bar = ProgressBar::new(time.as_millis() as u64);
    let style = ProgressStyle::with_template("watching {wide_bar} {eta}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
