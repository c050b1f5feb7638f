//! Why a session that another relay asked for was refused.

/// Why a session from the mesh is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MeshRefusal {
    /// The configuration does not allow the destination.
    Destination,
    /// The next relay of its route is not one that this node knows.
    NextRelay,
    /// It has been through as many relays as it may.
    HopLimit,
}

impl MeshRefusal {
    /// Every cause.
    pub(crate) const ALL: [Self; 3] = [Self::Destination, Self::NextRelay, Self::HopLimit];

    /// Its name in metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Destination => "destination",
            Self::NextRelay => "next_relay",
            Self::HopLimit => "hop_limit",
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}
