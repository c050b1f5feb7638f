//! Taut's two congestion controls, and the kernel's controls that they call.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// A congestion control of Taut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// `taut_bbr`, which calls the kernel's BBR.
    Bbr,
    /// `taut_cubic`, which calls the kernel's Cubic.
    Cubic,
}

/// A name that is neither `bbr` nor `cubic`.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("expected bbr or cubic")]
pub struct Unknown;

// === impl Control ===

impl Control {
    /// Both congestion controls.
    pub const ALL: [Self; 2] = [Self::Bbr, Self::Cubic];

    /// Returns the name of the kernel's congestion control.
    pub fn kernels(self) -> &'static str {
        match self {
            Self::Bbr => "bbr",
            Self::Cubic => "cubic",
        }
    }

    /// Returns the name of Taut's congestion control, which has 15 bytes or fewer.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bbr => "taut_bbr",
            Self::Cubic => "taut_cubic",
        }
    }

    /// Returns the kernel configuration option that builds the kernel's congestion control.
    pub(crate) fn configuration(self) -> &'static str {
        match self {
            Self::Bbr => "CONFIG_TCP_CONG_BBR",
            Self::Cubic => "CONFIG_TCP_CONG_CUBIC",
        }
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Control {
    type Err = Unknown;

    /// Parses `bbr` or `cubic`, with or without the prefix `taut_`.
    fn from_str(text: &str) -> Result<Self, Unknown> {
        let name = text.strip_prefix("taut_").unwrap_or(text);
        let mut all = Self::ALL.into_iter();
        all.find(|control| control.kernels() == name).ok_or(Unknown)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    #[test]
    fn both_names_are_parsed() {
        for control in Control::ALL {
            assert_eq!(control.name().parse::<Control>().unwrap(), control);
            assert_eq!(control.kernels().parse::<Control>().unwrap(), control);
        }
        assert!("reno".parse::<Control>().is_err());
        assert!("taut_".parse::<Control>().is_err());
    }
}
