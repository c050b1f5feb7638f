//! A command that observes the connection of a run.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use taut_sys::child::Child;

use super::{PATIENCE, PAUSE};
use crate::experiment::ExperimentError;
use crate::experiment::verdicts::mode::Mode;

/// How `taut watch` marks the record of a connection's end.
const END: &str = "\"event\":\"end\"";
/// How long a command may take to observe and to end.
const LONGEST: Duration = Duration::from_secs(120);

/// A command that observes the connection.
pub(super) struct Observer {
    pub(super) mode: Mode,
    pub(super) child: Child,
    /// `taut why` at the other end, whose report the command reads.
    pub(super) far: Option<Child>,
    pub(super) output: PathBuf,
}

// === impl Observer ===

impl Observer {
    /// Waits until the command ends, and returns its output.
    pub(super) fn finish(mut self) -> Result<String, ExperimentError> {
        let mut finish = || {
            for child in [&mut self.child].into_iter().chain(&mut self.far) {
                match child.wait_for(LONGEST)? {
                    Some(status) if status.success() => {}
                    Some(status) => return Err(io::Error::other(format!("it failed ({status})"))),
                    None => return Err(io::Error::other("it does not end")),
                }
            }
            fs::read_to_string(&self.output)
        };
        let text = finish().map_err(ExperimentError::machine(self.mode.name()))?;
        tracing::debug!("output of {}: {}", self.mode.name(), text.trim());
        Ok(text)
    }

    pub(super) fn wait_for_end(&self) -> io::Result<()> {
        let began = Instant::now();
        while !fs::read_to_string(&self.output)?.contains(END) && began.elapsed() < PATIENCE {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}
