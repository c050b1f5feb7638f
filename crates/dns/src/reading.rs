//! One reading of what changes while the server runs: the configuration, the file of round-trip times, and the
//! times that a relay knows. It blocks, so it has a thread of its own.

use std::time::Instant;

use crate::config::{Config, ConfigError};
use crate::error::ServeError;
use crate::live::{Live, LiveError};
use crate::measured::Measured;

/// What was read.
pub(crate) struct Read {
    /// The configuration, if it was read, too.
    pub(crate) config: Option<Result<Config, ConfigError>>,
    pub(crate) measured: Measured,
    /// Something has changed.
    pub(crate) is_new: bool,
    /// The mistake in the file.
    pub(crate) problem: Option<String>,
    /// Why the relay could not be asked.
    pub(crate) silence: Option<String>,
    /// The relay's times were forgotten, because it has been silent for too long.
    pub(crate) forgot: bool,
}

// === impl Read ===

impl Read {
    /// Reads for `config`, which is the result of `loaded` if that is the configuration as it is now.
    pub(crate) fn new(
        config: &Config,
        loaded: Option<Result<Config, ConfigError>>,
        mut measured: Measured,
    ) -> Self {
        if matches!(loaded, Some(Ok(_))) {
            measured = measured.reconfigured(config);
        }
        let mut read = Self {
            is_new: loaded.is_some(),
            config: loaded,
            measured,
            problem: None,
            silence: None,
            forgot: false,
        };
        if let Some(path) = &config.rtt_file {
            match read.measured.read_file(path, config) {
                Ok(is_new) => read.is_new |= is_new,
                Err(error) => read.problem = Some(error.to_string()),
            }
        }
        if read.problem.is_some() && matches!(read.config, Some(Ok(_))) {
            // This configuration will not be adopted: its relay is not asked.
            return read;
        }
        match ask_relay(config, &mut read.measured) {
            Ok(is_new) => read.is_new |= is_new,
            Err(error) => read.silence = Some(error.to_string()),
        }
        read.forgot = read.measured.live.expire(config.relay_keep, Instant::now());
        read.is_new |= read.forgot;
        read
    }
}

/// Reads the file of round-trip times, if there is one.
///
/// # Errors
/// [`ServeError::Measured`].
pub(crate) fn read_file(config: &Config, measured: &mut Measured) -> Result<(), ServeError> {
    let Some(path) = &config.rtt_file else {
        return Ok(());
    };
    let read = measured.read_file(path, config).map(drop);
    read.map_err(|error| ServeError::Measured {
        path: path.clone(),
        reason: error.to_string(),
    })
}

/// Asks the relay of the configuration for its round-trip times, if there is one. Returns whether they have changed.
///
/// # Errors
/// [`LiveError`].
pub(crate) fn ask_relay(config: &Config, measured: &mut Measured) -> Result<bool, LiveError> {
    match &config.relay_control {
        Some(path) => measured.live.ask(path, config),
        None => {
            measured.live = Live::default();
            Ok(false)
        }
    }
}
