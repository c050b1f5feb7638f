//! The reasons for resetting a client's connection before it becomes a session.

use strum::{IntoStaticStr, VariantArray};

use crate::access::SourceVerdict;

/// The reason why a connection was reset before a session started. Its label is the `cause` in
/// `taut_relay_refused_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ClientRefusal {
    /// `max_sessions` were open.
    Full,
    /// The forward had its `max_sessions` open.
    ForwardFull,
    /// The client's source had `max_sessions_per_source` open, or its /48 four times as many.
    SourceLimit,
    /// The client's source opened more than `max_connects_per_source` a second.
    SourceRate,
    /// The source opened more connections to the mesh port than `max_connects_per_source` of the mesh allows,
    /// and proved no key.
    UnprovenRate,
    /// The member that the session comes from had `max_sessions_per_member` open.
    MemberLimit,
    /// The client's source is not in the list of allowed sources.
    SourceNotListed,
    /// A prefix denies the client's source.
    SourceDenied,
}

// === impl ClientRefusal ===

impl ClientRefusal {
    /// Every cause.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the label in metrics and logs.
    pub fn label(self) -> &'static str {
        self.into()
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Returns the refusal for a verdict on the client's address, or `None` if it may connect.
    pub(crate) fn of(verdict: SourceVerdict) -> Option<Self> {
        match verdict {
            SourceVerdict::Allowed => None,
            SourceVerdict::NotListed => Some(Self::SourceNotListed),
            SourceVerdict::Denied => Some(Self::SourceDenied),
        }
    }
}
