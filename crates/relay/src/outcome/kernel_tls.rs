//! What happens to legs whose TLS could be, or is, in the kernel.

use strum::{IntoStaticStr, VariantArray};
use taut_sys::Errno;

/// The reason why the keys of a protected leg stayed in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum FallBack {
    /// The kernel has no TLS, or not this cipher.
    Missing,
    /// One of the streams had ended: the kernel takes keys of established connections only.
    HalfClosed,
    /// The kernel refused for another reason, such as a lack of memory.
    Refused,
    /// The kernel took a part of what it needs. The leg is lost.
    Broken,
}

impl FallBack {
    /// Every reason.
    pub(crate) const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the reason for the kernel's error.
    pub(crate) fn of(error: Errno) -> Self {
        match error {
            Errno::NOENT | Errno::OPNOTSUPP | Errno::NOPROTOOPT => Self::Missing,
            Errno::NOTCONN => Self::HalfClosed,
            _ => Self::Refused,
        }
    }

    /// Returns the label in metrics.
    pub(crate) fn label(self) -> &'static str {
        self.into()
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// A record without data that arrived on a leg whose TLS is in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum ControlRecord {
    /// The orderly end of the stream.
    CloseNotify,
    /// Another alert.
    Alert,
    /// A change of the key, which this kernel or this relay cannot follow.
    KeyUpdate,
    /// Anything else.
    Other,
}

impl ControlRecord {
    /// Every kind.
    pub(crate) const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the label in metrics.
    pub(crate) fn label(self) -> &'static str {
        self.into()
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}
