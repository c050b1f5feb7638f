//! Makes untrusted text safe for a terminal.
//!
//! A process chooses its own name, and a user chooses the name of a container. Such a name may
//! contain bytes that move the cursor or change the text direction.

use unicode_width::UnicodeWidthChar as _;

/// The replacement for a character that is not shown.
const INSTEAD: char = '\u{fffd}';

/// Returns `bytes` as text without characters that move the cursor, have no width, or change the
/// text direction. Letters of right-to-left scripts stay, because names contain them.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .map(|c| if is_safe(c) { c } else { INSTEAD })
        .collect()
}

fn is_safe(c: char) -> bool {
    // `width()` is `None` for control characters. Other characters without a width combine with the
    // previous character, or are invisible.
    let wide = c.width().is_some_and(|width| width > 0);
    wide && !matches!(c,
        // Text direction marks (Unicode Standard Annex 9), line separators, and fillers that look
        // like blanks.
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
        | '\u{00ad}' | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_names_stay_unchanged() {
        for name in ["nginx", "kworker/0:1H", "Web Content", "größe", "(sd-pam)"] {
            assert_eq!(text(name.as_bytes()), name);
        }
    }

    #[test]
    fn no_character_that_moves_the_cursor_gets_through() {
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
        fn any_bytes_become_text_of_at_least_one_cell_a_character(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let text = text(&bytes);
            prop_assert!(!text.chars().any(char::is_control));
            prop_assert!(ratatui::text::Span::raw(&*text).width() >= text.chars().count());
        }
    }
}
