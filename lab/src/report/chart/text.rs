//! Estimates the width of text without the reader's fonts.
//!
//! The widths are those of Helvetica and Arial by class of letter, with an allowance for wider
//! fonts that a system may use instead. An error of some pixels only moves a label.

/// DejaVu Sans and Verdana are about this much wider than Helvetica.
const ALLOWANCE: f64 = 1.14;

/// Returns the width of `text` at a font size.
pub(in super::super) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(em).sum::<f64>() * size * ALLOWANCE
}

/// Returns `text`, cut with an ellipsis if it would be wider than `most`.
pub(in super::super) fn fit(text: &str, size: f64, most: f64) -> String {
    if width(text, size) <= most {
        return text.to_owned();
    }
    let room = most - width("…", size);
    let mut used = 0.0;
    let mut cut: String = text
        .chars()
        .take_while(|letter| {
            used += em(*letter) * size * ALLOWANCE;
            used <= room
        })
        .collect();
    cut.push('…');
    cut
}

fn em(letter: char) -> f64 {
    match letter {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '|' | '!' | '\'' | '/' | ' ' => 0.28,
        'f' | 'r' | 't' | '(' | ')' | '-' => 0.34,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '…' => 0.9,
        'A'..='Z' | '+' | '×' => 0.68,
        // Ideographs, kana, hangul and emoji fill a square.
        '\u{1100}'.. if !('\u{2000}'..='\u{2BFF}').contains(&letter) => 1.0,
        _ => 0.556,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_text_fits() {
        let long = "a configuration with a name that nobody can remember";
        let cut = fit(long, 12.0, 100.0);
        assert!(cut.ends_with('…'));
        assert!(width(&cut, 12.0) <= 100.0);
        assert_eq!(fit("relay", 12.0, 100.0), "relay");
        assert_eq!(fit("relay", 12.0, 0.0), "…");
    }

    #[test]
    fn wide_letters_are_wide() {
        assert!(width("中文", 10.0) > width("il", 10.0) * 3.0);
    }
}
