//! Errors of the report.

use std::{io, path::PathBuf};

/// A reason why the report was not written. Its message names the file.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The folder cannot be listed.
    #[error("{}: cannot list this folder: {source}", dir.display())]
    List {
        /// The folder.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The folder contains no outcomes.
    #[error(
        "{}: no outcomes here; write one with\n\n    taut lab run NAME --json {}/NAME.json",
        dir.display(),
        dir.display()
    )]
    NoOutcomes {
        /// The folder.
        dir: PathBuf,
    },
    /// An outcome's file cannot be read.
    #[error("{}: cannot read this file: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is not an outcome.
    #[error(
        "{}: not an outcome of an experiment: {field}{source}; move the file elsewhere, or run the \
         experiment again",
        file.display()
    )]
    NotAnOutcome {
        /// The file.
        file: PathBuf,
        /// The wrong field, followed by a colon; empty if the whole file is wrong.
        field: String,
        /// The error in the field, and its line.
        source: serde_json::Error,
    },
    /// The page cannot be written.
    #[error("{}: cannot write the report: {source}", file.display())]
    Write {
        /// The page.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}
