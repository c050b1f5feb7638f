//! A folder of outcomes as one page to read.
//!
//! The page is one HTML file that loads nothing: its style is inside it and its figures are inline
//! SVG that follow the reader's light or dark scheme. The same outcomes make the same bytes.
//!
//! `folder` reads, `arrange` decides what is compared with what, `figures` and `chart` draw
//! it, and `page` and what it is made of write the HTML. Only `folder` and `write`
//! touch files.
//!
//! The charts are drawn here and not by a plotting library because a figure that lives in a page
//! takes its colours from the page's style sheet, which is how it can be dark at night and black
//! on white in print; the SVG of the general libraries has its colours and sizes written into it.

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

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use error::ReportError;

/// Writes `report.html` into `dir`, from all outcomes (`*.json`) in it, and returns its path.
///
/// # Errors
///
/// When `dir` cannot be read or has no outcomes, when one of its `*.json` files is not an
/// [`Outcome`](crate::experiment::outcome::Outcome), or when the page cannot be written. Nothing
/// is written unless every outcome could be read: a page that leaves a run out without a word
/// would be believed.
pub fn write(dir: &Path) -> Result<PathBuf, ReportError> {
    let runs = folder::read(dir)?;
    let file = dir.join("report.html");
    match std::fs::write(&file, page::render(&runs)) {
        Ok(()) => Ok(file),
        Err(source) => Err(ReportError::Write { file, source }),
    }
}
