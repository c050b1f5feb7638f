//! Shows progress while an experiment runs: a bar on a terminal, lines elsewhere.

use std::io::{self, IsTerminal, Write as _};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The least time between two lines without a terminal.
const PAUSE: Duration = Duration::from_secs(10);

/// The progress of an experiment, shown on standard error. Threads may share it.
#[derive(Debug)]
pub struct Progress(Form);

#[derive(Debug)]
enum Form {
    Bar(ProgressBar),
    Lines(Mutex<Lines>),
}

#[derive(Debug)]
struct Lines {
    what: String,
    total: u64,
    done: u64,
    said: Instant,
}

/// Writes a line to standard error. Closed by its reader, it is no reason to end an experiment.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

impl Progress {
    /// Starts `total` steps of `what`.
    pub fn new(what: &str, total: u64) -> Self {
        if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(total).with_message(what.to_owned());
            let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}, {eta} left");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(500));
            return Self(Form::Bar(bar));
        }
        say(&format!("{what}: {total} steps"));
        let lines = Lines {
            what: what.to_owned(),
            total,
            done: 0,
            said: Instant::now(),
        };
        Self(Form::Lines(Mutex::new(lines)))
    }

    /// Counts one step.
    pub fn step(&self) {
        match &self.0 {
            Form::Bar(bar) => bar.inc(1),
            Form::Lines(lines) => {
                let mut lines = lines
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                lines.done += 1;
                if lines.said.elapsed() >= PAUSE {
                    lines.said = Instant::now();
                    say(&format!(
                        "{}: {} of {}",
                        lines.what, lines.done, lines.total
                    ));
                }
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Form::Bar(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
