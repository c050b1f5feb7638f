//! The `[snoop]` table of the configuration file, with the same settings as the command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use glob::Pattern;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
pub use taut_config::{ConfigError, ConfigFile};
use taut_sys::listen::Listen;

use crate::qmp::Source;
use crate::wire::Net;

/// The widest TCP window (RFC 7323 2.3) minus one byte, because sequence numbers are compared
/// within half of their space.
const WINDOW_MAX: u64 = (1 << 30) - 1;

/// The smallest useful buffer: a smaller one would not hold two segments.
const BUFFER_LEAST: u64 = 4096;

/// The upper limit of `exposure_time`.
const EXPOSURE_TIME_MAX: Duration = Duration::from_secs(60);

/// Capacity of the BPF map of guest networks.
const GUEST_NETS: usize = 1024;

/// The smallest memory for copies: more than one frame of the largest kind.
const COPIES_LEAST: u64 = 1 << 20;

/// The Ethernet address of the guest at a tap: `TAP=ADDRESS`, such as `vnet0=52:54:00:12:34:56`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestMac {
    /// Tap name or glob pattern (`*` and `?`).
    pub tap: Pattern,
    /// The guest's Ethernet address.
    pub mac: [u8; 6],
}

/// Settings from the command line or the file; unset fields take their defaults.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Tap name or glob pattern (`*` and `?`).
    #[serde(deserialize_with = "patterns")]
    pub taps: Vec<Pattern>,
    /// Minimum length of each tap's ring, in frames.
    pub ring: Option<u32>,
    /// Largest window that is advertised to a sender.
    #[serde(deserialize_with = "window")]
    pub buffer: Option<ByteSize>,
    /// Acknowledge beyond the window that the guest advertises.
    pub grow: bool,
    /// Bytes that every connection of the guest buffers, with `grow`.
    #[serde(deserialize_with = "window")]
    pub guest_rcvbuf: Option<ByteSize>,
    /// Acknowledge from the first segment if the connection's place in the accept queue is certain.
    pub start_early: bool,
    /// Also serve ECN-capable flows (ECT).
    pub ecn: bool,
    /// Maximum number of flows tracked at each tap.
    pub flows: Option<u32>,
    /// Maximum bytes of a flow that are acknowledged early and not yet by the guest.
    #[serde(deserialize_with = "window")]
    pub exposure: Option<ByteSize>,
    /// Early ACKs of a flow stop if the guest has acknowledged nothing for this long.
    #[serde(deserialize_with = "time")]
    pub exposure_time: Option<Duration>,
    /// Memory for copies of early-acknowledged frames, for all guests together.
    #[serde(deserialize_with = "window")]
    pub copies: Option<ByteSize>,
    /// The guests' own Ethernet addresses.
    #[serde(rename = "guest_mac", deserialize_with = "parsed")]
    pub guest_macs: Vec<GuestMac>,
    /// Networks of the guests' addresses; others get no early ACKs.
    #[serde(rename = "guest_net", deserialize_with = "parsed")]
    pub guest_nets: Vec<Net>,
    /// An initial TTL of the guests, in addition to 64, 128 and 255.
    pub guest_ttl: Option<u8>,
    /// QMP sockets of the guests' machines.
    pub qmp: Vec<Source>,
    /// Address of the OpenMetrics endpoint.
    #[serde(deserialize_with = "listen")]
    pub metrics: Option<Listen>,
    /// Path of the control socket.
    pub control: Option<PathBuf>,
}

/// A setting is out of range, or contradicts another one: a sentence for the user.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(&'static str);

// === impl Settings ===

impl Settings {
    /// Reads the `[snoop]` section of a file. Returns the defaults if it has none.
    ///
    /// # Errors
    /// [`ConfigError`], one sentence.
    pub fn of_file(file: &ConfigFile) -> Result<Self, ConfigError> {
        Ok(file.section("snoop")?.unwrap_or_default())
    }

