//! The job itself: looks, ends, lines and scrapers, until it is told to stop.

use std::io::{self, BufWriter, ErrorKind, Stdout, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::files::{Files, Lost, Rotation};
use super::line::{Line, Lines};
use super::metrics::Metrics;
use super::parquet::{Parquet, row};
use super::{Audience, Told, Watcher};
use crate::observer::Observer;
use crate::owner::Process;
use crate::scan::{ScanError, ScanSummary};
use crate::verdict::Factor;

/// Between two readings of what has ended; what the kernel has no room for in that time is counted.
const HEAR_EVERY: Duration = Duration::from_millis(250);

/// How it is done.
#[derive(Clone, Debug)]
pub struct Options {
    /// Between looks.
    pub interval: Duration,
    /// So often open connections are told of, too.
    pub open_every: Option<Duration>,
    /// Where records go; else to standard output, as lines.
    pub to: Option<(PathBuf, Format, Rotation)>,
    /// Where scrapers ask.
    pub metrics: Option<SocketAddr>,
}

/// Of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lines of JSON.
    Lines,
    /// Apache Parquet.
    Parquet,
}

/// Why it ended.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// There is nothing to see.
    #[error(transparent)]
    Look(#[from] ScanError),
    /// The directory for files.
    #[error("cannot write to {dir}: {source}", dir = dir.display())]
    Dir {
        /// Which.
        dir: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Standard output.
    #[error("cannot write: {0}")]
    Write(io::Error),
    /// The port for scrapers.
    #[error("cannot serve metrics at {addr}: {source}; choose another --metrics")]
    Metrics {
        /// Where.
        addr: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Signals or threads.
    #[error("cannot begin: {0}")]
    Begin(io::Error),
}

/// Where records go.
enum Output {
    Lines(Files<Lines>),
    Parquet(Box<Files<Parquet>>),
    Stdout(BufWriter<Stdout>),
}

/// What is done with what is told.
struct Teller {
    output: Output,
    metrics: Metrics,
    line: Vec<u8>,
    /// Why nothing can be written; said once.
    fault: Option<io::ErrorKind>,
    /// Nobody reads any more, or standard output cannot be written to.
    end: Option<io::Error>,
}

/// Watches until SIGTERM or SIGINT, or until nobody reads standard output any more. `after` is told of each look.
///
/// # Errors
/// [`WatchError`]. What was told by then is written.
pub fn run(
    mut watcher: Watcher,
    options: &Options,
    mut after: impl FnMut(&Observer, &ScanSummary),
) -> Result<(), WatchError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        flag::register(signal, stop.clone()).map_err(WatchError::Begin)?;
    }
    let mut teller = Teller::new(options)?;
    if let Some(addr) = options.metrics {
        teller.serve(addr)?;
    }
    let mut next_look = Instant::now();
    let mut next_open = options.open_every.map(|every| Instant::now() + every);
    while !stop.load(Ordering::Relaxed) && teller.end.is_none() {
        let now = Instant::now();
        if now >= next_look {
            let summary = watcher.scan(&mut teller)?;
            after(watcher.observer(), &summary);
            let observer = watcher.observer();
            teller
                .metrics
                .looked(observer.kept(), observer.left_out(), watcher.counts());
            // A look that took too long is not made up for.
            next_look = (next_look + options.interval).max(Instant::now());
        } else {
            watcher.hear(&mut teller);
        }
        if let (Some(at), Some(every)) = (next_open, options.open_every)
            && now >= at
        {
            watcher.open(&mut teller);
            next_open = Some((at + every).max(now));
        }
        teller.flush();
        let next = next_look.min(Instant::now() + HEAR_EVERY);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    watcher.hear(&mut teller);
    teller.close();
    match teller.end {
        Some(e) if e.kind() != ErrorKind::BrokenPipe => Err(WatchError::Write(e)),
        _ => Ok(()),
    }
}

/// The loss of one record.
fn one(error: io::Error) -> Lost {
    Lost { entries: 1, error }
}

// === impl Teller ===

impl Teller {
    fn new(options: &Options) -> Result<Self, WatchError> {
        let output = match &options.to {
            Some((dir, format, rotation)) => {
                let output = match format {
                    Format::Lines => Files::in_dir(dir, *rotation).map(Output::Lines),
                    Format::Parquet => {
                        Files::in_dir(dir, *rotation).map(|files| Output::Parquet(Box::new(files)))
                    }
                };
                output.map_err(|source| WatchError::Dir {
                    dir: dir.clone(),
                    source,
                })?
            }
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

    /// Serves scrapers, on a thread of its own.
    fn serve(&self, addr: SocketAddr) -> Result<(), WatchError> {
        let listener = TcpListener::bind(addr).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener.map_err(|source| WatchError::Metrics { addr, source })?;
        let exposition = self.metrics.exposition();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let served = runtime.and_then(|runtime| {
                runtime.block_on(async {
                    let listener = tokio::net::TcpListener::from_std(listener)?;
                    taut_exposition::serve(listener, exposition).await;
                    Ok(())
                })
            });
            if let Err(error) = served {
                tracing::error!(%error, "cannot serve metrics");
            }
        };
        let thread = std::thread::Builder::new().name("watch-metrics".into());
        thread.spawn(serve).map(drop).map_err(WatchError::Begin)
    }

    /// Lines are read while they are new.
    fn flush(&mut self) {
        let now = SystemTime::now();
        let flushed = match &mut self.output {
            Output::Lines(files) => files.flush(now),
            Output::Parquet(files) => files.flush(now),
            Output::Stdout(out) => out.flush().map_err(one),
        };
        if let Err(lost) = flushed {
            self.failed(lost);
        }
    }

    fn close(&mut self) {
        let closed = match &mut self.output {
            Output::Lines(files) => files.close(),
            Output::Parquet(files) => files.close(),
            Output::Stdout(out) => out.flush().map_err(one),
        };
        if let Err(lost) = closed {
            self.failed(lost);
        }
    }

    fn failed(&mut self, lost: Lost) {
        self.metrics.lost(lost.entries);
        let e = lost.error;
        if let Output::Stdout(_) = self.output {
            self.end = Some(e);
        } else if self.fault.replace(e.kind()) != Some(e.kind()) {
            tracing::error!(error = %e, records = lost.entries, "records are lost; watching goes on");
        }
    }
}

impl Audience for Teller {
    fn told(&mut self, told: &Told<'_>) {
        self.metrics.told(told);
        if self.end.is_some() {
            return;
        }
        let now = SystemTime::now();
        let record = Line::of(told, now);
        let written = match &mut self.output {
            Output::Parquet(files) => files.write(now, row(&record)),
            lines => {
                self.line.clear();
                let text = record.write(&mut self.line);
                text.map_err(|e| one(e.into())).and_then(|()| match lines {
                    Output::Lines(files) => files.write(now, &self.line),
                    Output::Stdout(out) => out.write_all(&self.line).map_err(one),
                    Output::Parquet(_) => Ok(()),
                })
            }
        };
        match written {
            Ok(()) if self.fault.take().is_some() => {
                tracing::info!("records can be written again");
            }
            Ok(()) => {}
            Err(e) => self.failed(e),
        }
    }

    fn limited(&mut self, process: Option<&Process>, factor: Factor, seconds: f64) {
        self.metrics.limited(process, factor, seconds);
    }
}
