//! Host names, compared as DNS compares them.

/// Returns `text` without the trailing dot of a fully qualified name, or `None` if it is not a
/// valid host name (RFC 1123 2.1; underscores are valid too, because names with them exist).
///
/// A name whose last label is a number is not valid: resolvers take `127.1` and `0x7f000001` for
/// addresses, and an address must be checked as one.
pub(crate) fn host_name(text: &str) -> Option<&str> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let sound = name.len() <= 253 && name.split('.').all(is_label);
    (sound && !is_number(name.rsplit('.').next()?)).then_some(name)
}

/// Returns whether two names are the same (RFC 4343). Neither has a trailing dot.
pub(super) fn same(name: &str, other: &str) -> bool {
    name.eq_ignore_ascii_case(other)
}

/// Returns whether `name` is one label or more below `parent`.
pub(super) fn is_below(name: &str, parent: &str) -> bool {
    let Some(at) = name.len().checked_sub(parent.len()) else {
        return false;
    };
    let (Some(head), Some(tail)) = (name.get(..at), name.get(at..)) else {
        return false;
    };
    head.len() > 1 && head.ends_with('.') && same(tail, parent)
}

fn is_label(label: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=63).contains(&label.len())
        && label.bytes().all(inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

fn is_number(label: &str) -> bool {
    let hex = label
        .strip_prefix("0x")
        .or_else(|| label.strip_prefix("0X"));
    match hex {
        Some(digits) => digits.bytes().all(|b| b.is_ascii_hexdigit()),
        None => label.bytes().all(|b| b.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_a_resolver_takes_for_an_address_is_not_a_name() {
        for text in [
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0177.0.0.01",
            "127.0.0.1.",
            "0x",
            "::1",
            "[::1]",
            "fe80::1%eth0",
            "",
            ".",
            "a..b",
            "-a",
            "a-",
            "a b",
            "a/b",
            "a:80",
            "é",
        ] {
            assert_eq!(host_name(text), None, "{text}");
        }
        assert_eq!(host_name("Example.ORG."), Some("Example.ORG"));
        assert_eq!(
            host_name("_sip.xn--bcher-kva.example"),
            Some("_sip.xn--bcher-kva.example")
        );
        assert_eq!(host_name(&"a".repeat(64)), None);
        // 253 bytes and a trailing dot are the maximum.
        assert!(host_name(&"a.".repeat(127)).is_some());
        assert_eq!(host_name(&"a.".repeat(128)), None);
    }

    #[test]
    fn below_means_whole_labels() {
        assert!(is_below("a.example.org", "example.org"));
        assert!(is_below("A.b.EXAMPLE.org", "example.org"));
        assert!(!is_below("example.org", "example.org"));
        assert!(!is_below("badexample.org", "example.org"));
        assert!(!is_below(".example.org", "example.org"));
        assert!(!is_below("org", "example.org"));
    }
}
