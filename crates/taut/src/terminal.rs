//! The width of the terminal, and text that fits it.

use std::io::{self, IsTerminal as _};

use ratatui::crossterm::terminal;

/// The width of a page, beyond which lines of text are hard to read.
pub(crate) const PAGE: usize = 80;

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

/// Wraps text at blanks. A word longer than `width` gets a line of its own.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
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
