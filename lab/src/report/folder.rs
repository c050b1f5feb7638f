//! Reads the outcomes in a folder.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use super::{about, error::ReportError};
use crate::{experiment::outcome::Outcome, registry};

/// The most bytes of a reason that are read.
const REASON: u64 = 4096;

/// An outcome and the file it came from.
#[derive(Debug)]
pub(super) struct Run {
    /// The file's name, without its folder.
    pub(super) file: String,
    pub(super) outcome: Outcome,
}

/// An experiment that failed.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) experiment: &'static str,
    pub(super) reason: String,
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

/// Returns the experiments that failed and are not among `runs`, in the order of the report.
pub(super) fn missing(dir: &Path, runs: &[Run]) -> Result<Vec<Missing>, ReportError> {
    let has_run = |name: &str| runs.iter().any(|run| run.outcome.experiment == name);
    let names = registry::ALL.iter().map(|one| one.name);
    let mut missing = names
        .filter(|name| !has_run(name))
        .map(|experiment| {
            let reason = read_reason(&super::reason(dir, experiment))?;
            Ok(reason.map(|reason| Missing { experiment, reason }))
        })
        .filter_map(Result::transpose)
        .collect::<Result<Vec<_>, _>>()?;
    missing.sort_by_key(|one| about::rank(one.experiment));
    Ok(missing)
}

fn read_reason(file: &Path) -> Result<Option<String>, ReportError> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        io::Read::read_to_end(
            &mut io::Read::take(fs::File::open(file)?, REASON),
            &mut bytes,
        )?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ReportError::Read {
            file: file.to_owned(),
            source,
        }),
    }
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
