//! Logs: to standard error, by a thread of their own.
//!
//! A log's reader may be slow, stuck or gone. Threads that move other people's bytes must not wait
//! for it, nor fall over it: what it does not take is dropped.

use std::io::IsTerminal;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Lines that wait for a slow reader; the ones after them are dropped.
const LINES: usize = 4096;

/// Logs `info` and above unless `TAUT_LOG` says otherwise (the syntax of tracing's `EnvFilter`,
/// such as `TAUT_LOG=debug` or `TAUT_LOG=taut_relay=trace`). Dropping the guard writes out what
/// waits, for a second at most.
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
