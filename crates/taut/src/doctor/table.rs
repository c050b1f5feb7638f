//! Renders the report as text of 80 columns, without colours.

use std::fmt::Write;

use super::feature::{self, State};
use super::leftover::{self, Leftover};
use super::report::Report;
use super::setting::{self, Finding};
use super::severity::Severity;

const WIDTH: usize = 80;
/// Widths of the columns feature, state, used for and if missing, separated by one blank.
const COLUMNS: [usize; 4] = [23, 10, 21, 23];

/// Renders the report. With `all`, includes settings that are fine.
pub(crate) fn render(report: &Report, all: bool) -> String {
    let mut out = String::new();
    heading(&mut out, report);
    features(&mut out, &report.features);
    leftovers(&mut out, &report.leftovers);
    settings(&mut out, &report.settings, all);
    summary(&mut out, report);
    out
}

// Writing to a String cannot fail, so this file ignores the results of `write!`.

fn heading(out: &mut String, report: &Report) {
    let _ = writeln!(out, "taut {} on Linux {}", report.version, report.kernel);
    if !report.root {
        let _ = writeln!(
            out,
            "Not run as root: \"can't tell\" without a reason means that only root can try it."
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
        // The heading explains the need for root once for all features.
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

fn leftovers(out: &mut String, leftovers: &[Leftover]) {
    if leftovers.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nLeft by killed processes");
    for leftover in leftovers {
        let first = match leftover.state {
            leftover::State::Left => "slows   ",
            leftover::State::Unknown => "can't tell: ",
        };
        let text = format!("{}: {}", leftover.id, leftover.detail);
        paragraph(out, "        ", first, &text);
    }
    let is_left = |leftover: &Leftover| leftover.state == leftover::State::Left;
    if leftovers.iter().any(is_left) {
        let _ = writeln!(out, "        taut doctor --repair");
    }
}

fn settings(out: &mut String, findings: &[setting::Finding], all: bool) {
    let wrong = |f: &&setting::Finding| f.severity != Severity::Fine;
    if findings.iter().any(|f| wrong(&f)) {
        let _ = writeln!(out, "\nSettings to change");
        for finding in findings.iter().filter(wrong) {
            let Finding { id, value, why, .. } = finding;
            let _ = writeln!(out, "{:7} {id} = {value}", finding.severity.word());
            paragraph(out, "        ", "        ", why);
            if let Some(command) = &finding.command {
                // Neither wrapped nor prefixed by a prompt, so that the command can be copied.
                let _ = writeln!(out, "        {command}");
            }
        }
        let _ = writeln!(out);
        let keep = "These commands are effective until the next boot (prlimit: in this shell). To \
                    make a sysctl permanent, add NAME = VALUE to /etc/sysctl.d/90-taut.conf; to \
                    give a service more descriptors, add LimitNOFILE= to its unit.";
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
        Severity::Blocks => "taut relay or taut lab cannot run on this machine.",
        Severity::Slows => "Taut runs on this machine, but some findings slow it down.",
        Severity::Fine => "Taut runs on this machine at full speed.",
    };
    let _ = writeln!(out);
    let text = format!(
        "{verdict} Blocks: {}. Slows: {}. Can't tell: {unknown}.",
        count(Severity::Blocks),
        count(Severity::Slows),
    );
    paragraph(out, "", "", &text);
}

/// Writes a row of the table, whose cells may wrap.
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

/// Writes text wrapped at the page width, with `first` before the first line and `rest` before the
/// other lines.
fn paragraph(out: &mut String, rest: &str, first: &str, text: &str) {
    let width = WIDTH - rest.len().max(first.len());
    for (i, line) in wrap(text, width).iter().enumerate() {
        let _ = writeln!(out, "{}{line}", if i == 0 { first } else { rest });
    }
}

/// Wraps text at blanks. A word longer than `width` gets a line of its own.
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
            .map(|f| feature::assess(f, answer.clone()))
            .collect();
        render(
            &Report::new("6.1.0".into(), true, features, Vec::new(), Vec::new()),
            true,
        )
    }

    #[test]
    fn features_fit_eighty_columns_whatever_the_answer() {
        let why = "the kernel gave a reason so long that it does not fit on one line of the table";
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
    fn a_missing_feature_is_marked_with_words_and_not_with_colours() {
        let text = report(&Answer::No("no such thing".into()));
        assert!(text.contains("NO, blocks"));
        assert!(!text.contains('\x1b'));
    }
}
