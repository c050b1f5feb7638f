//! Reads the outcomes in a folder.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use super::{about, error::ReportError};
use crate::experiment::outcome::Outcome;

/// An outcome and the file it came from.
#[derive(Debug)]
pub(super) struct Run {
    /// The file's name, without its folder.
    pub(super) file: String,
    pub(super) outcome: Outcome,
}

/// Returns all outcomes in `dir`. Those of one experiment are together, and known experiments come
/// first.
pub(super) fn read(dir: &Path) -> Result<Vec<Run>, ReportError> {
    let files = outcome_files(dir).map_err(|source| ReportError::List {
        dir: dir.to_owned(),
        source,
    })?;
    let mut runs = files
        .into_iter()
        .map(read_one)
        .collect::<Result<Vec<_>, _>>()?;
    if runs.is_empty() {
        return Err(ReportError::NoOutcomes {
            dir: dir.to_owned(),
        });
    }
    runs.sort_by_cached_key(|run| {
        let experiment = run.outcome.experiment.clone();
        (about::rank(&experiment), experiment, run.file.clone())
    });
    Ok(runs)
}

/// Returns the files that the shell's `*.json` would match. Hidden files, such as an editor's, are
/// left out.
fn outcome_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden && entry.path().extension() == Some(OsStr::new("json")) {
            files.push(entry.path());
        }
    }
    // The order of a folder depends on the file system. The reported error must not.
    files.sort();
    Ok(files)
}

fn read_one(file: PathBuf) -> Result<Run, ReportError> {
    let bytes = match fs::read(&file) {
        Ok(bytes) => bytes,
        Err(source) => return Err(ReportError::Read { file, source }),
    };
    match parse(&bytes) {
        Ok(outcome) => Ok(Run {
            file: file
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            outcome,
        }),
        Err((field, source)) => Err(ReportError::NotAnOutcome {
            file,
            field,
            source,
        }),
    }
}

/// Parses an outcome. On failure, returns the wrong field and the error.
fn parse(bytes: &[u8]) -> Result<Outcome, (String, serde_json::Error)> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let outcome = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let field = match error.path().to_string().as_str() {
            "." => String::new(),
            path => format!("{path}: "),
        };
        (field, error.into_inner())
    })?;
    json.end().map_err(|error| (String::new(), error))?;
    Ok(outcome)
}
