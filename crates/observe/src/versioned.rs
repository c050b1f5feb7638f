//! The version in everything that is printed as JSON.

use serde::Serialize;

/// An object of JSON as a command prints it: its fields after the version of Taut.
#[derive(Debug, Serialize)]
pub struct Versioned<T> {
    version: &'static str,
    #[serde(flatten)]
    value: T,
}

// === impl Versioned ===

impl<T: Serialize> Versioned<T> {
    /// Adds the version to `value`, which must be a struct with named fields, or an enum of such.
    pub fn new(value: T) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        Self { version, value }
    }

    /// Returns a line of JSON.
    ///
    /// # Errors
    /// Those of serde_json.
    pub fn line(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    /// Returns lines of JSON that people can read.
    ///
    /// # Errors
    /// Those of serde_json.
    pub fn pretty(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}
