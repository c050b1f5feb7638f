//! Parses the name of a series.

/// The parts of a series' name, such as `relay/10 MB/0.1 % loss`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name<'a> {
    /// The configuration: `relay`.
    pub(super) configuration: &'a str,
    /// The group: `10 MB`.
    pub(super) group: Option<&'a str>,
    /// The world's condition, including any words after the third: `0.1 % loss`. `None` in the
    /// experiment's own world.
    pub(super) condition: Option<&'a str>,
}

// === impl Name ===

impl<'a> Name<'a> {
    pub(super) fn of(name: &'a str) -> Self {
        let mut words = name.splitn(3, '/');
        Self {
            configuration: words.next().unwrap_or_default(),
            group: words.next(),
            condition: words.next(),
        }
    }
}

/// Returns a configuration as figures name it: in words, where outcomes have an abbreviation.
pub(super) fn in_words(configuration: &str) -> &str {
    match configuration {
        "e2e" => "end to end",
        "e2e-bbr" => "end to end, BBR",
        "e2e-turbo" => "end to end, turbo start",
        "split+es" => "split + early SYN",
        "split+es+pool" => "early SYN + pool",
        "taut-bbr" => "taut, BBR to the client",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_goes_from_the_general_to_the_particular() {
        let all = Name::of("relay/10 MB/0.1 % loss/two flows");
        assert_eq!(all.configuration, "relay");
        assert_eq!(all.group, Some("10 MB"));
        assert_eq!(all.condition, Some("0.1 % loss/two flows"));
        let one = Name::of("relay");
        assert_eq!(one.configuration, "relay");
        assert_eq!((one.group, one.condition), (None, None));
    }
}
