//! A node as a process: signals, metrics over HTTP, and names that are looked up again.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use crate::config::Config;
use crate::exposition;
use crate::node::{Node, StartError, WorkerLost};

/// How often a draining node says how many sessions are left.
const DRAIN_REPORT: Duration = Duration::from_secs(5);

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
        .build()?;
    runtime.block_on(serve(config))
}

async fn serve(config: &Config) -> Result<(), ServeError> {
    // First, so that a signal during the start is not lost.
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;

    let metrics = match config.metrics {
        Some(addr) => Some(
            TcpListener::bind(addr)
                .await
                .map_err(|source| ServeError::Metrics { addr, source })?,
        ),
        None => None,
    };
    let mut node = Node::start(config)?;
    if let Some(listener) = metrics {
        tracing::info!(addr = %listener.local_addr()?, "serving OpenMetrics at /metrics");
        tokio::spawn(exposition::serve(listener, node.metrics()));
    }
    if node.handle().has_names() {
        tokio::spawn(look_up_again(config.timeouts.resolve, node.handle()));
    }

    tokio::select! {
        ended = node.ended() => return Ok(ended?),
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    drain(&mut node, config.timeouts.drain, async {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    })
    .await
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

/// Looks the destinations up again, on a thread that may block.
async fn look_up_again(every: Duration, node: std::sync::Arc<crate::node::SharedHandle>) {
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let node = node.clone();
        // A panic in the resolver must not end the look-ups.
        let _ = tokio::task::spawn_blocking(move || node.refresh_targets()).await;
    }
}
