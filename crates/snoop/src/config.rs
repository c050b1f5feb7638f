//! `[snoop]` of the configuration file: what the command line can say, too.

use std::net::SocketAddr;
use std::path::PathBuf;

use bytesize::ByteSize;
use glob::Pattern;
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};

/// Where the configuration is, if nothing else is said.
pub const CONFIG: &str = "/etc/taut/taut.toml";

/// The widest window that there is (RFC 7323 2.3), less one byte: sequence numbers are compared within
/// half of their space.
const WINDOW_MAX: u64 = (1 << 30) - 1;

/// Less than this would be less than two segments.
const BUFFER_LEAST: u64 = 4096;

/// What is asked for; what is not is left to the default.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Names of taps, with `*` and `?`.
    #[serde(deserialize_with = "patterns")]
    pub taps: Vec<Pattern>,
    /// Places of each ring, at least.
    pub ring: Option<u32>,
    /// No window that a sender is told is wider.
    #[serde(deserialize_with = "window")]
    pub buffer: Option<ByteSize>,
    /// Promise beyond the window that the guest offers.
    pub grow: bool,
    /// What every connection of the guests takes, with `grow`.
    #[serde(deserialize_with = "window")]
    pub guest_rcvbuf: Option<ByteSize>,
    /// Acknowledge from the first segment where that can be argued.
    pub start_early: bool,
    /// Also flows with ECT.
    pub ecn: bool,
    /// Flows that are followed at each tap.
    pub flows: Option<u32>,
    /// Where OpenMetrics are served.
    pub metrics: Option<SocketAddr>,
    /// Where questions are answered.
    pub control: Option<PathBuf>,
}

/// Why a configuration is none.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is not written as it has to be; the library says where.
    #[error("{0}")]
    Text(#[from] toml::de::Error),
    /// It asks for what cannot be.
    #[error("{0}")]
    Sense(&'static str),
}

/// A file has the tables of all jobs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    snoop: Option<Settings>,
    #[serde(rename = "relay")]
    _relay: Option<IgnoredAny>,
}

// === impl Settings ===

impl Settings {
    /// Those of a configuration's text; the default without `[snoop]`.
    ///
    /// # Errors
    /// [`ConfigError::Text`].
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let file: File = toml::from_str(text)?;
        Ok(file.snoop.unwrap_or_default())
    }

    /// These, and where they say nothing, those.
    #[must_use]
    pub fn over(self, those: Self) -> Self {
        Self {
            taps: if self.taps.is_empty() {
                those.taps
            } else {
                self.taps
            },
            ring: self.ring.or(those.ring),
            buffer: self.buffer.or(those.buffer),
            grow: self.grow || those.grow,
            guest_rcvbuf: self.guest_rcvbuf.or(those.guest_rcvbuf),
            start_early: self.start_early || those.start_early,
            ecn: self.ecn || those.ecn,
            flows: self.flows.or(those.flows),
            metrics: self.metrics.or(those.metrics),
            control: self.control.or(those.control),
        }
    }

    /// Whether they make sense together.
    ///
    /// # Errors
    /// [`ConfigError::Sense`]: a sentence.
    pub fn check(&self) -> Result<(), ConfigError> {
        let sense = |wrong, why| {
            if wrong {
                Err(ConfigError::Sense(why))
            } else {
                Ok(())
            }
        };
        let too_wide = |size: Option<ByteSize>| size.is_some_and(|size| size.as_u64() > WINDOW_MAX);
        sense(
            self.taps.is_empty(),
            "no tap is named: say --tap NAME, or `taps = [\"vnet*\"]` in [snoop] of the configuration",
        )?;
        sense(
            self.grow && self.guest_rcvbuf.is_none(),
            "to promise beyond the guest's window (grow) needs guest_rcvbuf: the bytes that every connection of the \
             guest is sure to take, whether it reads or not (docs/snoop.md says what is at stake)",
        )?;
        sense(
            !self.grow && self.guest_rcvbuf.is_some(),
            "guest_rcvbuf is what grow may promise, and nothing without it: say both or none",
        )?;
        sense(
            too_wide(self.buffer) || too_wide(self.guest_rcvbuf),
            "no window is of 1 GiB or more (RFC 7323 2.3): buffer and guest_rcvbuf have to be less",
        )?;
        sense(
            self.buffer.is_some_and(|size| size.as_u64() < BUFFER_LEAST),
            "a buffer of less than 4 KiB would hold every connection up: give it more",
        )?;
        sense(
            self.ring.is_some_and(|ring| !(1..=65_536).contains(&ring)),
            "a ring has 1 to 65,536 places",
        )?;
        sense(
            self.flows
                .is_some_and(|flows| !(1..=1_048_576).contains(&flows)),
            "1 to 1,048,576 flows can be followed at a tap",
        )
    }
}

