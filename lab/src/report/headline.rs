//! The headline figures of an experiment, beside those of the paper and of an ideal system.

use maud::{Markup, html};
use serde_json::{Map, Value};

use super::{number, quantity};
use crate::experiment::outcome::Outcome;

/// A row of the table.
#[derive(Debug)]
struct Line {
    key: String,
    measured: Option<f64>,
    paper: Option<String>,
    ideal: Option<String>,
}

/// Returns the table of headline figures, beside the paper's and an ideal system's figures of the
/// same name.
pub(super) fn headline(outcome: &Outcome) -> Markup {
    let said = |map: &Map<String, Value>, key: &str| map.get(key).map(in_words);
    let lines: Vec<Line> = outcome
        .headline
        .iter()
        .map(|(key, value)| Line {
            key: key.clone(),
            measured: Some(*value),
            paper: said(&outcome.paper, key),
            ideal: said(&outcome.ideal, key),
        })
        .collect();
    html! {
        @if lines.is_empty() { p { "This run has no headline figures." } }
        @else { (table(&lines)) }
    }
}

/// Returns the table of the paper's and an ideal system's figures that are not in the headline.
pub(super) fn others(outcome: &Outcome) -> Markup {
    let mut lines: Vec<Line> = Vec::new();
    for (key, value) in leaves(&outcome.paper, outcome) {
        lines.push(Line {
            key,
            measured: None,
            paper: Some(value),
            ideal: None,
        });
    }
    for (key, value) in leaves(&outcome.ideal, outcome) {
        match lines.iter_mut().find(|line| line.key == key) {
            Some(line) => line.ideal = Some(value),
            None => lines.push(Line {
                key,
                measured: None,
                paper: None,
                ideal: Some(value),
            }),
        }
    }
    html! {
        @if !lines.is_empty() {
            h3 { "What the paper and an ideal system say" }
            (table(&lines))
        }
    }
}

/// Returns the lines as a table, without empty columns.
fn table(lines: &[Line]) -> Markup {
    let measured = lines.iter().any(|line| line.measured.is_some());
    let paper = lines.iter().any(|line| line.paper.is_some());
    let ideal = lines.iter().any(|line| line.ideal.is_some());
    html! {
        div.scroll {
            table {
                thead { tr {
                    th { "Figure" }
                    @if measured { th.number { "Measured" } }
                    @if paper { th.number { "Paper" } }
                    @if ideal { th.number { "Ideal" } }
                } }
                tbody {
                    @for line in lines {
                        tr {
                            td { code { (line.key) } }
                            @if measured {
                                td.number { @if let Some(value) = line.measured { b { (number::measured(value, 4)) } } }
                            }
                            @if paper { td.number { (line.paper.as_deref().unwrap_or_default()) } }
                            @if ideal { td.number { (line.ideal.as_deref().unwrap_or_default()) } }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the map's leaves, each with its path. Leaves that the headline table shows are left out.
fn leaves(map: &Map<String, Value>, outcome: &Outcome) -> Vec<(String, String)> {
    let mut leaves = Vec::new();
    for (key, value) in map {
        if !outcome.headline.contains_key(key) {
            flatten(key.clone(), value, &mut leaves);
        }
    }
    leaves
}

fn flatten(path: String, value: &Value, leaves: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            let mut entries: Vec<_> = map.iter().collect();
            quantity::sort(&mut entries, |(key, _)| key);
            for (key, value) in entries {
                flatten(format!("{path} / {key}"), value, leaves);
            }
        }
        leaf => leaves.push((path, in_words(leaf))),
    }
}

fn in_words(value: &Value) -> String {
    match value {
        Value::Number(number) => number
            .as_f64()
            .map_or_else(|| number.to_string(), number::given),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
