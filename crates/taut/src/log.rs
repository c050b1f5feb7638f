//! Logging to standard error, by a separate thread.
//!
//! The reader of the log may be slow, stuck or gone. Threads that forward data must neither wait
//! for the reader nor fail because of it, so lines that it does not read are dropped. The log says
//! how many, once there is a reader again.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::json;
use taut_sys::plural::counted;
use tracing::Level;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use crate::failure::Failure;

/// The number of lines buffered for a slow reader; further lines are dropped.
const LINES: usize = 4096;

/// How long the end of the process waits for the reader of the last lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// What is logged without `TAUT_LOG`. The DNS library warns of each message that is malformed, which
/// strangers may send without end; the server counts them.
const DEFAULT: &str = "info,hickory_proto=error";

/// The crates whose name alone is a directive of `TAUT_LOG`.
const CRATES: [&str; 2] = ["taut", "libbpf"];

/// How lines of the log are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    /// For people.
    Text,
    /// An object a line, with `timestamp` (RFC 3339, UTC), `level`, `message` and the event's fields.
    Json,
}

/// The buffer of the log, once it has been started.
static STARTED: OnceLock<Buffer> = OnceLock::new();

/// The lines that wait for their reader.
#[derive(Clone, Default)]
struct Buffer(Arc<Shared>);

#[derive(Default)]
struct Shared {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    waiting: VecDeque<Vec<u8>>,
    /// The lines that were dropped since the last one was buffered.
    dropped: u64,
    /// The thread writes a line that it has taken out.
    is_writing: bool,
}

/// Writes out the buffered lines when it is dropped.
pub(crate) struct Guard(Buffer);

/// Starts logging at level `info`, or as specified by `TAUT_LOG` (syntax of tracing's `EnvFilter`,
/// for example `TAUT_LOG=debug` or `TAUT_LOG=taut_relay=trace`), as text, or as `TAUT_LOG_FORMAT`
/// says. Dropping the guard writes out the buffered lines, for up to a second.
///
/// # Errors
/// `TAUT_LOG` or `TAUT_LOG_FORMAT` is not understood, or the system cannot start a thread.
pub(crate) fn to_stderr() -> Result<Guard, Failure> {
    let filter = match std::env::var_os("TAUT_LOG") {
        Some(text) if !text.is_empty() => filter(&text.to_string_lossy())?,
        _ => EnvFilter::new(DEFAULT),
    };
    let format = Format::of_environment()?;
    let buffer = Buffer::default();
    let writing = buffer.clone();
    std::thread::Builder::new()
        .name("log".into())
        .spawn(move || writing.write_all_to(&mut io::stderr()))
        .map_err(|error| {
            Failure::Run(format!(
                "cannot start the thread that writes the log: {error}"
            ))
        })?;
    let guard = Guard(STARTED.get_or_init(|| buffer.clone()).clone());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(has_colours())
        .with_writer(move || buffer.clone())
        .log_internal_errors(false);
    match format {
        Format::Text => log.init(),
        Format::Json => log.json().flatten_event(true).init(),
    }
    Ok(guard)
}

/// Writes a sentence for the user to standard error. If logging has been started, the sentence
/// takes its place among the lines of the log, and a stuck reader does not delay the caller.
pub(crate) fn say(sentence: &str) {
    say_at(Level::INFO, sentence);
}

/// Writes, like [`say`], why the program fails.
pub(crate) fn say_failure(sentence: &str) {
    say_at(Level::ERROR, sentence);
}

/// Formats a sentence as a line of the log: as text, if the format that is asked for does not exist.
fn line(level: Level, sentence: &str) -> Vec<u8> {
    let format = Format::of_environment().unwrap_or(Format::Text);
    format.line(level, sentence)
}

fn say_at(level: Level, sentence: &str) {
    let line = line(level, sentence);
    // The reader may be gone; `eprintln!` would panic.
    let _ = match STARTED.get() {
        Some(buffer) => buffer.clone().write_all(&line),
        None => io::stderr().write_all(&line),
    };
}

/// Writes out the buffered lines, for up to a second.
pub(crate) fn finish() {
    if let Some(buffer) = STARTED.get() {
        drop(Guard(buffer.clone()));
    }
}

// === impl Format ===

impl Format {
    /// What `TAUT_LOG_FORMAT` says: `text`, which is the default, or `json`.
    fn of_environment() -> Result<Self, Failure> {
        match std::env::var_os("TAUT_LOG_FORMAT") {
            Some(name) => Self::named(&name.to_string_lossy()),
            None => Ok(Self::Text),
        }
    }

