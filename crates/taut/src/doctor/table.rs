//! Renders the report as text, without colours: what is wrong, and the command that mends it; then
//! everything else, if it is asked for.

use std::cmp::Reverse;
use std::fmt::Write;

use super::feature::{self, State};
use super::leftover;
use super::report::Report;
use super::setting;
use super::severity::Severity;
use crate::terminal::{PAGE, wrap};

/// The version that the first line says.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The least width that is used. In narrower terminals lines are cut or wrapped.
const NARROWEST: usize = 40;
/// Widths of the columns feature, state, used for and if missing, separated by one blank.
const COLUMNS: [usize; 4] = [23, 10, 21, 23];
/// What is in front of the lines of a finding but the first.
const INDENT: &str = "        ";
/// The same in the list of features, whose states are longer.
const STATE_INDENT: &str = "            ";

/// Renders the report for a terminal of this width. With `all`, includes what is fine.
pub(crate) fn render(report: &Report, all: bool, width: usize) -> String {
    let mut page = Page {
        out: String::new(),
        width: width.clamp(NARROWEST, PAGE),
    };
    if report.verdict == Severity::Fine && !all {
        page.all_well(report);
        return page.out;
    }
    page.heading(report, all);
    page.wrong(report);
    if all {
        page.features(&report.features);
        page.unknown_leftovers(report);
        page.fine_settings(&report.settings);
    }
    page.summary(report, all);
    page.out
}

/// Something that is wrong.
struct Wrong<'a> {
    severity: Severity,
    subject: String,
    /// What follows from it, and why it is so, if that is known.
    why: Vec<&'a str>,
    command: Option<&'a str>,
}

/// Returns everything that is wrong, the worst first.
fn wrong(report: &Report) -> Vec<Wrong<'_>> {
    let features = report.features.iter().map(|f| Wrong {
        severity: f.severity,
        subject: format!("{} is missing: {}", f.name, f.if_missing),
        why: f.detail.as_deref().into_iter().collect(),
        command: None,
    });
    let leftovers = report.leftovers.iter().map(|l| Wrong {
        severity: l.severity(),
        subject: format!("{}: a killed process has left {}", l.id, l.detail),
        why: Vec::new(),
        command: Some("taut doctor --repair"),
    });
    let settings = report.settings.iter().map(|s| Wrong {
        severity: s.severity,
        subject: format!("{} = {}", s.id, s.value),
        why: vec![&s.why],
        command: s.command.as_deref(),
    });
    let all = features.chain(leftovers).chain(settings);
    let mut wrong: Vec<_> = all.filter(|w| w.severity != Severity::Fine).collect();
    wrong.sort_by_key(|w| Reverse(w.severity));
    wrong
}

/// How many things could not be told.
struct Unknown {
    /// By anyone.
    here: usize,
    /// Because only root can tell them.
    needs_root: usize,
}

fn unknown(report: &Report) -> Unknown {
    let features = report.features.iter();
    let features = features.filter(|f| f.state == State::Unknown);
    let settings = report.settings.iter().map(|s| s.state);
    let settings = settings.filter(|state| *state != setting::State::Known);
    let leftovers = report.leftovers.iter();
    let leftovers = leftovers.filter(|l| l.state == leftover::State::Unknown);
    let needs_root = features
        .map(|f| f.detail.as_deref() == Some(feature::NEEDS_ROOT))
        .chain(settings.map(|state| state == setting::State::NeedsRoot))
        .chain(leftovers.map(|_| false));
    let (needs_root, here): (Vec<_>, Vec<_>) = needs_root.partition(|needs_root| *needs_root);
    Unknown {
        here: here.len(),
        needs_root: needs_root.len(),
    }
}

struct Page {
    out: String,
    width: usize,
}

// Writing to a String cannot fail, so this file ignores the results of `write!`.

// === impl Page ===

impl Page {
    fn all_well(&mut self, report: &Report) {
        let kernel = &report.kernel;
        let looked_at = report.looked_at();
        let Unknown { here, needs_root } = unknown(report);
        let mut but = String::new();
        if needs_root > 0 {
            let _ = write!(but, "; {needs_root} could not be told, but root can tell");
        }
        if here > 0 {
            let _ = write!(but, "; {here} could not be told (--all shows them)");
        }
        let text = format!(
            "taut {VERSION} on Linux {kernel}: {looked_at} things were looked at; all well{but}."
        );
        self.paragraph("", "", &text);
    }

    fn heading(&mut self, report: &Report, all: bool) {
        let text = format!("taut {VERSION} on Linux {}", report.kernel);
        self.paragraph("", "", &text);
        if !report.root {
            let text = match all {
                true => "\"can't tell\" without a reason means that only root can try it.",
                false => "Some features can be checked only by root.",
            };
            self.paragraph("", "", &format!("Not run as root: {text}"));
        }
    }

