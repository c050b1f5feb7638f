//! The causes that limit connections, and the verdict that each should get.

use std::time::Duration;

/// What limits a connection. Data goes from `server` to `client`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Cause {
    /// An idle connection.
    Idle,
    /// nginx sends slowly (`limit_rate`).
    SlowSender,
    /// curl requests one small file after another, each of which takes a round trip.
    Questions,
    /// nginx has a small SO_SNDBUF.
    SendBuffer,
    /// curl reads slowly (`--limit-rate`); observed at the sender.
    SlowReader,
    /// curl reads slowly; observed at the reader.
    SlowReaderHere,
    /// The client's `tcp_rmem` is small; observed at the sender.
    ReceiveBuffer,
    /// The client's `tcp_rmem` is small; observed at the client.
    ReceiveBufferHere,
    /// The client does not scale its window.
    NoScaling,
    /// The connection has just started, on a long path.
    SlowStart,
    /// Segments are lost at random.
    Loss,
    /// A bottleneck has a queue that is much longer than the path.
    Queue,
    /// iperf3 sets SO_MAX_PACING_RATE.
    Pacing,
    /// Packets beyond a rate are dropped on the way.
    Policer,
    /// The client is a guest that shares a core with others.
    Descheduled,
    /// The path has a narrower link, whose router sends no ICMP.
    BlackHole,
    /// The path has a narrower link, and the kernel probes for the MTU (`tcp_mtu_probing`).
    MtuProbing,
    /// The path is cut while data flows.
    Cut,
    /// The path is cut before the connection is established; observed at the client.
    NoAnswer,
    /// A bottleneck has a queue of the right length; observed at the sender.
    Link,
    /// nginx sends slowly (`limit_rate`); observed at the receiver.
    Elsewhere,
    /// The server is a guest that shares a core with others; observed at the server.
    DescheduledSender,
    /// The sender needs more CPU time than its cgroup's quota.
    ThrottledSender,
    /// Packets beyond a rate are dropped on this machine before the client (nft's `limit rate`).
    PolicerHere,
}

/// The end at which the connection is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Server,
    Client,
    /// The guest, when it is the sender.
    Guest,
}

// === impl Cause ===

impl Cause {
    pub(super) const ALL: [Self; 24] = [
        Self::Idle,
        Self::SlowSender,
        Self::Questions,
        Self::SendBuffer,
        Self::SlowReader,
        Self::SlowReaderHere,
        Self::ReceiveBuffer,
        Self::ReceiveBufferHere,
        Self::NoScaling,
        Self::SlowStart,
        Self::Loss,
        Self::Queue,
        Self::Pacing,
        Self::Policer,
        Self::Descheduled,
        Self::BlackHole,
        Self::MtuProbing,
        Self::Cut,
        Self::NoAnswer,
        Self::Link,
        Self::Elsewhere,
        Self::DescheduledSender,
        Self::ThrottledSender,
        Self::PolicerHere,
    ];