    /// Returns these settings, with unset ones taken from `those`.
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

    /// Checks ranges and combinations.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn check(&self) -> Result<(), SettingsError> {
        let sense = |wrong, why| {
            if wrong {
                Err(SettingsError(why))
            } else {
                Ok(())
            }
        };
        let too_wide = |size: Option<ByteSize>| size.is_some_and(|size| size.as_u64() > WINDOW_MAX);
        sense(
            self.taps.is_empty(),
            "no tap is named: pass --tap NAME, or set `taps = [\"vnet*\"]` in the [snoop] table of the configuration",
        )?;
        sense(
            self.grow && self.guest_rcvbuf.is_none(),
            "grow needs guest_rcvbuf: the bytes that every connection of the guest buffers, whether the application reads or not \
             (docs/snoop.md explains the risk)",
        )?;
        sense(
            !self.grow && self.guest_rcvbuf.is_some(),
            "guest_rcvbuf has an effect only with grow: set both or neither",
        )?;
        sense(
            too_wide(self.buffer) || too_wide(self.guest_rcvbuf),
            "buffer and guest_rcvbuf must be below 1 GiB, the limit of a TCP window (RFC 7323 2.3)",
        )?;
        sense(
            self.buffer.is_some_and(|size| size.as_u64() < BUFFER_LEAST),
            "buffer must be at least 4 KiB; less would stall every connection",
        )?;
        sense(
            too_wide(self.exposure)
                || self
                    .exposure
                    .is_some_and(|size| size.as_u64() < BUFFER_LEAST),
            "exposure must be from 4 KiB to less than 1 GiB",
        )?;
        sense(
            self.exposure_time
                .is_some_and(|time| time > EXPOSURE_TIME_MAX),
            "exposure_time must be 60 s at most",
        )?;
        sense(
            self.copies.is_some_and(|size| size.as_u64() < COPIES_LEAST),
            "copies must be 1 MiB at least",
        )?;
        sense(
            self.guest_nets.len() > GUEST_NETS,
            "guest_net takes at most 1,024 networks",
        )?;
        sense(self.guest_ttl == Some(0), "guest_ttl must be from 1 to 255")?;
        sense(
            self.ring.is_some_and(|ring| !(1..=65_536).contains(&ring)),
            "ring must be from 1 to 65,536",
        )?;
        sense(
            self.flows
                .is_some_and(|flows| !(1..=1_048_576).contains(&flows)),
            "flows must be from 1 to 1,048,576",
        )
    }
}

// === impl GuestMac ===

impl FromStr for GuestMac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("`{text}` is not TAP=ADDRESS, such as vnet0=52:54:00:12:34:56");
        let (tap, address) = text.rsplit_once('=').ok_or_else(wrong)?;
        let tap = Pattern::new(tap).map_err(|e| format!("`{tap}` is not a valid pattern: {e}"))?;
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
            return Err(format!(
                "`{address}` is a multicast address; the address of a guest is unicast"
            ));
        }
        Ok(Self { tap, mac })
    }
}

/// Returns `first` unless it is empty.
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

fn listen<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Listen>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(D::Error::custom)
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    let time = humantime::parse_duration(&text).map_err(|e| {
        D::Error::custom(format!("`{text}` is not a duration such as \"500ms\": {e}"))
    })?;
    Ok(Some(time))
}

fn patterns<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Pattern>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    let pattern = |name: &String| {
        Pattern::new(name)
            .map_err(|e| D::Error::custom(format!("`{name}` is not a valid pattern: {e}")))
    };
    names.iter().map(pattern).collect()
}

