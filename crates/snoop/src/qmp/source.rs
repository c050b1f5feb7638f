//! Maps taps to the QMP sockets of their machines.

use std::path::PathBuf;
use std::str::FromStr;

use glob::Pattern;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// The placeholder for the tap's name in a socket's path.
const TAP: &str = "{tap}";

/// The placeholder for the part of the name that the first `*` matched.
const FIRST: &str = "{1}";

/// `TAP=SOCKET`: taps, by name or pattern, and the QMP sockets of their machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    taps: Pattern,
    socket: String,
}

/// The reason why a source is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SourceError {
    /// The text has no `=`, or one side is empty.
    #[error("`{0}` is not of the form TAP=SOCKET, such as `tap0=/run/vm1.qmp`")]
    Form(String),
    /// The part before `=` is not a valid pattern.
    #[error("`{0}` is not a tap's name or pattern: {1}")]
    Pattern(String, String),
    /// The path is relative, so it would depend on the working directory.
    #[error("the QMP socket `{0}` must be an absolute path, such as `/run/vm1.qmp`")]
    Relative(String),
}

// === impl Source ===

impl Source {
    /// Returns the socket of the machine at this tap, or `None` if this source does not name the
    /// tap.
    pub fn socket_of(&self, tap: &str) -> Option<PathBuf> {
        if !self.taps.matches(tap) {
            return None;
        }
        let first = self.first_star(tap).unwrap_or_default();
        Some(self.socket.replace(TAP, tap).replace(FIRST, first).into())
    }

    /// Returns the shortest part of a tap's name that the first `*` can match.
    fn first_star<'a>(&self, tap: &'a str) -> Option<&'a str> {
        let (before, after) = self.taps.as_str().split_once('*')?;
        let after = Pattern::new(after).ok()?;
        // The part before it may contain a `?`, which matches one character.
        let begin = tap
            .char_indices()
            .map(|(at, _)| at)
            .nth(before.chars().count());
        let rest = &tap[begin.unwrap_or(tap.len())..];
        let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
        let mut parts = ends.map(|end| rest.split_at(end));
        parts
            .find(|(_, tail)| after.matches(tail))
            .map(|(part, _)| part)
    }
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let (taps, socket) = match text.split_once('=') {
            Some((taps, socket)) if !taps.is_empty() && !socket.is_empty() => (taps, socket),
            _ => return Err(SourceError::Form(text.to_owned())),
        };
        let pattern =
            Pattern::new(taps).map_err(|e| SourceError::Pattern(taps.to_owned(), e.to_string()))?;
        if !socket.starts_with('/') {
            return Err(SourceError::Relative(socket.to_owned()));
        }
        Ok(Self {
            taps: pattern,
            socket: socket.to_owned(),
        })
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tap_has_its_machines_socket() {
        let one: Source = "tap0=/run/vm1.qmp".parse().unwrap();
        assert_eq!(one.socket_of("tap0"), Some("/run/vm1.qmp".into()));
        assert_eq!(one.socket_of("tap1"), None);
        let many: Source = "vnet*=/run/qmp/{tap}/{tap}.sock".parse().unwrap();
        assert_eq!(
            many.socket_of("vnet7"),
            Some("/run/qmp/vnet7/vnet7.sock".into())
        );
        assert_eq!(many.socket_of("tap0"), None);
    }

    #[test]
    fn taps_of_one_machine_have_one_socket() {
        let guests: Source = "tap*i*=/run/taut/{1}.qmp".parse().unwrap();
        for tap in ["tap100i0", "tap100i11"] {
            assert_eq!(guests.socket_of(tap), Some("/run/taut/100.qmp".into()));
        }
        assert_eq!(guests.socket_of("tap0"), None);
        let one: Source = "tap?=/run/{1}.qmp".parse().unwrap();
        assert_eq!(one.socket_of("tap7"), Some("/run/.qmp".into()));
    }

    #[test]
    fn an_invalid_source_is_refused() {
        for (text, part) in [
            ("", "not of the form TAP=SOCKET"),
            ("tap0", "not of the form TAP=SOCKET"),
            ("=/run/vm1.qmp", "not of the form TAP=SOCKET"),
            ("tap0=", "not of the form TAP=SOCKET"),
            ("tap[=/run/{tap}", "not a tap's name or pattern"),
            ("tap0=run/vm1.qmp", "must be an absolute path"),
        ] {
            let refused = text.parse::<Source>().unwrap_err().to_string();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }

    proptest! {
        #[test]
        fn no_input_makes_the_parser_panic(text: String, tap in "[a-z0-9]{1,15}") {
            let _ = text.parse::<Source>().map(|source| source.socket_of(&tap));
        }
    }
}
