//! The width of the terminal, and text that fits it.

use std::io::{self, IsTerminal as _};

use ratatui::crossterm::terminal;
use unicode_width::UnicodeWidthStr as _;

/// The width of a page, beyond which lines of text are hard to read.
pub(crate) const PAGE: usize = 80;

/// The sequences that begin and end bold text.
const EMPHASIS: [&str; 2] = ["\x1b[1m", "\x1b[0m"];

/// Returns the width of the terminal, or of a page.
pub(crate) fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let terminal = || {
        let size = io::stdout().is_terminal().then(terminal::size)?.ok()?;
        Some(usize::from(size.0))
    };
    columns
        .or_else(terminal)
        .filter(|width| *width > 0)
        .unwrap_or(PAGE)
}

/// Returns how a terminal emphasises text; other outputs do not.
pub(crate) fn emphasis() -> fn(&str) -> String {
    let is_smart = std::env::var_os("TERM").is_some_and(|term| term != "dumb");
    match io::stdout().is_terminal() && is_smart {
        true => |text| {
            let [begin, end] = EMPHASIS;
            format!("{begin}{text}{end}")
        },
        false => str::to_owned,
    }
}

/// Wraps the lines of a text at a terminal. A line that does not fit goes on further to the right.
pub(crate) fn fitted(text: &str) -> String {
    match io::stdout().is_terminal() {
        true => fit(text, width()),
        false => text.to_owned(),
    }
}

pub(crate) fn fit(text: &str, width: usize) -> String {
    let mut fitted = String::with_capacity(text.len());
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let is_whole = columns(line) <= width;
        match width.checked_sub(indent + 20) {
            Some(room) if !is_whole => {
                let lines = wrap(line, room + 18);
                let lines = lines.join(&format!("\n{:1$}", "", indent + 2));
                fitted += &format!("{:indent$}{lines}\n", "");
            }
            _ => fitted += &format!("{line}\n"),
        }
    }
    fitted
}

/// Returns the number of columns that a text takes, without what emphasises it.
fn columns(text: &str) -> usize {
    let [begin, end] = EMPHASIS;
    text.replace(begin, "").replace(end, "").width()
}

/// Wraps text at blanks, but not those of a command in backquotes, so that it can be copied. What is
/// longer than `width` gets a line of its own.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut is_command = false;
    let words = text.split(|c| {
        is_command ^= c == '`';
        c == ' ' && !is_command
    });
    for word in words.filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) <= width => {
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
    use super::fit;

    #[test]
    fn sentences_are_broken_at_words_and_commands_are_not() {
        let text = "10.0.0.1:1 -> 10.0.0.2:2\n    one two three four five six\n  what helps: `taut tune --apply`, now\n";
        let broken = "10.0.0.1:1 -> 10.0.0.2:2\n    one two three four\n      five six\n  what helps:\n    `taut tune --apply`,\n    now\n";
        assert_eq!(fit(text, 24), broken);
        assert_eq!(fit(text, 200), text);
        // Too narrow to be of use.
        assert_eq!(fit(text, 10), text);
    }
}
