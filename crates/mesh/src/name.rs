//! Names of members.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;

/// The longest name of a member, in bytes.
pub const MAX_NAME: usize = 63;

/// The name of a member: 1 to [`MAX_NAME`] letters, digits, `-`, `_` and `.`, case-sensitive.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberName(Arc<str>);

/// A text that is not a name of a member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a name of a member: a name has 1 to {MAX_NAME} letters, digits, `-`, `_` and `.`"
)]
pub struct NameError(String);

// === impl MemberName ===

impl MemberName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MemberName {
    type Err = NameError;

    fn from_str(s: &str) -> Result<Self, NameError> {
        let is_letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if !(1..=MAX_NAME).contains(&s.len()) || !s.bytes().all(is_letter) {
            return Err(NameError(s.chars().take(MAX_NAME + 1).collect()));
        }
        Ok(Self(s.into()))
    }
}

impl<'de> Deserialize<'de> for MemberName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Borrow<str> for MemberName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MemberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for MemberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemberName({self})")
    }
}
