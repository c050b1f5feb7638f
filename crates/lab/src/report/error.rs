//! Why there is no report.

use std::{io, path::PathBuf};

/// Why there is no report, as a sentence that names the file.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The folder cannot be listed.
    #[error("{}: cannot list this folder: {source}", dir.display())]
    List {
        /// The folder.
        dir: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The folder has no outcomes.
    #[error(
        "{}: no outcomes here; `taut lab run NAME --json {}/NAME.json` writes one",
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
        /// What the kernel said.
        source: io::Error,
    },
    /// A file is not an outcome.
    #[error(
        "{}: not the outcome of an experiment: {field}{source}; move it elsewhere or run the \
         experiment again",
        file.display()
    )]
    NotAnOutcome {
        /// The file.
        file: PathBuf,
        /// Which of its fields is wrong, with a colon, or nothing if it is the whole.
        field: String,
        /// What is wrong with it, and in which line.
        source: serde_json::Error,
    },
    /// The page cannot be written.
    #[error("{}: cannot write the report: {source}", file.display())]
    Write {
        /// The page.
        file: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}
