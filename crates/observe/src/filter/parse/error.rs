//! What is wrong with a filter.

/// Why a filter is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}{}{}", at(.word), after(.advice))]
pub struct FilterError {
    pub(super) what: String,
    /// The wrong word; `None` for the end of the filter.
    pub(super) word: Option<String>,
    /// What to write instead.
    pub(super) advice: Option<String>,
}

fn after(advice: &Option<String>) -> String {
    advice
        .as_ref()
        .map_or_else(String::new, |advice| format!("; {advice}"))
}

fn at(word: &Option<String>) -> String {
    match word {
        Some(word) => format!(", at {:?}", crate::sanitize::text(word.as_bytes())),
        None => ", at its end".into(),
    }
}

pub(super) fn wrong(what: String, word: &str, advice: Option<String>) -> FilterError {
    FilterError {
        what,
        word: Some(word.to_owned()),
        advice,
    }
}
