//! A report for people: words, no colours, 80 columns.

use std::fmt::Write;

use super::feature::{self, State};
use super::report::Report;
use super::setting::{self, Finding};
use super::severity::Severity;

const WIDTH: usize = 80;
/// Widths of the columns: feature, state, used for, if missing. One blank between them.
const COLUMNS: [usize; 4] = [23, 10, 21, 23];

/// The report as text; with `all`, also the settings that are fine.
pub(crate) fn render(report: &Report, all: bool) -> String {
    let mut out = String::new();
    heading(&mut out, report);
    features(&mut out, &report.features);
    settings(&mut out, &report.settings, all);
    summary(&mut out, report);
    out
}

// Writing to a String cannot fail, so the results of write! are let go in this file.

fn heading(out: &mut String, report: &Report) {
    let _ = writeln!(out, "taut {} on Linux {}", report.version, report.kernel);
    if !report.root {
        let _ = writeln!(
            out,
            "Not run as root: where it says \"can't tell\" and not why, only root can try."
        );
    }
}

fn features(out: &mut String, findings: &[feature::Finding]) {
    for (i, finding) in findings.iter().enumerate() {
        if i == 0 || findings[i - 1].group != finding.group {
            let _ = writeln!(out, "\n{}", finding.group.title());
            row(out, ["feature", "state", "used for", "if missing"]);
            row(
                out,
                COLUMNS
                    .map(|c| "-".repeat(c))
                    .each_ref()
                    .map(String::as_str),
            );
        }
        row(
            out,
            [
                finding.name,
                state(finding),
                finding.used_for,
                finding.if_missing,
            ],
        );
        // Said once, in the heading.
        let detail = finding
            .detail
            .as_ref()
            .filter(|d| *d != feature::NEEDS_ROOT);
        if let Some(detail) = detail {
            paragraph(out, "    ", "  here: ", detail);
        }
    }
}

fn state(finding: &feature::Finding) -> &'static str {
    match (finding.state, finding.severity) {
        (State::Yes, _) => "yes",
        (State::Unknown, _) => "can't tell",
        (State::No, Severity::Fine) => "no",
        (State::No, Severity::Slows) => "NO, slows",
        (State::No, Severity::Blocks) => "NO, blocks",
    }
}

fn settings(out: &mut String, findings: &[setting::Finding], all: bool) {
    let wrong = |f: &&setting::Finding| f.severity != Severity::Fine;
    if findings.iter().any(|f| wrong(&f)) {
        let _ = writeln!(out, "\nSettings that stand in the way");
        for finding in findings.iter().filter(wrong) {
            let Finding { id, value, why, .. } = finding;
            let _ = writeln!(out, "{:7} {id} = {value}", finding.severity.word());
            paragraph(out, "        ", "        ", why);
            if let Some(command) = &finding.command {
                // Not wrapped, and without a prompt: it is there to be copied.
                let _ = writeln!(out, "        {command}");
            }
        }
        let _ = writeln!(out);
        let keep = "These commands hold until the next boot (prlimit: for this shell). To keep a \
                    sysctl, put NAME = VALUE into /etc/sysctl.d/90-taut.conf; for a service's \
                    descriptors, LimitNOFILE= into its unit.";
        paragraph(out, "", "", keep);
    }
    if all {
        let _ = writeln!(out, "\nSettings that are fine");
        for finding in findings.iter().filter(|f| !wrong(f)) {
            let Finding { id, value, why, .. } = finding;
            paragraph(
                out,
                "        ",
                "fine    ",
                &format!("{id} = {value} ({why})"),
            );
        }
    }
}

fn summary(out: &mut String, report: &Report) {
    let count = |severity: Severity| report.count(severity);
    let unknown = report
        .features
        .iter()
        .filter(|f| f.state == State::Unknown)
        .count();
    let verdict = match report.verdict {
        Severity::Blocks => "Something that taut relay or taut lab needs is missing.",
        Severity::Slows => "Nothing blocks; something slows.",
        Severity::Fine => "Nothing blocks, nothing slows.",
    };
    let _ = writeln!(out);
    let text = format!(
        "{verdict} Blocks: {}. Slows: {}. Can't tell: {unknown}.",
        count(Severity::Blocks),
        count(Severity::Slows),
    );
    paragraph(out, "", "", &text);
}

/// One row of the table, as many lines high as its fullest cell.
fn row(out: &mut String, cells: [&str; 4]) {
    let mut wrapped = [0, 1, 2, 3].map(|i| wrap(cells[i], COLUMNS[i]).into_iter());
    loop {
        let lines = wrapped.each_mut().map(Iterator::next);
        if lines.iter().all(Option::is_none) {
            return;
        }
        let mut line = String::new();
        for (cell, width) in lines.iter().zip(COLUMNS) {
            let _ = write!(line, "{:width$} ", cell.as_deref().unwrap_or_default());
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// Text wrapped at the width of the page, `first` before its first line and `rest` before the others.
fn paragraph(out: &mut String, rest: &str, first: &str, text: &str) {
    let width = WIDTH - rest.len().max(first.len());
    for (i, line) in wrap(text, width).iter().enumerate() {
        let _ = writeln!(out, "{}{line}", if i == 0 { first } else { rest });
    }
}

/// Breaks text at blanks. A word longer than `width` keeps a line of its own.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use taut_sys::probe::Answer;

    use super::*;
    use crate::doctor::feature::FEATURES;

    fn report(answer: &Answer) -> String {
        let features = FEATURES
            .iter()
            .map(|f| feature::judge(f, answer.clone()))
            .collect();
        render(
            &Report::new("6.1.0".into(), true, features, Vec::new()),
            true,
        )
    }

    #[test]
    fn features_fit_eighty_columns_whatever_the_answer() {
        let why = "the kernel said no at such length that it does not fit on a line of the table";
        for answer in [
            Answer::Yes,
            Answer::No(why.into()),
            Answer::Unknown(why.into()),
        ] {
            for line in report(&answer).lines() {
                assert!(line.chars().count() <= WIDTH, "{line}");
            }
        }
    }

    #[test]
    fn no_word_of_a_feature_is_wider_than_its_column() {
        for f in FEATURES {
            let cells = [f.name, f.used_for, f.if_missing];
            for (text, width) in cells.iter().zip([COLUMNS[0], COLUMNS[2], COLUMNS[3]]) {
                assert!(
                    wrap(text, width).iter().all(|l| l.chars().count() <= width),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn what_is_missing_is_told_in_words_not_in_colours() {
        let text = report(&Answer::No("no such thing".into()));
        assert!(text.contains("NO, blocks"));
        assert!(!text.contains('\x1b'));
    }
}