    fn wrong(&mut self, report: &Report) {
        let wrong = wrong(report);
        if wrong.is_empty() {
            return;
        }
        let _ = writeln!(self.out, "\nWhat is wrong");
        for one in &wrong {
            let first = format!("{:8}", one.severity.word());
            self.paragraph(INDENT, &first, &one.subject);
            for why in &one.why {
                self.paragraph(INDENT, INDENT, why);
            }
            if let Some(command) = one.command {
                // Neither wrapped nor prefixed by a prompt, so that the command can be copied.
                let _ = writeln!(self.out, "{INDENT}{command}");
            }
        }
        if report.settings.iter().any(|s| s.severity != Severity::Fine) {
            let _ = writeln!(self.out);
            let keep = "Commands that change settings are effective until the next boot (prlimit: in \
                        this shell). To make a sysctl permanent, add NAME = VALUE to \
                        /etc/sysctl.d/90-taut.conf; to give a service more descriptors, add \
                        LimitNOFILE= to its unit.";
            self.paragraph("", "", keep);
        }
    }

    fn features(&mut self, findings: &[feature::Finding]) {
        for (i, finding) in findings.iter().enumerate() {
            let is_first = i == 0 || findings[i - 1].group != finding.group;
            if is_first {
                let _ = writeln!(self.out, "\n{}", finding.group.title());
            }
            if self.width < PAGE {
                self.feature(finding);
                continue;
            }
            if is_first {
                self.row(["FEATURE", "STATE", "USED FOR", "IF MISSING"]);
            }
            self.row([
                finding.name,
                state(finding),
                finding.used_for,
                finding.if_missing,
            ]);
            if let Some(detail) = detail(finding) {
                self.paragraph("    ", "  here: ", detail);
            }
        }
    }

    /// Writes what a row of the table says one below the other.
    fn feature(&mut self, finding: &feature::Finding) {
        let state = format!("{:12}", state(finding));
        self.paragraph(STATE_INDENT, &state, finding.name);
        let uses = [
            ("used for", finding.used_for),
            ("if missing", finding.if_missing),
        ];
        let here = detail(finding).map(|detail| ("here", detail));
        for (what, text) in uses.into_iter().chain(here) {
            self.paragraph(STATE_INDENT, STATE_INDENT, &format!("{what}: {text}"));
        }
    }

    fn unknown_leftovers(&mut self, report: &Report) {
        let leftovers = report.leftovers.iter();
        let unknown: Vec<_> = leftovers
            .filter(|l| l.state == leftover::State::Unknown)
            .collect();
        if !unknown.is_empty() {
            let _ = writeln!(self.out, "\nLeft by killed processes");
        }
        for leftover in unknown {
            let text = format!("{}: {}", leftover.id, leftover.detail);
            self.paragraph(STATE_INDENT, "can't tell  ", &text);
        }
    }

    fn fine_settings(&mut self, findings: &[setting::Finding]) {
        let is_known = |f: &&setting::Finding| f.state == setting::State::Known;
        let (known, unknown): (Vec<_>, Vec<_>) = findings
            .iter()
            .filter(|f| f.severity == Severity::Fine)
            .partition(is_known);
        let text = |f: &setting::Finding| format!("{} = {} ({})", f.id, f.value, f.why);
        if !known.is_empty() {
            let _ = writeln!(self.out, "\nSettings that are fine");
        }
        for finding in known {
            self.paragraph(INDENT, "fine    ", &text(finding));
        }
        if !unknown.is_empty() {
            let _ = writeln!(self.out, "\nSettings that cannot be told");
        }
        for finding in unknown {
            self.paragraph(STATE_INDENT, "can't tell  ", &text(finding));
        }
    }

    fn summary(&mut self, report: &Report, all: bool) {
        let verdict = match report.verdict {
            Severity::Blocks => "taut relay or taut lab cannot run on this machine.",
            Severity::Slows => "Taut runs on this machine, but some findings slow it down.",
            Severity::Fine if report.only.is_empty() => "Taut runs on this machine at full speed.",
            Severity::Fine => "Nothing is wrong with what --only names.",
        };
        let Unknown { here, needs_root } = unknown(report);
        let text = format!(
            "{verdict} Blocks: {}. Slows: {}. Can't tell: {}. Looked at: {}{}.",
            report.count(Severity::Blocks),
            report.count(Severity::Slows),
            here + needs_root,
            report.looked_at(),
            if all { "" } else { " (--all shows them)" },
        );
        let _ = writeln!(self.out);
        self.paragraph("", "", &text);
    }

