//! A node as a process: signals, metrics over HTTP, and names that are looked up again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use crate::config::Config;
use crate::exposition;
use crate::node::{Node, SharedHandle, StartError, WorkerLost};

/// How often a draining node says how many sessions are left.
const DRAIN_REPORT: Duration = Duration::from_secs(5);

/// Names looked up at one time; more wait.
const LOOK_UPS: usize = 16;

/// Why the process ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The metrics' address cannot be listened on.
    #[error("cannot serve metrics on {addr}: {source}; choose another relay.metrics")]
    Metrics {
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// It could not go on.
    #[error(transparent)]
    Lost(#[from] WorkerLost),
    /// The control thread's own set-up failed.
    #[error("cannot set up signals and timers: {0}")]
    Control(#[from] std::io::Error),
}

/// Runs a node until SIGTERM or SIGINT has drained it; a second signal, or
/// `timeouts.drain`, resets what is left.
///
/// # Errors
/// [`ServeError`]: it did not start, and then nothing was started, or a worker was lost.
pub fn run(config: &Config) -> Result<(), ServeError> {
    // The workers have threads of their own; this one has little to do.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(LOOK_UPS)
        .build()?;
    let result = runtime.block_on(serve(config));
    // A look-up that hangs must not hold up the end.
    runtime.shutdown_background();
    result
}

async fn serve(config: &Config) -> Result<(), ServeError> {
    // First, so that a signal during the start is not lost.
    let mut stop = Stop::listen()?;
    ignore_hangups()?;

    let metrics = match config.metrics {
        Some(addr) => Some(
            TcpListener::bind(addr)
                .await
                .map_err(|source| ServeError::Metrics { addr, source })?,
        ),
        None => None,
    };
    // It looks names up, which may take long.
    let start = tokio::task::spawn_blocking({
        let config = config.clone();
        move || Node::start(&config)
    });
    let mut node = tokio::select! {
        started = start => started.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))?,
        () = stop.asked() => return Ok(()),
    };
    if let Some(listener) = metrics {
        tracing::info!(addr = %listener.local_addr()?, "serving OpenMetrics at /metrics");
        tokio::spawn(exposition::serve(listener, node.metrics()));
    }
    for forward in node.handle().names() {
        tokio::spawn(look_up_again(
            config.timeouts.resolve,
            node.handle(),
            forward,
        ));
    }

    tokio::select! {
        ended = node.ended() => return Ok(ended?),
        () = stop.asked() => {}
    }
    drain(&mut node, config.timeouts.drain, stop.asked()).await
}

/// SIGTERM and SIGINT.
struct Stop {
    term: Signal,
    int: Signal,
}

impl Stop {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! { _ = self.term.recv() => {}, _ = self.int.recv() => {} }
    }
}

/// SIGHUP is what is sent to make a server read its configuration again; its default is to kill.
fn ignore_hangups() -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            tracing::warn!(
                "SIGHUP: the configuration is read at the start only; restart to apply it"
            );
        }
    });
    Ok(())
}

async fn drain(
    node: &mut Node,
    patience: Duration,
    hurry: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let metrics = node.metrics();
    tracing::info!(
        sessions = metrics.sessions(),
        ?patience,
        "draining: no new connections"
    );
    node.drain();
    let deadline = sleep_until(Instant::now() + patience);
    let mut report = interval_at(Instant::now() + DRAIN_REPORT, DRAIN_REPORT);
    tokio::pin!(deadline, hurry);
    loop {
        tokio::select! {
            ended = node.ended() => {
                tracing::info!("stopped; every session had ended");
                return Ok(ended?);
            }
            () = &mut deadline => break,
            () = &mut hurry => break,
            _ = report.tick() => tracing::info!(sessions = metrics.sessions(), "draining"),
        }
    }
    tracing::warn!(
        sessions = metrics.sessions(),
        "stopped; resetting the sessions that are left"
    );
    node.stop();
    Ok(node.ended().await?)
}

/// Looks a destination up again from time to time, on a thread that may block.
async fn look_up_again(every: Duration, node: Arc<SharedHandle>, forward: usize) {
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let node = node.clone();
        // A panic in the resolver must not end the look-ups.
        let _ = tokio::task::spawn_blocking(move || node.refresh(forward)).await;
    }
}
