//! The two congestion controls, and the kernel's own that they call.

use std::fmt;
use std::str::FromStr;

/// A congestion control of Taut's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// `taut_bbr`.
    Bbr,
    /// `taut_cubic`.
    Cubic,
}

/// It is neither `bbr` nor `cubic`.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("bbr or cubic")]
pub struct Unknown;

// === impl Control ===

impl Control {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Bbr, Self::Cubic];

    /// The kernel's, as it calls it.
    pub fn kernels(self) -> &'static str {
        match self {
            Self::Bbr => "bbr",
            Self::Cubic => "cubic",
        }
    }

    /// Taut's, as the kernel calls it (at most 15 bytes).
    pub fn name(self) -> &'static str {
        match self {
            Self::Bbr => "taut_bbr",
            Self::Cubic => "taut_cubic",
        }
    }

    /// The kernel's configuration that builds the kernel's own, or its module.
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

    /// Of `bbr` or `cubic`, with or without Taut's name before it.
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
    fn either_name_says_which() {
        for control in Control::ALL {
            assert_eq!(control.name().parse::<Control>().unwrap(), control);
            assert_eq!(control.kernels().parse::<Control>().unwrap(), control);
        }
        assert!("reno".parse::<Control>().is_err());
        assert!("taut_".parse::<Control>().is_err());
    }
}
