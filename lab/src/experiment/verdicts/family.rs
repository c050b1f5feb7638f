//! Families of worlds: the conditions under which a cause limits a connection.

use super::cause::Cause;

/// A set of conditions. The thresholds of the verdicts were set on some families. The others, which
/// were left out, show how often the rules are right in new combinations of conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Family {
    /// One flow with Cubic, parameters clear of every boundary.
    Cubic,
    /// The same with BBR.
    Bbr,
    /// The same with Reno.
    Reno,
    /// Two to four flows with Cubic share the bottleneck.
    Shared,
    /// Another flow has filled the queue of the bottleneck before the connection begins.
    Standing,
    /// Parameters near the boundaries between causes.
    Boundaries,
    /// A reader that reads 60 to 90 % of the path's rate, in parts of different sizes.
    Readers,
    /// Guests that have slices of 10 to 100 ms of their core.
    Slices,
    /// Two to four flows with BBR share the bottleneck.
    BbrShared,
    /// Parameters near the boundaries between causes, with BBR.
    BbrBoundaries,
    /// The same with Reno.
    RenoBoundaries,
    /// A reader in parts, and a sender with BBR.
    BbrReaders,
    /// Bottlenecks with CoDel or FQ-CoDel, and ECN in half of the worlds.
    Aqm,
    /// The same with BBR.
    BbrAqm,
    /// The same with Reno.
    RenoAqm,
    /// Paths with jitter of 1 to 20 ms, half of which also reorder segments.
    Jitter,
    /// The same with BBR.
    BbrJitter,
    /// Guests that have slices of 3 to 10 ms of their core.
    ShortSlices,
    /// The same with BBR.
    BbrShortSlices,
    /// A sender that has nothing to send for 15 to 40 % of the time; otherwise the cause limits it.
    MostlyBusy,
    /// The same for 60 to 85 % of the time, so that the application limits it more than the cause.
    MostlyIdle,
    /// The same two with BBR.
    BbrMostlyBusy,
    BbrMostlyIdle,
}

/// A cause in a family of worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Part {
    pub(super) family: Family,
    pub(super) cause: Cause,
}

// === impl Family ===

impl Family {
    pub(super) const ALL: [Self; 23] = [
        Self::Cubic,
        Self::Bbr,
        Self::Reno,
        Self::Shared,
        Self::Standing,
        Self::Boundaries,
        Self::Readers,
        Self::Slices,
        Self::BbrShared,
        Self::BbrBoundaries,
        Self::RenoBoundaries,
        Self::BbrReaders,
        Self::Aqm,
        Self::BbrAqm,
        Self::RenoAqm,
        Self::Jitter,
        Self::BbrJitter,
        Self::ShortSlices,
        Self::BbrShortSlices,
        Self::MostlyBusy,
        Self::MostlyIdle,
        Self::BbrMostlyBusy,
        Self::BbrMostlyIdle,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
            Self::Reno => "reno",
            Self::Shared => "shared",
            Self::Standing => "standing",
            Self::Boundaries => "boundaries",
            Self::Readers => "readers",
            Self::Slices => "slices",
            Self::BbrShared => "bbr shared",
            Self::BbrBoundaries => "bbr boundaries",
            Self::RenoBoundaries => "reno boundaries",
            Self::BbrReaders => "bbr readers",
            Self::Aqm => "aqm",
            Self::BbrAqm => "bbr aqm",
            Self::RenoAqm => "reno aqm",
            Self::Jitter => "jitter",
            Self::BbrJitter => "bbr jitter",
            Self::ShortSlices => "short slices",
            Self::BbrShortSlices => "bbr short slices",
            Self::MostlyBusy => "mostly busy",
            Self::MostlyIdle => "mostly idle",
            Self::BbrMostlyBusy => "bbr mostly busy",
            Self::BbrMostlyIdle => "bbr mostly idle",
        }
    }

    /// Whether the family was left out when thresholds were set.
    pub(super) fn is_left_out(self) -> bool {
        matches!(
            self,
            Self::BbrShared
                | Self::BbrBoundaries
                | Self::RenoBoundaries
                | Self::BbrReaders
                | Self::BbrAqm
                | Self::RenoAqm
                | Self::BbrJitter
                | Self::BbrShortSlices
                | Self::BbrMostlyBusy
                | Self::BbrMostlyIdle
        )
    }

    /// Whether parameters are near the boundaries between causes.
    pub(super) fn is_near(self) -> bool {
        matches!(
            self,
            Self::Boundaries | Self::BbrBoundaries | Self::RenoBoundaries
        )
    }

    /// Whether the client reads in parts.
    pub(super) fn reads_in_parts(self) -> bool {
        matches!(self, Self::Readers | Self::BbrReaders)
    }

    /// Whether the bottleneck keeps its queue short with CoDel or FQ-CoDel.
    pub(super) fn has_aqm(self) -> bool {
        matches!(self, Self::Aqm | Self::BbrAqm | Self::RenoAqm)
    }

    /// Whether the path has jitter.
    pub(super) fn has_jitter(self) -> bool {
        matches!(self, Self::Jitter | Self::BbrJitter)
    }

    /// Returns the least and the most time, as a share, for which a sender has nothing to send, if it
    /// pauses.
    pub(super) fn idle(self) -> Option<(f64, f64)> {
        match self {
            Self::MostlyBusy | Self::BbrMostlyBusy => Some((0.15, 0.4)),
            Self::MostlyIdle | Self::BbrMostlyIdle => Some((0.6, 0.85)),
            _ => None,
        }
    }

    /// Whether several flows share the bottleneck.
    pub(super) fn shares(self) -> bool {
        matches!(self, Self::Shared | Self::BbrShared)
    }

    /// Returns the congestion control of the sender.
    pub(super) fn control(self) -> &'static str {
        match self {
            Self::Bbr
            | Self::BbrShared
            | Self::BbrBoundaries
            | Self::BbrReaders
            | Self::BbrAqm
            | Self::BbrJitter
            | Self::BbrShortSlices
            | Self::BbrMostlyBusy
            | Self::BbrMostlyIdle => "bbr",
            Self::Reno | Self::RenoBoundaries | Self::RenoAqm => "reno",
            _ => "cubic",
        }
    }

    fn causes(self) -> &'static [Cause] {
        match self {
            Self::Cubic => &Cause::ALL,
            Self::Bbr | Self::Reno => &[
                Cause::SlowSender,
                Cause::Questions,
                Cause::SendBuffer,
                Cause::SlowReader,
                Cause::SlowReaderHere,
                Cause::ReceiveBuffer,
                Cause::NoScaling,
                Cause::SlowStart,
                Cause::Loss,
                Cause::Pacing,
                Cause::Policer,
                Cause::Link,
                Cause::ThrottledSender,
            ],
            Self::Shared => &[Cause::Queue, Cause::Link],
            Self::Standing => &[Cause::Queue],
            Self::BbrShared => &[Cause::Link],
            // Alone, BBR keeps no queue.
            Self::BbrBoundaries => &[
                Cause::SlowSender,
                Cause::SendBuffer,
                Cause::ReceiveBuffer,
                Cause::Pacing,
                Cause::Link,
            ],
            Self::Boundaries | Self::RenoBoundaries => &[
                Cause::SlowSender,
                Cause::SendBuffer,
                Cause::ReceiveBuffer,
                Cause::Queue,
                Cause::Pacing,
                Cause::Policer,
                Cause::Link,
            ],
            Self::Readers | Self::BbrReaders => &[Cause::SlowReader, Cause::SlowReaderHere],
            Self::Slices | Self::ShortSlices | Self::BbrShortSlices => &[Cause::Descheduled],
            Self::Aqm => &[
                Cause::SlowSender,
                Cause::SendBuffer,
                Cause::ReceiveBuffer,
                Cause::Loss,
                Cause::Pacing,
                Cause::Link,
            ],
            Self::BbrAqm => &[
                Cause::SlowSender,
                Cause::SendBuffer,
                Cause::Pacing,
                Cause::Link,
            ],
            Self::RenoAqm => &[Cause::SlowSender, Cause::Loss, Cause::Link],
            Self::Jitter => &[
                Cause::SlowSender,
                Cause::SendBuffer,
                Cause::SlowReader,
                Cause::ReceiveBuffer,
                Cause::Loss,
                Cause::Queue,
                Cause::Pacing,
                Cause::Policer,
                Cause::Link,
            ],
            Self::BbrJitter => &[
                Cause::SlowSender,
                Cause::SendBuffer,
                Cause::ReceiveBuffer,
                Cause::Pacing,
                Cause::Link,
            ],
            Self::MostlyBusy | Self::MostlyIdle => {
                &[Cause::ReceiveBuffer, Cause::Loss, Cause::Link]
            }
            Self::BbrMostlyBusy | Self::BbrMostlyIdle => &[Cause::ReceiveBuffer, Cause::Link],
        }
    }
}

