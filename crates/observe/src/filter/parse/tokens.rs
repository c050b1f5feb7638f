//! The words of a filter.

use super::FilterError;

/// A word of the filter. A quoted word is never an operator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    pub(super) quoted: bool,
}

/// Splits at blanks and around parentheses and operators. Quoted text is one word.
pub(super) fn words(text: &str) -> Result<Vec<Word<'_>>, FilterError> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        if let '"' | '\'' = first {
            let inside = &rest[1..];
            let Some(end) = inside.find(first) else {
                return Err(FilterError {
                    what: "a quote is not closed".into(),
                    word: Some(rest.to_owned()),
                    advice: None,
                });
            };
            words.push(Word {
                text: &inside[..end],
                quoted: true,
            });
            rest = inside[end + 1..].trim_start();
            continue;
        }
        let length = match first {
            '(' | ')' => 1,
            '&' | '|' if rest[1..].starts_with(first) => 2,
            '=' | '!' | '<' | '>' if rest[1..].starts_with('=') => 2,
            '&' | '|' | '=' | '!' | '<' | '>' => 1,
            _ => {
                let ends = |c: char| {
                    c.is_whitespace() || matches!(c, '(' | ')' | '"' | '\'' | '=' | '<' | '>')
                };
                let word = rest.find(ends).unwrap_or(rest.len());
                // `dport!=443`, but not the `!` in a pattern such as `[!a]`.
                match rest[..word].strip_suffix('!') {
                    Some(before) if rest[word..].starts_with('=') => before.len(),
                    _ => word,
                }
            }
        };
        let (word, after) = rest.split_at(length);
        words.push(Word {
            text: word,
            quoted: false,
        });
        rest = after.trim_start();
    }
    Ok(words)
}
