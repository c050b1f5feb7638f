//! Which flows a contest has.

/// The kind of flows that join on the shared link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Cubic from end to end, without relays: the reference.
    Cubic,
    /// A mesh with BBR between the relays.
    Bbr,
    /// A mesh with turbo start, whose `rate` is the link's.
    Turbo,
    /// A mesh with turbo start, whose `rate` is ten times the link's, which is the default.
    TurboTooFast,
}

/// Equally many Cubic flows and flows that join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Case {
    pub(super) flows: usize,
    pub(super) kind: Kind,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Cubic, Self::Bbr, Self::Turbo, Self::TurboTooFast];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "mesh-bbr",
            Self::Turbo => "turbo",
            Self::TurboTooFast => "turbo-default-rate",
        }
    }
}

impl Case {
    pub(super) fn of(flows: &[usize], kinds: &[Kind]) -> Vec<Self> {
        flows
            .iter()
            .flat_map(|&flows| kinds.iter().map(move |&kind| Self { flows, kind }))
            .filter(|case| {
                case.kind != Kind::Bbr || taut_sys::socket::has_congestion_control("bbr")
            })
            .collect()
    }
}
