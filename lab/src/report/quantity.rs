//! Texts that consist of a number and a unit, such as `10 kB` or `20 senders`.

/// A number and its unit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Quantity {
    /// The value in the unit without a prefix: `10 kB` is 10000.
    pub(super) value: f64,
    /// The unit: `B`, `sender`, or empty.
    pub(super) unit: String,
}

/// Parses the texts as quantities. Returns `None` unless all are quantities of the same unit.
pub(super) fn all<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<Vec<Quantity>> {
    let quantities = words
        .into_iter()
        .map(Quantity::of)
        .collect::<Option<Vec<_>>>()?;
    let one = quantities
        .windows(2)
        .all(|pair| pair[0].unit == pair[1].unit);
    one.then_some(quantities)
}

/// Sorts `items` by size if their texts are quantities of the same unit.
pub(super) fn sort<T>(items: &mut Vec<T>, word: impl Fn(&T) -> &str) {
    let Some(sizes) = all(items.iter().map(&word)) else {
        return;
    };
    let mut sized: Vec<_> = sizes.into_iter().zip(items.drain(..)).collect();
    sized.sort_by(|(a, _), (b, _)| a.value.total_cmp(&b.value));
    items.extend(sized.into_iter().map(|(_, item)| item));
}

// === impl Quantity ===

impl Quantity {
    fn of(word: &str) -> Option<Self> {
        let word = word.trim();
        let end = word
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(word.len());
        let (number, unit) = (&word[..end], word[end..].trim());
        let number: f64 = number.parse().ok().filter(|n: &f64| n.is_finite())?;
        let (factor, unit) = without_prefix(unit);
        Some(Self {
            value: number * factor,
            unit: unit.to_owned(),
        })
    }
}

/// Splits a unit into the factor of its prefix and the rest in the singular: `1 sender`, `2
/// senders`.
fn without_prefix(unit: &str) -> (f64, &str) {
    match unit {
        "kB" => (1e3, "B"),
        "MB" => (1e6, "B"),
        "GB" => (1e9, "B"),
        "kbit/s" => (1e3, "bit/s"),
        "Mbit/s" => (1e6, "bit/s"),
        "Gbit/s" => (1e9, "bit/s"),
        "us" | "µs" => (1e-6, "s"),
        "ms" => (1e-3, "s"),
        "s" => (1.0, "s"),
        word => (1.0, word.strip_suffix('s').unwrap_or(word)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_compare_across_their_prefixes() {
        let sizes = all(["1 MB", "10 kB", "2000 B"]).unwrap();
        let values: Vec<f64> = sizes.iter().map(|q| q.value).collect();
        assert_eq!(values, [1e6, 1e4, 2e3]);
    }

    #[test]
    fn a_plural_counts_the_same_thing() {
        let senders = all(["1 sender", "20 senders"]).unwrap();
        assert_eq!(senders[0].unit, "sender");
        assert_eq!(senders[1].value, 20.0);
    }

    #[test]
    fn words_that_are_not_quantities_of_one_unit_are_none() {
        assert_eq!(all(["10 kB", "1 s"]), None);
        assert_eq!(all(["10 kB", "large"]), None);
        assert_eq!(all(["1.2.3 s"]), None);
        assert_eq!(all([""]), None);
    }
}
