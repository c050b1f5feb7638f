//! The cases: the flows of a contest, and their link.

use std::time::Duration;

use taut_netlab::units::{BitsPerSecond, Bytes};

/// The rate of the link.
pub(super) const LINK: BitsPerSecond = BitsPerSecond::mega(100);
/// The round trip of the long paths: as between Europe and the US East Coast in `internet`.
const RTT: Duration = Duration::from_millis(90);
const SHORT_RTT: Duration = Duration::from_millis(20);

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

/// The round trip and the queue of the shared link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Path {
    /// 90 ms, and a queue of one round trip.
    Long,
    /// The same with half the queue.
    HalfQueue,
    /// The same with twice the queue.
    DoubleQueue,
    /// 20 ms, and a queue of one round trip.
    Short,
}

/// A number of Cubic flows and as many flows that join, on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Case {
    pub(super) path: Path,
    pub(super) flows: usize,
    pub(super) kind: Kind,
}

// === impl Kind ===

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

// === impl Path ===

impl Path {
    pub(super) const ALL: [Self; 4] = [Self::Long, Self::HalfQueue, Self::DoubleQueue, Self::Short];

    /// Returns the words that distinguish the link in the name of a series; `None` for the usual
    /// link.
    pub(super) fn label(self) -> Option<&'static str> {
        match self {
            Self::Long => None,
            Self::HalfQueue => Some("half the queue"),
            Self::DoubleQueue => Some("twice the queue"),
            Self::Short => Some("20 ms"),
        }
    }

    pub(super) fn rtt(self) -> Duration {
        match self {
            Self::Short => SHORT_RTT,
            _ => RTT,
        }
    }

    pub(super) fn queue(self) -> Bytes {
        LINK.in_time(match self {
            Self::HalfQueue => self.rtt() / 2,
            Self::DoubleQueue => self.rtt() * 2,
            _ => self.rtt(),
        })
    }

    /// Returns a description for the environment of an outcome.
    pub(super) fn describe(self) -> String {
        format!(
            "{:?} round trip, {LINK}, queue {}, shared by all flows",
            self.rtt(),
            self.queue()
        )
    }
}

// === impl Case ===

impl Case {
    /// Returns the cases of a run.
    pub(super) fn all(quick: bool) -> Vec<Self> {
        let compared = [Kind::Cubic, Kind::Turbo];
        if quick {
            return Self::of(Path::Long, &[2], &compared);
        }
        let mut all = Self::of(Path::Long, &[1, 2, 4], &Kind::ALL);
        for path in &Path::ALL[1..] {
            all.extend(Self::of(*path, &[2], &compared));
        }
        all
    }

    fn of(path: Path, flows: &[usize], kinds: &[Kind]) -> Vec<Self> {
        flows
            .iter()
            .flat_map(|&flows| kinds.iter().map(move |&kind| Self { path, flows, kind }))
            .filter(|case| {
                case.kind != Kind::Bbr || taut_sys::socket::has_congestion_control("bbr")
            })
            .collect()
    }

    /// Returns the case's name in the series, in which `--only` searches.
    pub(super) fn name(self) -> String {
        format!("{}/{}", self.kind.label(), self.group())
    }

    /// Returns the part of the name that the case shares with those of the other kinds.
    pub(super) fn group(self) -> String {
        let flows = format!("{0} + {0} Cubic", self.flows);
        match self.path.label() {
            Some(path) => format!("{flows}, {path}"),
            None => flows,
        }
    }

    /// Returns the same contest with another kind of flows.
    pub(super) fn with(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_half_one_or_two_round_trips_of_the_link() {
        let bytes = Path::ALL.map(|path| path.queue().0);
        assert_eq!(bytes, [1_125_000, 562_500, 2_250_000, 250_000]);
    }

    #[test]
    fn the_kinds_that_are_compared_have_the_same_contests() {
        let all = Case::all(false);
        for case in &all {
            assert!(all.contains(&case.with(Kind::Cubic)), "{case:?}");
        }
        assert!(Case::all(true).iter().all(|case| all.contains(case)));
    }
}
