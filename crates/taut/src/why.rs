//! `taut why`.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write as _};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use indicatif::{ProgressBar, ProgressStyle};
use taut_observe::filter::Filter;
use taut_observe::observer::{Observer, Seen};
use taut_observe::record::Record;
use taut_observe::verdict::{Confidence, Factor, Verdict, verdict};

use crate::Failure;
use crate::observe::{Missing, Which};

/// Between looks, unless they would take more than a tenth of a core.
const BETWEEN: Duration = Duration::from_millis(100);
/// Looks that are kept of each connection.
const SAMPLES: usize = 60;
/// Connections that are kept, if nothing else is said: 50 kB each.
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
    let progress = progress(args.time);
    let mut missing = Missing::default();
    let began = Instant::now();
    loop {
        let look = Instant::now();
        let looked = observer
            .look(&filter)
            .map_err(|e| Failure::Run(e.to_string()))?;
        let cost = look.elapsed();
        progress.suspend(|| missing.say(&observer, &looked));
        progress.set_position(began.elapsed().as_millis() as u64);
        let left = args.time.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(between.max(cost * 10).saturating_sub(cost).min(left));
    }
    progress.finish_and_clear();
    let text = tell(args, &observer, &filter).map_err(|e| Failure::Run(e.to_string()))?;
    match io::stdout().write_all(text.as_bytes()) {
        // Nobody reads any more.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|e| Failure::Run(format!("cannot write: {e}"))),
    }
}

fn progress(time: Duration) -> ProgressBar {
    // It is drawn only at a terminal.
    let bar = ProgressBar::new(time.as_millis() as u64);
    let style = ProgressStyle::with_template("watching {wide_bar} {eta}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn tell(args: &Args, observer: &Observer, filter: &Filter) -> serde_json::Result<String> {
    let mut judged: Vec<(Seen<'_>, Option<Verdict>, u64)> = observer
        .seen(filter)
        .map(|seen| {
            let window = seen.tracked.window();
            let context = observer.context(&seen);
            let carried = window.as_ref().map_or(0, |window| {
                window.more(|info| info.bytes_acked) + window.more(|info| info.bytes_received)
            });
            (
                seen,
                window.map(|window| verdict(&window, &context)),
                carried,
            )
        })
        .collect();
    judged.sort_by_key(|(seen, _, carried)| (std::cmp::Reverse(*carried), seen.cookie));
    let mut text = String::new();
    if args.json {
        for (seen, verdict, _) in judged {
            let record = Record::of(seen.cookie, seen.tracked, seen.process, verdict);
            text.push_str(&serde_json::to_string(&record)?);
            text.push('\n');
        }
        return Ok(text);
    }
    let watched = observer.elapsed().as_secs_f64();
    match judged.len() {
        0 => return Ok(format!("no such connection in {watched:.1} s\n")),
        1 => {}
        count => text.push_str(&format!(
            "{count} connections in {watched:.1} s{}\n\n",
            summary(&judged)
        )),
    }
    for (seen, verdict, _) in judged.iter().take(args.explain) {
        text.push_str(&explain(seen, verdict.as_ref()));
        text.push('\n');
    }
    Ok(text)
}

/// How many are limited by what.
fn summary(judged: &[(Seen<'_>, Option<Verdict>, u64)]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, verdict, _) in judged {
        let factor = verdict
            .as_ref()
            .map_or(Factor::Unclear, |verdict| verdict.factor);
        *counts.entry(factor.name()).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let words: Vec<_> = counts
        .iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    format!(": {}", words.join(", "))
}

fn explain(seen: &Seen<'_>, verdict: Option<&Verdict>) -> String {
    let connection = &seen.tracked.last().connection;
    let who = match seen.process {
        Some(process) => format!(" ({}, pid {})", process.name, process.pid),
        None => String::new(),
    };
    let mut text = format!("{} -> {}{who}\n", connection.local, connection.remote);
    let Some(verdict) = verdict else {
        let state = connection.state.name();
        text.push_str(&format!(
            "  was seen only once, or is not open yet ({state})\n"
        ));
        return text;
    };
    let doubt = match verdict.confidence {
        Confidence::Sure => "",
        Confidence::Likely => " (likely)",
        Confidence::Unclear => " (not clear)",
    };
    text.push_str(&format!("  {}{doubt}\n", verdict.factor.sentence()));
    for evidence in &verdict.evidence {
        text.push_str(&format!("    {}\n", evidence.text));
    }
    if let Some(remedy) = &verdict.remedy {
        text.push_str(&format!("  what helps: {remedy}\n"));
    }
    text
}