fn patterns<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Pattern>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    let pattern = |name: &String| {
        Pattern::new(name).map_err(|e| D::Error::custom(format!("`{name}` is no pattern: {e}")))
    };
    names.iter().map(pattern).collect()
}

fn window<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ByteSize>, D::Error> {
    let text = String::deserialize(from)?;
    let size = text.parse().map_err(|e| {
        D::Error::custom(format!(
            "`{text}` is no size: {e} (such as \"4MiB\" or \"65536\")"
        ))
    })?;
    Ok(Some(size))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use proptest::prelude::*;

    use super::*;

    fn taps(names: &[&str]) -> Vec<Pattern> {
        names
            .iter()
            .map(|name| Pattern::new(name).unwrap())
            .collect()
    }

    #[test]
    fn everything_can_be_said() {
        let settings = Settings::parse(
            "[relay]\nworkers = 2\n[snoop]\ntaps = [\"vnet*\", \"tap0\"]\nring = 1000\nbuffer = \"256KiB\"\ngrow = true\n\
             guest_rcvbuf = \"1MiB\"\nstart_early = true\necn = true\nflows = 100\nmetrics = \"127.0.0.1:9465\"\n\
             control = \"/run/snoop.sock\"",
        )
        .unwrap();
        settings.check().unwrap();
        assert_eq!(settings.taps, taps(&["vnet*", "tap0"]));
        assert_eq!(settings.guest_rcvbuf, Some(ByteSize::mib(1)));
        assert_eq!(settings.metrics.unwrap().port(), 9465);
    }

    #[test]
    fn the_command_line_goes_over_the_file() {
        let file = Settings::parse("[snoop]\ntaps = [\"a\"]\nring = 5\necn = true").unwrap();
        let line = Settings {
            taps: taps(&["b"]),
            ..Settings::default()
        };
        let both = line.over(file);
        assert_eq!(
            (both.taps, both.ring, both.ecn),
            (taps(&["b"]), Some(5), true)
        );
    }

    #[test]
    fn what_cannot_be_is_said_in_a_sentence() {
        for (text, word) in [
            ("[snoop]\ntap = [\"a\"]", "unknown field `tap`"),
            ("[snoop]\ntaps = [\"a[\"]", "`a[` is no pattern"),
            (
                "[snoop]\ntaps = [\"a\"]\nbuffer = \"many\"",
                "`many` is no size",
            ),
            ("[snop]", "unknown field `snop`"),
            ("", "no tap is named"),
            ("[snoop]\ntaps = [\"a\"]\ngrow = true", "needs guest_rcvbuf"),
            (
                "[snoop]\ntaps = [\"a\"]\nguest_rcvbuf = \"1MiB\"",
                "say both or none",
            ),
            (
                "[snoop]\ntaps = [\"a\"]\nbuffer = \"1GiB\"",
                "have to be less",
            ),
            (
                "[snoop]\ntaps = [\"a\"]\nbuffer = \"1KiB\"",
                "less than 4 KiB",
            ),
            ("[snoop]\ntaps = [\"a\"]\nring = 0", "1 to 65,536"),
            ("[snoop]\ntaps = [\"a\"]\nflows = 0", "1 to 1,048,576"),
        ] {
            let said = Settings::parse(text).and_then(|settings| settings.check());
            let said = said.unwrap_err().to_string();
            assert!(said.contains(word), "{text:?}: {said}");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_is_read_makes_it_panic(text: String) {
            let _ = Settings::parse(&format!("[snoop]\ntaps = [\"a\"]\n{text}")).map(|s| s.check());
        }
    }
}
