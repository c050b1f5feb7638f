//! Where the monitor of the machine at a tap is.

use std::path::PathBuf;
use std::str::FromStr;

use glob::Pattern;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// What a socket's path has in place of the tap's name.
const TAP: &str = "{tap}";

/// What it has in place of the part of the name that the first `*` stands for.
const FIRST: &str = "{1}";

/// `TAP=SOCKET`: taps, by name or pattern, and the QMP sockets of their machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    taps: Pattern,
    socket: String,
}

/// Why a text names no monitor.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SourceError {
    /// It has no `=`, or nothing on one side of it.
    #[error("`{0}` is not of the form TAP=SOCKET, such as `tap0=/run/vm1.qmp`")]
    Form(String),
    /// The part before `=` is no pattern.
    #[error("`{0}` is no name or pattern of a tap: {1}")]
    Pattern(String, String),
    /// A process that changes its folder would lose it.
    #[error("the QMP socket `{0}` needs its whole path, such as `/run/vm1.qmp`")]
    Relative(String),
}

// === impl Source ===

impl Source {
    /// The socket of the machine at this tap; `None`: this says nothing of the tap.
    pub fn socket_of(&self, tap: &str) -> Option<PathBuf> {
        if !self.taps.matches(tap) {
            return None;
        }
        let first = self.first_star(tap).unwrap_or_default();
        Some(self.socket.replace(TAP, tap).replace(FIRST, first).into())
    }

    /// The shortest part of a tap's name that the first `*` can stand for.
    fn first_star<'a>(&self, tap: &'a str) -> Option<&'a str> {
        let (before, after) = self.taps.as_str().split_once('*')?;
        let after = Pattern::new(after).ok()?;
        // What is before it may have a `?`, which stands for one character.
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
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

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
    fn what_names_no_socket_is_refused() {
        for (text, part) in [
            ("", "not of the form TAP=SOCKET"),
            ("tap0", "not of the form TAP=SOCKET"),
            ("=/run/vm1.qmp", "not of the form TAP=SOCKET"),
            ("tap0=", "not of the form TAP=SOCKET"),
            ("tap[=/run/{tap}", "no name or pattern"),
            ("tap0=run/vm1.qmp", "needs its whole path"),
        ] {
            let refused = text.parse::<Source>().unwrap_err().to_string();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text: String, tap in "[a-z0-9]{1,15}") {
            let _ = text.parse::<Source>().map(|source| source.socket_of(&tap));
        }
    }
}
