//! Strangers' text, made fit for a terminal.
//!
//! A process chooses its name, and a container's is chosen by whoever starts it: bytes that may move
//! the cursor, or turn the reading direction round.

use unicode_width::UnicodeWidthChar as _;

/// What stands for a character that is not shown.
const INSTEAD: char = '\u{fffd}';

/// `bytes` as text in which nothing moves the cursor, is without width, or turns the direction of what follows.
/// (Letters of scripts that are written from the right stay: they are names too.)
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .map(|c| if is_plain(c) { c } else { INSTEAD })
        .collect()
}

fn is_plain(c: char) -> bool {
    // Control characters have no width here; what has none is a mark on the character before it, or hidden.
    let wide = c.width().is_some_and(|width| width > 0);
    wide && !matches!(c,
        // Marks that turn the direction (Unicode Standard Annex 9), separators of lines, and fillers that look like
        // blanks.
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
        | '\u{00ad}' | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_stay_as_they_are() {
        for name in ["nginx", "kworker/0:1H", "Web Content", "größe", "(sd-pam)"] {
            assert_eq!(text(name.as_bytes()), name);
        }
    }

    #[test]
    fn nothing_gets_through_that_moves_a_cursor() {
        assert_eq!(
            text(b"\x1b[2Jx\r\n\x07"),
            "\u{fffd}[2Jx\u{fffd}\u{fffd}\u{fffd}"
        );
        assert_eq!(
            text("a\u{202e}b\u{9b}31m".as_bytes()),
            "a\u{fffd}b\u{fffd}31m"
        );
        assert_eq!(text(b"\xff\xfe"), "\u{fffd}\u{fffd}");
    }

    proptest! {
        #[test]
        fn whatever_comes_takes_its_place_and_no_more(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let text = text(&bytes);
            prop_assert!(!text.chars().any(char::is_control));
            prop_assert!(ratatui::text::Span::raw(&*text).width() >= text.chars().count());
        }
    }
}
