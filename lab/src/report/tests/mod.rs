//! Tests of the whole report: from files to a page that parses.

mod files;
mod hostile;
mod page;

use roxmltree::{Document, Node};

use super::folder::Run;
use crate::experiment::outcome::Outcome;

const PIED_PIPER: &str = include_str!("../testdata/pied-piper.json");
const INCAST: &str = include_str!("../testdata/incast.json");
const UNKNOWN: &str = include_str!("../testdata/unknown.json");

fn run(json: &str) -> Run {
    Run {
        file: "run.json".to_owned(),
        outcome: serde_json::from_str(json).unwrap(),
    }
}

/// Returns the page of these runs, and of no experiments without an outcome.
fn render(runs: &[Run]) -> String {
    super::page::render(runs, &[])
}

fn with(json: &str, change: impl FnOnce(&mut Outcome)) -> Run {
    let mut run = run(json);
    change(&mut run.outcome);
    run
}

/// Returns the page as XML. All of it is XML except the `meta` elements of the head.
fn xml(page: &str) -> String {
    let start = page.find("<meta").unwrap();
    let end = page.find("<title>").unwrap();
    let body = page.strip_prefix("<!DOCTYPE html>").unwrap();
    body.replace(&page[start..end], "")
}

/// Returns all text that a reader can see or point at, with spaces between the pieces.
fn text(xml: &str) -> String {
    text_in(Document::parse(xml).unwrap().root())
}

fn text_in(node: Node<'_, '_>) -> String {
    let texts = node.descendants().filter(Node::is_text);
    texts.filter_map(|n| n.text()).collect::<Vec<_>>().join(" ")
}
