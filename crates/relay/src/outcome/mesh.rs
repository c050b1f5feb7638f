//! The reasons for refusing a session that another relay requested.

/// The reason why a session that another relay requested was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MeshRefusal {
    /// The configuration does not allow the destination.
    Destination,
    /// The relay may not speak for the client.
    Client,
    /// The next relay of its route is not a peer of this node.
    NextRelay,
    /// The session has already passed through the maximum number of relays.
    HopLimit,
}

impl MeshRefusal {
    /// Every cause.
    pub(crate) const ALL: [Self; 4] = [
        Self::Destination,
        Self::Client,
        Self::NextRelay,
        Self::HopLimit,
    ];

    /// Returns the label in metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Destination => "destination",
            Self::Client => "client",
            Self::NextRelay => "next_relay",
            Self::HopLimit => "hop_limit",
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}
