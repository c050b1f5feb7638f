//! The round-trip times that were read.

use std::collections::HashSet;
use std::io::Read as _;
use std::path::Path;
use std::time::SystemTime;

use taut_mesh::plan::{Table, TableError};

use crate::config::Config;
use crate::live::Live;
use crate::nearness::{Measurement, Nearness, TooManyPrefixes};

/// The largest file of round-trip times.
const MAX_FILE: u64 = 64 << 20;

/// What is known.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    file: Vec<Measurement>,
    /// The file's time and length when it was read.
    version: Option<(SystemTime, u64)>,
    /// What a relay on this machine knows.
    pub(crate) live: Live,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeasuredError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The file is too large.
    #[error("the file has {0} bytes and may have {MAX_FILE}; join neighbouring prefixes")]
    TooLarge(u64),
    /// The file has a mistake.
    #[error("{0}")]
    Mistake(#[from] TableError),
}

// === impl Measured ===

impl Measured {
    /// Reads the file if it has changed, and returns whether it had.
    ///
    /// # Errors
    /// [`MeasuredError`]; what was read before stays.
    pub(crate) fn read_file(
        &mut self,
        path: &Path,
        config: &Config,
    ) -> Result<bool, MeasuredError> {
        let file = std::fs::File::open(path)?;
        let metadata = file.metadata()?;
        let version = (metadata.modified()?, metadata.len());
        if self.version == Some(version) {
            return Ok(false);
        }
        if metadata.len() > MAX_FILE {
            return Err(MeasuredError::TooLarge(metadata.len()));
        }
        let mut text = String::new();
        file.take(MAX_FILE).read_to_string(&mut text)?;
        let table = Table::parse(&text)?;
        let measured = table.prefixes().filter_map(|(prefix, relay, path)| {
            Some((prefix, config.relay(relay.as_str())?, path.rtt()?))
        });
        self.file = measured.collect();
        self.version = Some(version);
        Ok(true)
    }

    /// Returns what is known for the relays of another configuration: what a relay knows. The file is
    /// read again.
    pub(crate) fn reconfigured(mut self, config: &Config) -> Self {
        self.live.reconfigure(config);
        Self {
            live: self.live,
            ..Self::default()
        }
    }

    /// Returns the number of round-trip times.
    pub(crate) fn count(&self) -> usize {
        self.file.len() + self.live.times().len()
    }

    /// Returns the table of them. What a relay measures now replaces what the file says of the same path.
    ///
    /// # Errors
    /// [`TooManyPrefixes`].
    pub(crate) fn nearness(&self) -> Result<Nearness, TooManyPrefixes> {
        let live: HashSet<_> = self.live.times().iter().map(|(p, r, _)| (*p, *r)).collect();
        let file = self.file.iter().copied();
        let file = file.filter(|(prefix, relay, _)| !live.contains(&(prefix.trunc(), *relay)));
        Nearness::new(file.chain(self.live.times().iter().copied()))
    }
}
