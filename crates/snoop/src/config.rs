//! `[snoop]` of the configuration file: what the command line can say, too.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use glob::Pattern;
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};

use crate::qmp::Source;
use crate::wire::Net;

/// Where the configuration is, if nothing else is said.
pub const CONFIG: &str = "/etc/taut/taut.toml";

/// The widest window that there is (RFC 7323 2.3), less one byte: sequence numbers are compared within
/// half of their space.
const WINDOW_MAX: u64 = (1 << 30) - 1;

/// Less than this would be less than two segments.
const BUFFER_LEAST: u64 = 4096;

/// The longest that a guest may acknowledge nothing while segments are acknowledged early for it.
const EXPOSURE_TIME_MAX: Duration = Duration::from_secs(60);

/// As many networks as the programs have room for.
const GUEST_NETS: usize = 1024;

/// The least room for copies: one frame of the largest kind, and some.
const COPIES_LEAST: u64 = 1 << 20;

/// The Ethernet address of the guest at some taps: `TAP=ADDRESS`, such as `vnet0=52:54:00:12:34:56`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestMac {
    /// Names of taps, with `*` and `?`.
    pub tap: Pattern,
    /// The address.
    pub mac: [u8; 6],
}

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
    /// Bytes of a flow that may be acknowledged early and not yet by the guest.
    #[serde(deserialize_with = "window")]
    pub exposure: Option<ByteSize>,
    /// How long the guest may acknowledge none of them before no more are acknowledged early.
    #[serde(deserialize_with = "time")]
    pub exposure_time: Option<Duration>,
    /// Bytes of frames that are retained for all guests until they have acknowledged them.
    #[serde(deserialize_with = "window")]
    pub copies: Option<ByteSize>,
    /// Guests' own Ethernet addresses.
    #[serde(rename = "guest_mac", deserialize_with = "parsed")]
    pub guest_macs: Vec<GuestMac>,
    /// Networks that guests' addresses are in; nothing is acknowledged early for others.
    #[serde(rename = "guest_net", deserialize_with = "parsed")]
    pub guest_nets: Vec<Net>,
    /// A TTL that guests send with, beside 64, 128 and 255.
    pub guest_ttl: Option<u8>,
    /// Where the monitors of guests' machines are.
    pub qmp: Vec<Source>,
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
            taps: either(self.taps, those.taps),
            ring: self.ring.or(those.ring),
            buffer: self.buffer.or(those.buffer),
            grow: self.grow || those.grow,
            guest_rcvbuf: self.guest_rcvbuf.or(those.guest_rcvbuf),
            start_early: self.start_early || those.start_early,
            ecn: self.ecn || those.ecn,
            flows: self.flows.or(those.flows),
            exposure: self.exposure.or(those.exposure),
            exposure_time: self.exposure_time.or(those.exposure_time),
            copies: self.copies.or(those.copies),
            guest_macs: either(self.guest_macs, those.guest_macs),
            guest_nets: either(self.guest_nets, those.guest_nets),
            guest_ttl: self.guest_ttl.or(those.guest_ttl),
            qmp: either(self.qmp, those.qmp),
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
            too_wide(self.exposure)
                || self
                    .exposure
                    .is_some_and(|size| size.as_u64() < BUFFER_LEAST),
            "exposure is from 4 KiB to less than 1 GiB: bytes of a connection that are acknowledged early and not yet by the guest",
        )?;
        sense(
            self.exposure_time
                .is_some_and(|time| time > EXPOSURE_TIME_MAX),
            "exposure_time is 60 s at most",
        )?;
        sense(
            self.copies.is_some_and(|size| size.as_u64() < COPIES_LEAST),
            "copies need room: 1 MiB at least",
        )?;
        sense(
            self.guest_nets.len() > GUEST_NETS,
            "1,024 networks of guests can be named (guest_net)",
        )?;
        sense(
            self.guest_ttl == Some(0),
            "a TTL is from 1 to 255 (guest_ttl)",
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

// === impl GuestMac ===

impl FromStr for GuestMac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("`{text}` is not TAP=ADDRESS, such as vnet0=52:54:00:12:34:56");
        let (tap, address) = text.rsplit_once('=').ok_or_else(wrong)?;
        let tap = Pattern::new(tap).map_err(|e| format!("`{tap}` is no pattern: {e}"))?;
        let mut mac = [0; 6];
        let mut bytes = address.split(':');
        for byte in &mut mac {
            let digits = bytes.next().filter(|d| (1..=2).contains(&d.len()));
            *byte = u8::from_str_radix(digits.ok_or_else(wrong)?, 16).map_err(|_| wrong())?;
        }
        if bytes.next().is_some() {
            return Err(wrong());
        }
        if mac[0] & 1 != 0 {
            return Err(format!("`{address}` is a group's address, and no guest's"));
        }
        Ok(Self { tap, mac })
    }
}

/// The first unless it is empty.
fn either<T>(first: Vec<T>, second: Vec<T>) -> Vec<T> {
    if first.is_empty() { second } else { first }
}

fn parsed<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = String>,
{
    let texts = Vec::<String>::deserialize(from)?;
    texts
        .iter()
        .map(|text| text.parse().map_err(D::Error::custom))
        .collect()
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    let time = humantime::parse_duration(&text)
        .map_err(|e| D::Error::custom(format!("`{text}` is no time: {e} (such as \"500ms\")")))?;
    Ok(Some(time))
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
            (
                "[snoop]\ntaps = [\"a\"]\nexposure = \"1KiB\"",
                "exposure is from 4 KiB",
            ),
            (
                "[snoop]\ntaps = [\"a\"]\nexposure_time = \"soon\"",
                "`soon` is no time",
            ),
            (
                "[snoop]\ntaps = [\"a\"]\nexposure_time = \"2min\"",
                "60 s at most",
            ),
            (
                "[snoop]\ntaps = [\"a\"]\ncopies = \"1KiB\"",
                "1 MiB at least",
            ),
            (
                "[snoop]\ntaps = [\"a\"]\nguest_mac = [\"52:54:00:00:00:01\"]",
                "is not TAP=ADDRESS",
            ),
            (
                "[snoop]\ntaps = [\"a\"]\nguest_mac = [\"a=01:00:5e:00:00:01\"]",
                "is a group's address",
            ),
            (
                "[snoop]\ntaps = [\"a\"]\nguest_net = [\"10.0.0.0/33\"]",
                "is no network such as",
            ),
            ("[snoop]\ntaps = [\"a\"]\nguest_ttl = 0", "from 1 to 255"),
            (
                "[snoop]\ntaps = [\"a\"]\nqmp = [\"vm1.qmp\"]",
                "not of the form TAP=SOCKET",
            ),
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
