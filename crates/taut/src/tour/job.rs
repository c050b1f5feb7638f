//! A command of `taut` on a host of the network.

use std::io::{self, BufRead as _, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use taut_netlab::world::Host;
use taut_sys::child::Child;

use crate::failure::Failure;

/// How long a command may take to say what is waited for, or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running command. Dropping it kills it.
pub(super) struct Job {
    command: String,
    child: Child,
    /// What it writes to standard output and standard error.
    lines: Receiver<String>,
}

// === impl Job ===

impl Job {
    /// Starts `taut` with `words` on a host.
    pub(super) fn start(host: &Host, words: &str) -> Result<Self, Failure> {
        let command = format!("taut {words}");
        let failed = |e: io::Error| Failure::Run(format!("{command}: cannot start it: {e}"));
        let mut taut = Command::new(std::env::current_exe().map_err(failed)?);
        taut.args(words.split(' '));
        taut.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // What the tour waits for is in the log at level info.
        taut.env_remove("TAUT_LOG").env_remove("TAUT_LOG_FORMAT");
        let mut child = host.spawn(taut).map_err(failed)?;
        let (lines, received) = channel();
        let pipes = child.pipes();
        if let (Some(out), Some(err)) = (pipes.stdout.take(), pipes.stderr.take()) {
            pass_on(out, lines.clone());
            pass_on(err, lines);
        }
        Ok(Self {
            command,
            child,
            lines: received,
        })
    }

    /// Returns the lines up to the first that contains `words`.
    pub(super) fn lines_until(&self, words: &str) -> Result<Vec<String>, Failure> {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                return Err(self.failed(&format!("does not say `{words}`"), &lines));
            };
            let is_last = line.contains(words);
            lines.push(line);
            if is_last {
                return Ok(lines);
            }
        }
    }

    /// Returns the lines that have come and were not returned before.
    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Waits for the end, and returns the lines that were not returned before.
    pub(super) fn wait(mut self) -> Result<Vec<String>, Failure> {
        let ended = self.child.wait_for(PATIENCE);
        let status = ended.map_err(|e| self.failed(&format!("cannot wait for it: {e}"), &[]))?;
        // The threads end with the pipes.
        let lines: Vec<_> = match status {
            Some(_) => self.lines.iter().collect(),
            None => self.lines(),
        };
        match status {
            Some(status) if status.success() => Ok(lines),
            Some(status) => Err(self.failed(&format!("failed: {status}"), &lines)),
            None => Err(self.failed("does not end", &lines)),
        }
    }

    /// Ends the command as Ctrl-C does, and returns the lines that were not returned before.
    pub(super) fn end(self) -> Result<Vec<String>, Failure> {
        let sent = self.child.signal(Signal::TERM);
        sent.map_err(|e| self.failed(&format!("cannot end it: {e}"), &[]))?;
        self.wait()
    }

    fn failed(&self, how: &str, lines: &[String]) -> Failure {
        let lines: String = lines.iter().map(|line| format!("\n  {line}")).collect();
        Failure::Run(format!("{}: {how}{lines}", self.command))
    }
}

/// Passes on lines until the pipe is closed.
fn pass_on(pipe: impl Read + Send + 'static, lines: Sender<String>) {
    std::thread::spawn(move || {
        let all = BufReader::new(pipe).lines().map_while(Result::ok);
        // Read on even if no one listens any more, or the command would wait for a full pipe.
        all.for_each(|line| drop(lines.send(line)));
    });
}
