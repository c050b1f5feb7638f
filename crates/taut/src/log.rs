//! Logging to standard error, by a separate thread.
//!
//! The reader of the log may be slow, stuck or gone. Threads that forward data must neither wait
//! for the reader nor fail because of it, so lines that it does not read are dropped.

use std::io::IsTerminal;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::Failure;

/// The number of lines buffered for a slow reader; further lines are dropped.
const LINES: usize = 4096;

/// What is logged without `TAUT_LOG`. The DNS library warns of each message that is malformed, which
/// strangers may send without end; the server counts them.
const DEFAULT: &str = "info,hickory_proto=error";

/// The crates whose name alone is a directive of `TAUT_LOG`.
const CRATES: [&str; 2] = ["taut", "libbpf"];

/// Starts logging at level `info`, or as specified by `TAUT_LOG` (syntax of tracing's `EnvFilter`,
/// for example `TAUT_LOG=debug` or `TAUT_LOG=taut_relay=trace`). Dropping the guard writes out the
/// buffered lines, for up to a second.
///
/// # Errors
/// `TAUT_LOG` is not understood.
pub(crate) fn to_stderr() -> Result<WorkerGuard, Failure> {
    let filter = match std::env::var_os("TAUT_LOG") {
        Some(text) if !text.is_empty() => filter(&text.to_string_lossy())?,
        _ => EnvFilter::new(DEFAULT),
    };
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
    Ok(guard)
}

/// Parses `TAUT_LOG`. A word that is no level would be the name of a crate to `EnvFilter`, and turn
/// off the log of all others.
fn filter(text: &str) -> Result<EnvFilter, Failure> {
    let refuse = || {
        Failure::Usage(format!(
            "TAUT_LOG: `{}` is neither a level (error, warn, info, debug, trace, off) nor a list such as \
             info,taut_relay=debug",
            text.escape_default()
        ))
    };
    let is_known = |directive: &str| {
        let directive = directive.trim();
        let is_level = directive.parse::<LevelFilter>().is_ok();
        let names_part =
            directive.contains(['=', '[']) || CRATES.iter().any(|c| directive.starts_with(c));
        is_level || names_part
    };
    if !text
        .split(',')
        .filter(|d| !d.trim().is_empty())
        .all(is_known)
    {
        return Err(refuse());
    }
    EnvFilter::try_new(text).map_err(|_| refuse())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_no_level_is_refused() {
        for good in [
            "debug",
            "WARN",
            "info,taut_relay=debug",
            "taut_relay",
            "libbpf=debug",
            "off",
        ] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["verbose", "info,verbose", "taut_relay=verbose", "yes"] {
            let Err(Failure::Usage(said)) = filter(bad) else {
                panic!("{bad} was accepted")
            };
            assert!(said.contains("neither a level"), "{said}");
        }
    }
}