    fn named(name: &str) -> Result<Self, Failure> {
        match name {
            "" | "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(Failure::Usage(format!(
                "TAUT_LOG_FORMAT: `{}` is neither text nor json",
                name.escape_default()
            ))),
        }
    }

    /// Formats a sentence as a line.
    fn line(self, level: Level, sentence: &str) -> Vec<u8> {
        match self {
            Self::Text => format!("taut: {sentence}\n"),
            Self::Json => {
                let mut timestamp = String::new();
                // Writing to a `String` cannot fail.
                let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
                let level = level.as_str();
                let line = json!({"timestamp": timestamp, "level": level, "message": sentence});
                format!("{line}\n")
            }
        }
        .into_bytes()
    }
}

// === impl Buffer ===

impl Buffer {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes lines as they come.
    fn write_all_to(&self, output: &mut impl Write) -> ! {
        loop {
            let lines = self.lines();
            let empty = |lines: &mut Lines| lines.waiting.is_empty();
            let lines = self.0.changed.wait_while(lines, empty);
            let mut lines = lines.unwrap_or_else(PoisonError::into_inner);
            let line = lines.waiting.pop_front();
            lines.is_writing = true;
            drop(lines);
            // The reader may be gone.
            let _ = output.write_all(&line.unwrap_or_default());
            self.lines().is_writing = false;
            self.0.changed.notify_all();
        }
    }
}

impl Write for Buffer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = self.lines();
        if lines.waiting.len() < LINES {
            let dropped = std::mem::take(&mut lines.dropped);
            if dropped > 0 {
                lines.waiting.push_back(notice(dropped));
            }
            lines.waiting.push_back(line.to_vec());
        } else {
            lines.dropped += 1;
        }
        drop(lines);
        self.0.changed.notify_all();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl Guard ===

impl Drop for Guard {
    fn drop(&mut self) {
        let is_left = |lines: &mut Lines| lines.is_writing || !lines.waiting.is_empty();
        let lines = self.0.lines();
        let shared = &self.0.0;
        drop(
            shared
                .changed
                .wait_timeout_while(lines, LAST_LINES, is_left),
        );
    }
}

fn notice(dropped: u64) -> Vec<u8> {
    let sentence = format!(
        "{} of the log dropped, because standard error was not read",
        counted(dropped, "line")
    );
    line(Level::WARN, &sentence)
}

/// Returns whether the log is coloured: at a terminal, unless `NO_COLOR` has a value (no-color.org).
fn has_colours() -> bool {
    let declined = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !declined
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
    use std::io::Read as _;

    use super::*;

    #[test]
    fn lines_that_nobody_reads_are_dropped_and_counted_and_the_others_keep_their_order() {
        let mut buffer = Buffer::default();
        let line = |number: usize| format!("{number:5}\n").into_bytes();
        for number in 0..LINES + 10 {
            buffer.write_all(&line(number)).unwrap();
        }
        let (mut reader, mut writer) = io::pipe().unwrap();
        let writing = buffer.clone();
        std::thread::spawn(move || writing.write_all_to(&mut writer));
        drop(Guard(buffer.clone()));
        buffer.write_all(b"last\n").unwrap();
        drop(Guard(buffer));
        let mut expected: Vec<u8> = (0..LINES).flat_map(line).collect();
        expected.extend(notice(10));
        expected.extend(b"last\n");
        let mut written = vec![0; expected.len()];
        reader.read_exact(&mut written).unwrap();
        assert!(written == expected, "{}", String::from_utf8_lossy(&written));
    }

    #[test]
    fn a_sentence_is_a_line_of_json_with_its_time_and_level() {
        let Ok(format) = Format::named("json") else {
            panic!("json was refused")
        };
        let line = format.line(Level::ERROR, "a \"quoted\"\nsentence");
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line["level"], "ERROR");
        assert_eq!(line["message"], "a \"quoted\"\nsentence");
        let timestamp = line["timestamp"].as_str().unwrap();
        assert!(
            timestamp.starts_with("20") && timestamp.ends_with('Z'),
            "{timestamp}"
        );
    }

    #[test]
    fn a_format_that_is_not_known_is_refused() {
        let Err(Failure::Usage(said)) = Format::named("logfmt") else {
            panic!("logfmt was accepted")
        };
        assert_eq!(said, "TAUT_LOG_FORMAT: `logfmt` is neither text nor json");
    }

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
