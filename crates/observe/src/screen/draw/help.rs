//! The help: keys, columns, and the names of factors.

use ratatui::text::Span;

use super::wrap::wrap;
use crate::verdict::Factor;

const KEYS: &str = "\
up, down, j, k, page up, page down, home, end   select; scroll a page or help
enter           open the connection: history, evidence, instruments
esc, q          back; in the table q quits
s               sort by the next key: rate, rtt, retrans, trouble, peer, process
/               filter: 10.0.0.9:443, dst 10.0.0.0/8 and dport https, a process
                (`taut top --help` has the syntax)
space           pause and resume
?, h            this help
";

const COLUMNS: &str = "\
OUT, IN: payload in bit/s. CWND: segments. RETR: all retransmissions so far.
LIMIT is the factor that limits it, not sure with `?`; HIST has its letter for
each scan, the latest at the right:
";

/// The width of a factor with its letter and both names.
const WIDTH: usize = 34;

/// Returns the help in lines of at most `width` columns. At 80 columns it has at most 22 lines, so that
/// all of it fits on the smallest usual terminal.
pub(super) fn help(width: usize) -> Vec<String> {
    let mut lines: Vec<String> = [KEYS, COLUMNS]
        .iter()
        .flat_map(|text| text.lines())
        .flat_map(|line| match Span::raw(line).width() > width {
            true => wrap(line, width),
            false => vec![line.to_owned()],
        })
        .collect();
    let columns = (width / WIDTH).clamp(1, 3);
    let height = Factor::ALL.len().div_ceil(columns);
    for y in 0..height {
        let cells = (0..columns).filter_map(|x| Factor::ALL.get(x * height + y));
        let line: String = cells
            .map(|factor| format!("{:<WIDTH$}", cell(*factor)))
            .collect();
        lines.push(line.trim_end().to_owned());
    }
    lines
}

/// Returns the letter and the names of a factor; a short name only if there is one.
fn cell(factor: Factor) -> String {
    let (letter, short, name) = (factor.letter(), factor.short(), factor.name());
    match short == name {
        true => format!("{letter} {name}"),
        false => format!("{letter} {short:<8} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_factor_has_its_own_letter_and_short_name_and_both_are_explained() {
        let letters: HashSet<_> = Factor::ALL.iter().map(|f| f.letter()).collect();
        let names: HashSet<_> = Factor::ALL.iter().map(|f| f.short()).collect();
        assert_eq!(
            (letters.len(), names.len()),
            (Factor::ALL.len(), Factor::ALL.len())
        );
        for width in [40, 60, 80, 200] {
            let help = help(width).join("\n");
            for factor in Factor::ALL {
                assert!(factor.short().len() <= 8, "{factor:?}");
                assert!(
                    help.contains(&cell(*factor)),
                    "{factor:?} at {width}:\n{help}"
                );
            }
        }
    }

    #[test]
    fn the_help_fits_the_smallest_usual_terminal() {
        let lines = help(80);
        assert!(lines.len() <= 22, "{}", lines.len());
        for width in [60, 80, 200] {
            let lines = help(width);
            assert!(
                lines.iter().all(|line| Span::raw(&**line).width() <= width),
                "{lines:#?}"
            );
        }
    }
}