    /// Writes a row of the table, whose cells may wrap.
    fn row(&mut self, cells: [&str; 4]) {
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
            let _ = writeln!(self.out, "{}", line.trim_end());
        }
    }

    /// Writes text wrapped at the page's width, with `first` before the first line and `rest` before
    /// the other lines.
    fn paragraph(&mut self, rest: &str, first: &str, text: &str) {
        let width = self.width - rest.len().max(first.len());
        for (i, line) in wrap(text, width).iter().enumerate() {
            let _ = writeln!(self.out, "{}{line}", if i == 0 { first } else { rest });
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

/// Returns the probe's reason. The heading explains the need for root once for all features.
fn detail(finding: &feature::Finding) -> Option<&str> {
    let detail = finding.detail.as_deref();
    detail.filter(|d| *d != feature::NEEDS_ROOT)
}

#[cfg(test)]
mod tests {
    use taut_sys::probe::Answer;

    use super::*;
    use crate::doctor::Part;
    use crate::doctor::feature::FEATURES;

    const WHY: &str = "the kernel gave a reason so long that it does not fit on one line of a page";
    const COMMAND: &str = "sysctl -w net.ipv4.tcp_rmem='4096 131072 69206016'";

    fn report(answer: &Answer, settings: Vec<setting::Finding>) -> Report {
        let features = FEATURES
            .iter()
            .map(|f| feature::assess(f, answer.clone()))
            .collect();
        report_of(features, settings)
    }

    fn report_of(features: Vec<feature::Finding>, settings: Vec<setting::Finding>) -> Report {
        Report::new("6.1.0".into(), true, features, settings, Vec::new())
    }

    fn slow_setting() -> setting::Finding {
        setting::Finding {
            id: "net.ipv4.tcp_rmem",
            value: "4096 131072 6291456".into(),
            state: setting::State::Known,
            severity: Severity::Slows,
            why: "a connection reaches about 91 of 1000 Mbit/s at 274 ms".into(),
            command: Some(COMMAND.into()),
        }
    }

    #[test]
    fn every_line_but_a_command_fits_the_terminal_whatever_the_answer() {
        for answer in [
            Answer::Yes,
            Answer::No(WHY.into()),
            Answer::Unknown(WHY.into()),
            Answer::NeedsRoot,
        ] {
            let report = report(&answer, vec![slow_setting()]);
            for (width, all) in [(40, true), (60, true), (60, false), (80, true), (200, true)] {
                let text = render(&report, all, width);
                for line in text.lines().filter(|l| l.trim() != COMMAND) {
                    assert!(line.chars().count() <= width.min(PAGE), "{width}: {line}");
                }
            }
        }
    }

    #[test]
    fn a_narrow_page_says_what_a_wide_one_says() {
        let report = report(&Answer::No(WHY.into()), vec![slow_setting()]);
        let words = |text: String| {
            let words = text.split_whitespace().map(str::to_owned);
            words.collect::<std::collections::BTreeSet<_>>()
        };
        let narrow = words(render(&report, true, 60));
        for feature in FEATURES {
            for text in [feature.name, feature.used_for, feature.if_missing] {
                for word in text.split_whitespace() {
                    assert!(narrow.contains(word), "{word} of {text}");
                }
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
    fn what_is_wrong_comes_first_and_the_worst_of_it_before_the_rest() {
        let text = render(
            &report(&Answer::No("no such thing".into()), vec![slow_setting()]),
            true,
            PAGE,
        );
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
        let blocks = at("blocks  SO_REUSEPORT is missing: the relay cannot listen");
        let slows = at("slows   net.ipv4.tcp_rmem = 4096");
        assert!(text.rfind("\nblocks  ").unwrap() < text.find("\nslows   ").unwrap());
        assert!(blocks < slows && slows < at("NO, blocks"), "{text}");
        assert!(!text.contains('\x1b'), "words, not colours");
    }

    #[test]
    fn the_short_report_is_what_is_wrong_with_its_command() {
        let text = render(&report(&Answer::Yes, vec![slow_setting()]), false, PAGE);
        assert!(text.contains(&format!("\n{INDENT}{COMMAND}\n")), "{text}");
        assert!(!text.contains("USED FOR"), "{text}");
        assert!(text.lines().count() < 16, "{text}");
    }

    #[test]
    fn where_nothing_is_wrong_one_line_says_so() {
        let fine = report(&Answer::Yes, Vec::new());
        let looked_at = fine.looked_at();
        assert!(looked_at > FEATURES.len());
        assert_eq!(
            render(&fine, false, PAGE),
            format!(
                "taut {VERSION} on Linux 6.1.0: {looked_at} things were looked at; all well.\n"
            )
        );
        let unsure = render(
            &report(&Answer::Unknown(WHY.into()), Vec::new()),
            false,
            PAGE,
        );
        assert!(unsure.contains("; all well; "), "{unsure}");
        assert!(!unsure.contains("root can tell"), "{unsure}");

        let mut mixed = report(&Answer::Yes, Vec::new());
        mixed.features[0] = feature::assess(&FEATURES[0], Answer::NeedsRoot);
        mixed.features[1] = feature::assess(&FEATURES[1], Answer::Unknown(WHY.into()));
        let mixed = render(&mixed, false, PAGE).replace('\n', " ");
        let both = "1 could not be told, but root can tell; 1 could not be told (--all";
        assert!(mixed.contains(both), "{mixed}");
    }

    #[test]
    fn a_part_of_the_report_claims_nothing_about_the_rest() {
        let part = Report {
            only: vec![Part::Settings],
            ..report_of(Vec::new(), Vec::new())
        };
        assert!(render(&part, false, PAGE).contains(": 0 things were looked at"));
        assert!(!render(&part, true, PAGE).contains("full speed"));
    }
}