fn window<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ByteSize>, D::Error> {
    let text = String::deserialize(from)?;
    let size = text.parse().map_err(|e| {
        D::Error::custom(format!(
            "`{text}` is not a size such as \"4MiB\" or \"65536\": {e}"
        ))
    })?;
    Ok(Some(size))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Settings, ConfigError> {
        Settings::of_file(&ConfigFile::new(Path::new("taut.toml"), text.to_owned()))
    }

    fn taps(names: &[&str]) -> Vec<Pattern> {
        names
            .iter()
            .map(|name| Pattern::new(name).unwrap())
            .collect()
    }

    #[test]
    fn every_setting_can_be_in_the_file() {
        let settings = parse(
            "[relay]\nworkers = 2\n[snoop]\ntaps = [\"vnet*\", \"tap0\"]\nring = 1000\nbuffer = \"256KiB\"\ngrow = true\n\
             guest_rcvbuf = \"1MiB\"\nstart_early = true\necn = true\nflows = 100\nmetrics = \":9465\"\n\
             control = \"/run/snoop.sock\"",
        )
        .unwrap();
        settings.check().unwrap();
        assert_eq!(settings.taps, taps(&["vnet*", "tap0"]));
        assert_eq!(settings.guest_rcvbuf, Some(ByteSize::mib(1)));
        assert_eq!(settings.metrics.unwrap().port(), 9465);
    }

    #[test]
    fn the_command_line_overrides_the_file() {
        let file = parse("[snoop]\ntaps = [\"a\"]\nring = 5\necn = true").unwrap();
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
    fn an_invalid_setting_is_reported_in_a_sentence() {
        for (text, word) in [
            (
                "[snoop]\ntap = [\"a\"]",
                "taut.toml:2: snoop.tap: unknown field `tap`: did you mean `taps`?",
            ),
            ("[snoop]\ntaps = [\"a[\"]", "`a[` is not a valid pattern"),
            (
                "[snoop]\ntaps = [\"a\"]\nbuffer = \"many\"",
                "`many` is not a size",
            ),
            (
                "[snop]",
                "taut.toml:1: snop: unknown field `snop`: did you mean `snoop`?",
            ),
            ("", "no tap is named"),
            ("[snoop]\ntaps = [\"a\"]\ngrow = true", "needs guest_rcvbuf"),
            (
                "[snoop]\ntaps = [\"a\"]\nguest_rcvbuf = \"1MiB\"",
                "set both or neither",
            ),
            (
                "[snoop]\ntaps = [\"a\"]\nbuffer = \"1GiB\"",
                "must be below 1 GiB",
            ),
            (
                "[snoop]\ntaps = [\"a\"]\nbuffer = \"1KiB\"",
                "at least 4 KiB",
            ),
            ("[snoop]\ntaps = [\"a\"]\nring = 0", "from 1 to 65,536"),
            ("[snoop]\ntaps = [\"a\"]\nflows = 0", "from 1 to 1,048,576"),
            (
                "[snoop]\ntaps = [\"a\"]\nexposure = \"1KiB\"",
                "exposure must be from 4 KiB",
            ),
            (
                "[snoop]\ntaps = [\"a\"]\nexposure_time = \"soon\"",
                "`soon` is not a duration",
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
                "is a multicast address",
            ),
            (
                "[snoop]\ntaps = [\"a\"]\nguest_net = [\"10.0.0.0/33\"]",
                "is not a network such as",
            ),
            ("[snoop]\ntaps = [\"a\"]\nguest_ttl = 0", "from 1 to 255"),
            (
                "[snoop]\ntaps = [\"a\"]\nqmp = [\"vm1.qmp\"]",
                "not of the form TAP=SOCKET",
            ),
        ] {
            let said = match parse(text) {
                Ok(settings) => settings.check().unwrap_err().to_string(),
                Err(error) => error.to_string(),
            };
            assert!(said.contains(word), "{text:?}: {said}");
        }
    }

    proptest! {
        #[test]
        fn no_input_makes_the_parser_panic(text: String) {
            let _ = parse(&format!("[snoop]\ntaps = [\"a\"]\n{text}")).map(|s| s.check());
        }
    }
}
