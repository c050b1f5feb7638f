//! Runs `taut watch`: scans, reports, files and metrics, until its time is over or a signal stops it.

use std::io::{self, BufWriter, ErrorKind, Stdout, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use taut_exposition::SpawnError;
use taut_sys::listen::Listen;

use super::files::{DirError, Files, Lost, Rotation};
use super::line::Line;
use super::metrics::Metrics;
use super::{Report, ReportSink, Watcher};
use crate::owner::Process;
use crate::scan::{ScanError, ScanSummary};
use crate::verdict::Factor;

/// Time between two polls for ended connections. Reports that the kernel drops meanwhile are
/// counted.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// Options of the job.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time between scans.
    pub interval: Duration,
    /// How long to watch; `None`: until a signal.
    pub time: Option<Duration>,
    /// Time between reports of open connections; `None`: open connections are not reported.
    pub open_every: Option<Duration>,
    /// The directory for files, and their rotation; `None`: lines go to standard output.
    pub to: Option<(PathBuf, Rotation)>,
    /// The address at which metrics are served.
    pub metrics: Option<Listen>,
}

/// Why the job ended.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The connections cannot be scanned.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The directory cannot be used.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// Standard output cannot be written to.
    #[error("cannot write to standard output: {0}")]
    Write(io::Error),
    /// Metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] SpawnError),
    /// A signal handler cannot be set up.
    #[error("cannot start: {0}")]
    Begin(io::Error),
}

/// The destination of records.
enum Output {
    Files(Files),
    Stdout(BufWriter<Stdout>),
}

/// Writes reports and counts them.
struct Recorder {
    output: Output,
    metrics: Metrics,
    line: Vec<u8>,
    /// The error of the last write, which is logged once.
    fault: Option<io::ErrorKind>,
    /// Standard output is closed or cannot be written to.
    end: Option<io::Error>,
}

/// Watches until the time is over, until SIGTERM or SIGINT, or until standard output is closed. Calls `after` after each
/// scan.
///
/// # Errors
/// [`WatchError`]. Earlier reports are written.
pub fn run(
    mut watcher: Watcher,
    options: &Options,
    mut after: impl FnMut(&Watcher, &ScanSummary),
) -> Result<(), WatchError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        flag::register(signal, stop.clone()).map_err(WatchError::Begin)?;
    }
    let mut recorder = Recorder::new(options)?;
    if let Some(addr) = options.metrics {
        taut_exposition::spawn(addr, "watch-metrics", recorder.metrics.exposition())?;
    }
    let mut next_scan = Instant::now();
    // A time beyond what the clock can count never ends.
    let end = options
        .time
        .and_then(|time| Instant::now().checked_add(time));
    let is_over = || end.is_some_and(|end| Instant::now() >= end);
    let mut next_open = options.open_every.map(|every| Instant::now() + every);
    while !stop.load(Ordering::Relaxed) && !is_over() && recorder.end.is_none() {
        let now = Instant::now();
        if now >= next_scan {
            let summary = watcher.scan(&mut recorder)?;
            after(&watcher, &summary);
            let observer = watcher.observer();
            recorder
                .metrics
                .scanned(observer.kept(), observer.left_out(), watcher.counts());
            // A scan that takes too long delays the next ones.
            next_scan = (next_scan + options.interval).max(Instant::now());
        } else {
            watcher.poll(&mut recorder);
        }
        if let (Some(at), Some(every)) = (next_open, options.open_every)
            && now >= at
        {
            watcher.report_open(&mut recorder);
            next_open = Some((at + every).max(now));
        }
        recorder.flush();
        let next = next_scan.min(Instant::now() + POLL_EVERY);
        let next = end.map_or(next, |end| next.min(end));
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    watcher.finish(&mut recorder);
    recorder.close();
    match recorder.end {
        Some(e) if e.kind() != ErrorKind::BrokenPipe => Err(WatchError::Write(e)),
        _ => Ok(()),
    }
}

/// Returns the loss of one record.
fn one(error: io::Error) -> Lost {
    Lost { records: 1, error }
}

// === impl Recorder ===

impl Recorder {
    fn new(options: &Options) -> Result<Self, WatchError> {
        let output = match &options.to {
            Some((dir, rotation)) => Output::Files(Files::in_dir(dir, *rotation)?),
            None => Output::Stdout(BufWriter::new(io::stdout())),
        };
        Ok(Self {
            output,
            metrics: Metrics::default(),
            line: Vec::new(),
            fault: None,
            end: None,
        })
    }

    /// Writes buffered lines, so that readers see them soon.
    fn flush(&mut self) {
        let now = SystemTime::now();
        let flushed = match &mut self.output {
            Output::Files(files) => files.flush(now),
            Output::Stdout(out) => out.flush().map_err(one),
        };
        match flushed {
            Ok(()) if self.fault.take().is_some() => {
                tracing::info!("records can be written again");
            }
            Ok(()) => {}
            Err(lost) => self.failed(lost),
        }
    }

    fn close(&mut self) {
        let closed = match &mut self.output {
            Output::Files(files) => files.close(),
            Output::Stdout(out) => out.flush().map_err(one),
        };
        if let Err(lost) = closed {
            self.failed(lost);
        }
    }

    fn failed(&mut self, Lost { records, error }: Lost) {
        self.metrics.lost(records);
        if let Output::Stdout(_) = self.output {
            self.end = Some(error);
        } else if self.fault.replace(error.kind()) != Some(error.kind()) {
            tracing::error!(%error, records, "records are lost; taut watch continues");
        }
    }
}

impl ReportSink for Recorder {
    fn report(&mut self, report: &Report<'_>) {
        self.metrics.report(report);
        if self.end.is_some() {
            return;
        }
        let now = SystemTime::now();
        let record = Line::of(report, now);
        self.line.clear();
        let text = record.write(&mut self.line);
        let text = text.map_err(|error| one(error.into()));
        let written = text.and_then(|()| match &mut self.output {
            Output::Files(files) => files.write(now, &self.line),
            Output::Stdout(out) => out.write_all(&self.line).map_err(one),
        });
        if let Err(lost) = written {
            self.failed(lost);
        }
    }

    fn limited(&mut self, process: Option<&Process>, factor: Factor, seconds: f64) {
        self.metrics.limited(process, factor, seconds);
    }
}
