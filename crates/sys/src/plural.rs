//! Numbers with their nouns, for sentences.
//!
//! It is here because every crate that speaks to people uses this one.

/// Returns a number with its noun, whose singular is given: `1 session`, `2 sessions`, `0 addresses`.
pub fn counted(count: impl TryInto<u64>, noun: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {noun}"),
        count => format!("{count} {}", plural(noun)),
    }
}

fn plural(noun: &str) -> String {
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
        _ if noun.ends_with(['s', 'x']) => format!("{noun}es"),
        _ => format!("{noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_everything_else_plural() {
        for (count, noun, text) in [
            (0, "session", "0 sessions"),
            (1, "session", "1 session"),
            (2, "network namespace", "2 network namespaces"),
            (1, "address", "1 address"),
            (3, "address", "3 addresses"),
            (4, "query", "4 queries"),
            (5, "key", "5 keys"),
        ] {
            assert_eq!(counted(count, noun), text);
        }
        assert_eq!(counted(u128::MAX, "byte"), format!("{} bytes", u64::MAX));
    }
}
