//! The choice of a destination by the server name of a TLS client.

use std::collections::HashMap;

use crate::config::ServerName;

/// Destinations by server name. `T` is what a name leads to.
#[derive(Debug)]
pub(crate) struct ByName<T> {
    named: HashMap<String, T>,
    /// What the names below a domain lead to.
    below: HashMap<String, T>,
    has_default: bool,
}

/// What a server name leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice<'a, T> {
    /// The destination of this name.
    Named(&'a T),
    /// The destination of a wildcard.
    Below(&'a T),
    /// The forward's own destination.
    Default,
    /// No destination: the client is refused.
    Refused,
}

impl<T> ByName<T> {
    /// `has_default` means that other names, and clients without one, have a destination.
    pub(crate) fn new(names: impl IntoIterator<Item = (ServerName, T)>, has_default: bool) -> Self {
        let (mut named, mut below) = (HashMap::new(), HashMap::new());
        for (name, to) in names {
            match name {
                ServerName::Exact(name) => named.insert(name, to),
                ServerName::Below(domain) => below.insert(domain, to),
            };
        }
        Self {
            named,
            below,
            has_default,
        }
    }

    /// Returns what `name` leads to, which is in lower case without a trailing dot. An exact name
    /// wins over a wildcard, and a longer wildcard over a shorter one.
    pub(crate) fn choose(&self, name: Option<&str>) -> Choice<'_, T> {
        if let Some(name) = name {
            if let Some(to) = self.named.get(name) {
                return Choice::Named(to);
            }
            let mut rest = name;
            while let Some((_, domain)) = rest.split_once('.') {
                if let Some(to) = self.below.get(domain) {
                    return Choice::Below(to);
                }
                rest = domain;
            }
        }
        match self.has_default {
            true => Choice::Default,
            false => Choice::Refused,
        }
    }

    /// Returns everything that a name leads to.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.named.values().chain(self.below.values())
    }

    /// Returns whether both have the same names, which lead to the same by `is_same`.
    pub(crate) fn is_same(&self, other: &Self, is_same: impl Fn(&T, &T) -> bool) -> bool {
        let same = |a: &HashMap<String, T>, b: &HashMap<String, T>| {
            let found = |(name, to)| b.get(name).is_some_and(|other| is_same(to, other));
            a.len() == b.len() && a.iter().all(found)
        };
        self.has_default == other.has_default
            && same(&self.named, &other.named)
            && same(&self.below, &other.below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_name(names: &[(&str, u8)], has_default: bool) -> ByName<u8> {
        let names = names.iter().map(|(name, to)| (name.parse().unwrap(), *to));
        ByName::new(names, has_default)
    }

    #[test]
    fn an_exact_name_wins_then_the_longest_wildcard_then_the_default() {
        let names = [
            ("a.example", 1),
            ("*.example", 2),
            ("*.b.example", 3),
            ("x.b.example", 4),
        ];
        let names = by_name(&names, false);
        for (name, choice) in [
            ("a.example", Choice::Named(&1)),
            ("c.example", Choice::Below(&2)),
            ("x.a.example", Choice::Below(&2)),
            // A wildcard stands for one label or more.
            ("b.example", Choice::Below(&2)),
            ("y.b.example", Choice::Below(&3)),
            ("y.x.b.example", Choice::Below(&3)),
            ("x.b.example", Choice::Named(&4)),
            ("example", Choice::Refused),
            ("badexample", Choice::Refused),
            ("b.example.org", Choice::Refused),
        ] {
            assert_eq!(names.choose(Some(name)), choice, "{name}");
        }
        assert_eq!(names.choose(None), Choice::Refused);
        let names = by_name(&[("a", 1)], true);
        assert_eq!(names.choose(Some("a")), Choice::Named(&1));
        assert_eq!(names.choose(Some("b")), Choice::Default);
        assert_eq!(names.choose(None), Choice::Default);
    }

    #[test]
    fn tables_are_compared_by_name() {
        let one = by_name(&[("a", 1), ("*.a", 2)], true);
        let same = |other: &[(&str, u8)], default| one.is_same(&by_name(other, default), u8::eq);
        assert!(same(&[("*.a", 2), ("a", 1)], true));
        assert!(!same(&[("*.a", 2), ("a", 1)], false));
        assert!(!same(&[("*.a", 1), ("a", 2)], true));
        assert!(!same(&[("a", 1)], true));
    }
}
