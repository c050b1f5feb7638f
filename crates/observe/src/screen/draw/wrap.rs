//! Wraps text at blanks.

use unicode_width::UnicodeWidthStr as _;

/// Wraps a line at blanks so that each part has at most `width` columns, and begins with the blanks of
/// the line. A longer word is a part of its own.
pub(super) fn wrap(line: &str, width: usize) -> Vec<String> {
    let indent = &line[..line.len() - line.trim_start().len()];
    let mut parts = vec![indent.to_owned()];
    let mut is_empty = true;
    for word in line.split_whitespace() {
        let last = parts.len() - 1;
        if !is_empty && parts[last].width() + 1 + word.width() > width {
            parts.push(indent.to_owned() + word);
            continue;
        }
        if !is_empty {
            parts[last].push(' ');
        }
        parts[last].push_str(word);
        is_empty = false;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_the_indentation_and_fits() {
        assert_eq!(wrap("  one two three", 9), ["  one two", "  three"]);
        assert_eq!(wrap("", 9), [""]);
        assert_eq!(
            wrap("internationalisation is", 9),
            ["internationalisation", "is"]
        );
    }
}