    /// Returns the cause's name in figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::SlowSender => "slow sender",
            Self::Questions => "questions",
            Self::SendBuffer => "send buffer",
            Self::SlowReader => "slow reader",
            Self::SlowReaderHere => "slow reader (seen there)",
            Self::ReceiveBuffer => "receive buffer",
            Self::ReceiveBufferHere => "receive buffer (seen there)",
            Self::NoScaling => "no window scaling",
            Self::SlowStart => "slow start",
            Self::Loss => "loss",
            Self::Queue => "queue",
            Self::Pacing => "pacing",
            Self::Policer => "policer",
            Self::Descheduled => "descheduled guest",
            Self::BlackHole => "path MTU, black hole",
            Self::MtuProbing => "path MTU, probed",
            Self::Cut => "cut",
            Self::NoAnswer => "no answer",
            Self::Link => "link",
            Self::Elsewhere => "slow sender (seen by the receiver)",
            Self::DescheduledSender => "descheduled guest that sends",
            Self::ThrottledSender => "throttled sender",
            Self::PolicerHere => "policer of this host",
        }
    }

    /// Returns the factor that a verdict should name, as `taut why --json` writes it.
    pub(super) fn factor(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::SlowSender | Self::Questions => "sender-application",
            Self::SendBuffer => "send-buffer",
            Self::SlowReader | Self::SlowReaderHere => "receiver-application",
            Self::ReceiveBuffer | Self::ReceiveBufferHere | Self::NoScaling => "receive-buffer",
            Self::SlowStart => "slow-start",
            Self::Loss => "loss",
            Self::Queue => "queue",
            Self::Pacing => "pacing",
            Self::Policer => "rate-limit",
            Self::Descheduled | Self::DescheduledSender => "descheduled",
            Self::ThrottledSender => "cpu-quota",
            Self::PolicerHere => "host-drops",
            Self::BlackHole | Self::MtuProbing => "path-mtu",
            Self::Cut | Self::NoAnswer => "timeouts",
            Self::Link => "link",
            Self::Elsewhere => "peer",
        }
    }

    pub(super) fn watched(self) -> End {
        match self {
            Self::SlowReaderHere | Self::ReceiveBufferHere | Self::NoAnswer | Self::Elsewhere => {
                End::Client
            }
            Self::DescheduledSender => End::Guest,
            _ => End::Server,
        }
    }

    /// Returns how long data flows before the observation, so that start-up effects are over;
    /// `None` if the start itself is observed.
    pub(super) fn warm_up(self) -> Option<Duration> {
        match self {
            Self::SlowStart | Self::BlackHole | Self::MtuProbing | Self::NoAnswer => None,
            Self::Idle => Some(Duration::from_secs(1)),
            _ => Some(Duration::from_secs(5)),
        }
    }

    /// Returns how long the connection is observed, on a path with this round trip.
    pub(super) fn watch(self, round_trip: Duration) -> Duration {
        match self {
            // A handshake, a request, and six doublings of the window.
            Self::SlowStart => round_trip * 8,
            // Long enough for the kernel to start probing for a packet size that passes.
            Self::MtuProbing => Duration::from_secs(12),
            _ => Duration::from_secs(5),
        }
    }

    /// Whether both ends can be observed: the connection is established, and neither end is in a guest.
    pub(super) fn has_both_ends(self) -> bool {
        !matches!(
            self,
            Self::NoAnswer | Self::Descheduled | Self::DescheduledSender
        )
    }

    /// Whether `taut top` and `taut watch` can see the cause on a path with this round trip. A verdict
    /// takes two scans of the connection, a second apart, and is on the last five seconds.
    pub(super) fn has_scans(self, round_trip: Duration) -> bool {
        match self {
            Self::SlowStart => self.watch(round_trip) >= Duration::from_secs(2),
            Self::MtuProbing => false,
            _ => true,
        }
    }

    /// Whether the connection ends when its clients end. It does not if no answer comes, or if a guest
    /// has it.
    pub(super) fn can_end(self) -> bool {
        !matches!(
            self,
            Self::Cut
                | Self::NoAnswer
                | Self::BlackHole
                | Self::Descheduled
                | Self::DescheduledSender
        )
    }

    /// Whether a segment that waits for this long in the bottleneck's queue, on average, is as it should be.
    /// The limit between the two is that of the verdicts.
    pub(super) fn expects_wait(self, mean: Duration) -> bool {
        const LONG: Duration = Duration::from_millis(40);
        match self {
            Self::Queue => mean >= LONG,
            Self::Link => mean < LONG,
            _ => true,
        }
    }

    /// Whether a world can be run without what limits the connection.
    pub(super) fn is_removable(self) -> bool {
        matches!(
            self,
            Self::SendBuffer
                | Self::ReceiveBuffer
                | Self::SlowStart
                | Self::Loss
                | Self::Pacing
                | Self::ThrottledSender
        )
    }

    /// Returns the range of the bottleneck's use, as a share, if the world works as intended.
    pub(super) fn expected_use(self) -> (f64, f64) {
        match self {
            Self::Queue | Self::Link => (0.8, 1.05),
            Self::SlowStart | Self::MtuProbing => (0.0, 1.05),
            Self::Idle | Self::Cut | Self::NoAnswer | Self::BlackHole => (0.0, 0.05),
            _ => (0.0, 0.75),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_one_cause() {
        let mut names: Vec<_> = Cause::ALL.map(Cause::name).into();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Cause::ALL.len());
    }
}
