//! Formats an outcome for a terminal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use super::outcome::{Outcome, Series, Trust};

/// The maximum number of a metric's rows. A metric with more rows is a curve, which a table does
/// not show well.
const LONGEST: usize = 30;

/// Formats the outcome as text: a table for each metric, then the headline, the calibration and the
/// notes.
pub fn render(outcome: &Outcome) -> String {
    let mut text = String::new();
    for (metric, unit) in metrics(outcome) {
        let series: Vec<&Series> = outcome
            .series
            .iter()
            .filter(|s| s.metric == metric)
            .collect();
        let _ = writeln!(text, "{metric} ({unit}): median [10 % .. 90 %]");
        let table = pivot(&series);
        let rows = table.row_iter().count();
        if rows > LONGEST {
            let _ = writeln!(
                text,
                "{rows} rows: see --json, or draw them with `taut lab report`\n"
            );
        } else {
            let _ = writeln!(text, "{table}\n");
        }
    }
    let width = outcome.headline.keys().map(String::len).max().unwrap_or(0);
    for (key, value) in &outcome.headline {
        let _ = writeln!(text, "{key:<width$}  {}", figure(*value));
    }
    let verdict = match outcome.calibration.trust() {
        Trust::Calibrated | Trust::Unchecked => "holds",
        Trust::Busy => "is doubtful: this machine was busy",
        Trust::Failed => "DOES NOT HOLD",
    };
    let _ = writeln!(text, "\ncalibration {verdict}");
    for (name, check) in &outcome.calibration.checks {
        let mark = if check.holds() { "ok " } else { "BAD" };
        let range = match check.most {
            Some(most) => format!("from {} to {}", figure(check.least), figure(most)),
            None => format!("at least {}", figure(check.least)),
        };
        let measured = figure(check.measured);
        let _ = writeln!(text, "  {mark} {name:<26} {measured} ({range})");
    }
    for note in &outcome.notes {
        let _ = writeln!(text, "- {note}");
    }
    text
}

/// Returns the metrics with their units, in the order of their first series.
fn metrics(outcome: &Outcome) -> Vec<(String, String)> {
    let mut seen = BTreeSet::new();
    let pairs = outcome
        .series
        .iter()
        .map(|s| (s.metric.clone(), s.unit.clone()));
    pairs.filter(|pair| seen.insert(pair.clone())).collect()
}

/// Returns a table. The part of a series' name after its first `/` selects the row, and the part
/// before it selects the column.
fn pivot(series: &[&Series]) -> Table {
    let mut columns: Vec<&str> = Vec::new();
    let mut rows: Vec<&str> = Vec::new();
    let mut cells = BTreeMap::new();
    for s in series {
        let (column, row) = s.name.split_once('/').unwrap_or((&s.name, ""));
        if !columns.contains(&column) {
            columns.push(column);
        }
        if !rows.contains(&row) {
            rows.push(row);
        }
        cells.insert((row, column), s);
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(std::iter::once("").chain(columns.iter().copied()));
    for row in rows {
        let mut line = vec![row.to_owned()];
        for column in &columns {
            line.push(cells.get(&(row, *column)).map_or(String::new(), |s| {
                format!(
                    "{} [{} .. {}]",
                    figure(s.median),
                    figure(s.p10),
                    figure(s.p90)
                )
            }));
        }
        table.add_row(line);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Formats three significant digits, without an exponent.
fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::experiment::outcome::{Calibration, Environment};

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(figure(1234.5), "1234");
        assert_eq!(figure(12.345), "12.3");
        assert_eq!(figure(1.2345), "1.23");
        assert_eq!(figure(0.306_4), "0.306");
    }

    #[test]
    fn a_curve_is_named_and_not_listed() {
        let rows = |n: usize| -> String {
            let series = (0..n).filter_map(|i| {
                Series::of(&format!("flow/{i} s"), "throughput", "Mbit/s", vec![7.0])
            });
            render(&Outcome {
                experiment: "two flows".to_owned(),
                version: "0".to_owned(),
                tree: None,
                seed: 1,
                quick: false,
                environment: Environment::here(),
                calibration: Calibration::of([]),
                headline: BTreeMap::new(),
                series: series.collect(),
                paper: Map::new(),
                ideal: Map::new(),
                notes: Vec::new(),
            })
        };
        assert!(rows(LONGEST).contains("7.00 ["));
        let curve = rows(LONGEST + 1);
        assert!(
            !curve.contains("7.00 [") && curve.contains("31 rows"),
            "{curve}"
        );
    }

    #[test]
    fn names_are_split_into_rows_and_columns() {
        let of = |name| Series::of(name, "total", "s", vec![1.0]).unwrap();
        let all = [of("e2e/1 MB"), of("relay/1 MB"), of("e2e/10 MB/0.1 % loss")];
        let text = pivot(&all.iter().collect::<Vec<_>>()).to_string();
        assert!(text.contains("e2e") && text.contains("relay"), "{text}");
        assert!(text.contains("10 MB/0.1 % loss"), "{text}");
    }
}
