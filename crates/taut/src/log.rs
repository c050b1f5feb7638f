//! Logging to standard error, by a separate thread.
//!
//! The reader of the log may be slow, stuck or gone. Threads that forward data must neither wait
//! for the reader nor fail because of it, so lines that it does not read are dropped.

use std::io::IsTerminal;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// The number of lines buffered for a slow reader; further lines are dropped.
const LINES: usize = 4096;

/// Starts logging at level `info`, or as specified by `TAUT_LOG` (syntax of tracing's `EnvFilter`,
/// for example `TAUT_LOG=debug` or `TAUT_LOG=taut_relay=trace`). Dropping the guard writes out the
/// buffered lines, for up to a second.
pub(crate) fn to_stderr() -> WorkerGuard {
    let filter = EnvFilter::try_from_env("TAUT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LINES)
        .thread_name("log")
        .finish(std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(writer)
        .log_internal_errors(false)
        .init();
    guard
}