// === impl Part ===

impl Part {
    /// Returns every cause of every family.
    pub(super) fn all() -> Vec<Self> {
        let of = |family: Family| {
            family
                .causes()
                .iter()
                .map(move |&cause| Self { family, cause })
        };
        Family::ALL.into_iter().flat_map(of).collect()
    }

    /// Returns the name in figures, such as `bbr (left out): slow reader`.
    pub(super) fn name(self) -> String {
        let set = match self.family.is_left_out() {
            true => "left out",
            false => "tuned on",
        };
        format!("{} ({set}): {}", self.family.name(), self.cause.name())
    }

    /// Whether its name contains one of the texts in `only`, which commas separate.
    pub(super) fn is_named(self, only: &str) -> bool {
        let name = self.name();
        only.split(',').any(|text| name.contains(text.trim()))
    }

    /// Returns the factor that a verdict should name, as `taut why --json` writes it.
    pub(super) fn factor(self) -> &'static str {
        match self {
            // Random losses do not slow BBR, which fills the path all the same.
            Self {
                family: Family::Bbr,
                cause: Cause::Loss,
            } => "link",
            // It has nothing to send for most of the time.
            Self {
                family: Family::MostlyIdle | Family::BbrMostlyIdle,
                ..
            } => "sender-application",
            Self { cause, .. } => cause.factor(),
        }
    }

    /// Returns the range of the bottleneck's use, as a share, if the world works as intended.
    pub(super) fn expected_use(self) -> (f64, f64) {
        match (self.family, self.cause) {
            (Family::Bbr, Cause::Loss) => (0.7, 1.05),
            // `busy` says whether such a world is as intended.
            (family, _) if family.idle().is_some() => (0.0, 1.05),
            // The buffers hold up to two thirds of the path and a limiter lets bursts pass, so the
            // use may exceed the drawn share.
            (family, cause) if family.is_near() || family.reads_in_parts() => {
                let (least, most) = cause.expected_use();
                (least, f64::max(most, 0.95))
            }
            (_, cause) => cause.expected_use(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_comes_twice_and_each_cause_comes() {
        let parts = Part::all();
        let mut names: Vec<_> = parts.iter().map(|part| part.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), parts.len());
        for cause in Cause::ALL {
            assert!(parts.iter().any(|part| part.cause == cause), "{cause:?}");
        }
    }
}
