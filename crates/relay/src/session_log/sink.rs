//! Writes whole lines to a file, and counts lines that cannot be written as failed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::record::SessionRecord;

/// A file, and the lines to write to it.
pub(super) struct Sink {
    out: Box<dyn Write + Send>,
    /// The path for reopening the file.
    path: Option<PathBuf>,
    lines: Vec<u8>,
    /// The number of lines that are not written yet.
    count: u64,
    /// Whether the last write ended within a line.
    torn: bool,
    /// Whether the failure has been logged; it is logged once, not for each line.
    failing: bool,
}

/// The numbers of lines written and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WriteCounts {
    pub(super) written: u64,
    pub(super) failed: u64,
}

// === impl Sink ===

impl Sink {
    pub(super) fn stdout() -> Self {
        // A `LineWriter` on standard output would flush each line; this type already collects
        // lines.
        Self::new(Box::new(io::stdout()), None)
    }

    pub(super) fn file(path: &Path) -> io::Result<Self> {
        Ok(Self::new(Box::new(open(path)?), Some(path.to_owned())))
    }

    pub(super) fn new(out: Box<dyn Write + Send>, path: Option<PathBuf>) -> Self {
        Self {
            out,
            path,
            lines: Vec::new(),
            count: 0,
            torn: false,
            failing: false,
        }
    }

    /// Returns the number of bytes that are not written yet.
    pub(super) fn waiting(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn add(&mut self, record: &SessionRecord) {
        // Text and numbers always serialise, and writing to memory never fails.
        if serde_json::to_writer(&mut self.lines, record).is_ok() {
            self.lines.push(b'\n');
            self.count += 1;
        }
    }

    pub(super) fn reopen(&mut self) {
        let Some(path) = &self.path else { return };
        match open(path) {
            Ok(file) => {
                self.out = Box::new(file);
                self.torn = false;
            }
            Err(e) => {
                let path = path.display();
                tracing::warn!(
                    "cannot reopen the session log {path}: {e}; continuing with the old file"
                );
            }
        }
    }

    /// Writes all waiting bytes. Bytes that cannot be written are discarded, so that they do not
    /// accumulate.
    pub(super) fn flush(&mut self) -> WriteCounts {
        if self.lines.is_empty() {
            return WriteCounts::default();
        }
        let (done, error) = self.write_out();
        let whole = self.lines[..done].iter().filter(|&&b| b == b'\n').count() as u64;
        let outcome = WriteCounts {
            written: whole,
            failed: self.count - whole,
        };
        if done > 0 {
            self.torn = self.lines[done - 1] != b'\n';
        }
        self.lines.clear();
        self.count = 0;
        match (error, self.failing) {
            (Some(e), false) => tracing::warn!(
                "cannot write the session log: {e}; records are dropped until writing works again"
            ),
            (None, true) => tracing::info!("the session log works again"),
            _ => {}
        }
        self.failing = outcome.failed > 0;
        outcome
    }

    /// Writes `lines`. Returns the number of bytes written, and the error that stopped the write.
    fn write_out(&mut self) -> (usize, Option<io::Error>) {
        if self.torn {
            // The rest of a torn line never follows; the next line must start on a line of its own.
            match self.out.write(b"\n") {
                Ok(1) => self.torn = false,
                Ok(_) => return (0, Some(io::ErrorKind::WriteZero.into())),
                Err(e) => return (0, Some(e)),
            }
        }
        let mut done = 0;
        while done < self.lines.len() {
            match self.out.write(&self.lines[done..]) {
                Ok(0) => return (done, Some(io::ErrorKind::WriteZero.into())),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return (done, Some(e)),
            }
        }
        (done, self.out.flush().err())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .open(path)
}
