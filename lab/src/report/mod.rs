//! Draws a folder of outcomes as one page.
//!
//! The page is one HTML file that loads no other file. Its style sheet and its figures (SVG) are
//! inline, and the figures follow the reader's light or dark scheme. The same outcomes produce the
//! same bytes.
//!
//! `folder` reads the files. `won` chooses the figures that the page opens with. `arrange` decides which series are compared. `figures` and `chart`
//! draw them. `page` and its parts write the HTML. Only `folder` and `write` touch files.
//!
//! This module draws the charts itself, because an inline figure can take its colours from the
//! page's style sheet: it is dark at night, and black on white in print. General plotting libraries
//! write colours and sizes into the SVG.

mod about;
mod arrange;
mod chart;
mod error;
mod figures;
mod folder;
mod headline;
mod name;
mod number;
mod page;
mod quantity;
mod reference;
mod section;
mod series_table;
mod tables;
mod unit;
mod won;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use error::ReportError;

/// Returns the file in `dir` for an experiment's outcome.
pub fn outcome(dir: &Path, experiment: &str) -> PathBuf {
    dir.join(format!("{experiment}.json"))
}

/// Returns the file in `dir` for the reason why an experiment has no outcome.
pub fn reason(dir: &Path, experiment: &str) -> PathBuf {
    dir.join(format!("{experiment}.failed"))
}

/// Writes `report.html` into `dir` from all outcomes (`*.json`) in it, and returns its path.
///
/// # Errors
///
/// If `dir` cannot be read or has no outcomes, if one of its `*.json` files is not an
/// [`Outcome`](crate::experiment::outcome::Outcome), or if the page cannot be written. The page is
/// written only if every outcome could be read, because readers would not notice a missing run.
pub fn write(dir: &Path) -> Result<PathBuf, ReportError> {
    let runs = folder::read(dir)?;
    let missing = folder::missing(dir, &runs)?;
    let file = dir.join("report.html");
    match std::fs::write(&file, page::render(&runs, &missing)) {
        Ok(()) => Ok(file),
        Err(source) => Err(ReportError::Write { file, source }),
    }
}
