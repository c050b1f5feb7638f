//! The pages of docs/reference, which are written from the code, and what other pages show of it.
//!
//! A test of the pages fails while one of them is not what the code says; `make reference` writes them.

mod commands;
mod configuration;
mod examples;
mod json;
mod kernels;
mod shown;
mod source;

use std::fs;
use std::path::PathBuf;

/// Set: the tests write the pages instead of comparing them.
const WRITE: &str = "TAUT_WRITE_REFERENCE";

#[test]
fn the_pages_of_the_reference_say_what_the_code_says() {
    let stale: Vec<_> = [
        ("commands.md", commands::page()),
        ("configuration.md", configuration::page()),
        ("json.md", json::page()),
        ("kernels.md", kernels::page()),
    ]
    .into_iter()
    .filter(|(name, text)| {
        let path = root().join("docs/reference").join(name);
        if std::env::var_os(WRITE).is_some() {
            fs::write(&path, text).unwrap();
        }
        fs::read_to_string(&path).ok().as_ref() != Some(text)
    })
    .map(|(name, _)| name)
    .collect();
    assert!(
        stale.is_empty(),
        "stale in docs/reference: {stale:?}; `make reference` writes them again"
    );
}

/// Returns the root of the repository.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the text of a page of docs, by its name.
fn doc(name: &str) -> String {
    let path = root().join("docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns a text for a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}
