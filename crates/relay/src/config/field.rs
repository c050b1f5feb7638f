//! Configuration fields as written, and their checks.

use std::time::Duration;

use serde::de::IntoDeserializer as _;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::access::session_quota::UNLIMITED;
use crate::access::{SourcePrefix, Sources};

/// The range of durations. Shorter ones are mistakes; longer ones could overflow.
pub(super) const TIME: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(366 * 86_400);

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an address or a list of addresses")]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    /// Returns whether the value is this text alone.
    pub(super) fn is(&self, text: &str) -> bool {
        matches!(self, Self::One(one) if one == text)
    }

    pub(super) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// A number of at least 1, or `"off"` for no limit.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number, or \"off\"")]
pub(super) enum CountOrOff {
    Count(u32),
    Off(Off),
}

#[derive(Deserialize)]
pub(super) enum Off {
    #[serde(rename = "off")]
    Off,
}

/// A duration; `None` is written as `"off"`.
pub(super) struct TimeOrOff(pub(super) Option<Time>);

impl<'de> Deserialize<'de> for TimeOrOff {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "off" => Ok(Self(None)),
            _ => Time::deserialize(text.into_deserializer()).map(|time| Self(Some(time))),
        }
    }
}

pub(super) struct Time(pub(super) Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text).map(Time).map_err(|e| {
            serde::de::Error::custom(format!("`{text}` is not a duration such as \"10s\": {e}"))
        })
    }
}

/// Returns the sources that the `from` and `not_from` of a section allow.
pub(super) fn sources(
    from: Option<Spanned<OneOrMany>>,
    not_from: Option<Spanned<OneOrMany>>,
    section: &str,
) -> Result<Sources, (usize, String)> {
    let prefixes = |list: Spanned<OneOrMany>, name| -> Result<Vec<SourcePrefix>, _> {
        let at = list.span().start;
        let texts = list.into_inner().into_vec();
        let texts = texts.iter().enumerate();
        texts
            .map(|(j, text)| parse(text, at, || format!("{section}.{name}[{j}]")))
            .collect()
    };
    let at = from.as_ref().or(not_from.as_ref()).map(|l| l.span().start);
    let from = from.map(|list| prefixes(list, "from")).transpose()?;
    let not_from = not_from
        .map(|list| prefixes(list, "not_from"))
        .transpose()?;
    Sources::new(from, not_from.unwrap_or_default())
        .map_err(|e| (at.unwrap_or(0), format!("{section}.from: {e}")))
}

pub(super) fn parse<T>(
    text: &str,
    at: usize,
    field: impl Fn() -> String,
) -> Result<T, (usize, String)>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|e| (at, format!("{}: {e}", field())))
}

pub(super) fn at_least_one<T: Copy + Default + PartialEq>(
    value: Option<Spanned<T>>,
    field: &str,
) -> Result<Option<T>, (usize, String)> {
    match value {
        Some(v) if *v.get_ref() == T::default() => {
            Err((v.span().start, format!("relay.{field}: must be at least 1")))
        }
        other => Ok(other.map(Spanned::into_inner)),
    }
}

/// Returns a limit, which is [`UNLIMITED`] if it is off.
pub(super) fn limit(
    value: Option<Spanned<CountOrOff>>,
    field: &str,
) -> Result<Option<u32>, (usize, String)> {
    let Some(value) = value else { return Ok(None) };
    match value.get_ref() {
        CountOrOff::Off(Off::Off) => Ok(Some(UNLIMITED)),
        CountOrOff::Count(0) => {
            let message = format!("relay.{field}: must be at least 1, or \"off\"");
            Err((value.span().start, message))
        }
        CountOrOff::Count(count) => Ok(Some(*count)),
    }
}

/// Sets a duration that may be `"off"`.
pub(super) fn set_time_or_off(
    slot: &mut Option<Duration>,
    value: Option<Spanned<TimeOrOff>>,
    field: &str,
) -> Result<(), (usize, String)> {
    let Some(value) = value else { return Ok(()) };
    let at = value.span();
    *slot = match value.into_inner().0 {
        None => None,
        Some(time) => {
            let mut slot = Duration::ZERO;
            set_time(&mut slot, Some(Spanned::new(at, time)), TIME, field)?;
            Some(slot)
        }
    };
    Ok(())
}

pub(super) fn set_time(
    slot: &mut Duration,
    value: Option<Spanned<Time>>,
    range: std::ops::RangeInclusive<Duration>,
    field: &str,
) -> Result<(), (usize, String)> {
    let Some(value) = value else { return Ok(()) };
    if !range.contains(&value.get_ref().0) {
        let [least, most] = [range.start(), range.end()].map(|d| humantime::format_duration(*d));
        let message = format!("relay.{field}: must be from {least} to {most}");
        return Err((value.span().start, message));
    }
    *slot = value.into_inner().0;
    Ok(())
}
