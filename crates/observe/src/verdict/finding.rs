//! The result of a rule: a factor, its weight, and the supporting figures.

use std::path::Path;
use std::sync::Arc;

use super::factor::Factor;
use crate::host_drops::HostDrop;

/// A factor that a rule detected in a window.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) factor: Factor,
    /// The share of the window's time that the factor accounts for, from 0 to 1.
    pub(super) weight: f64,
    pub(super) cause: Cause,
}

/// Why a factor limits a connection, with the figures: seconds, bytes, bytes a second, segments,
/// and shares from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// No data was sent, received or queued.
    NoData {
        /// Length of the window.
        elapsed: f64,
    },
    /// A SYN or SYN-ACK was retransmitted and not answered.
    HandshakeUnanswered {
        /// Number of retransmissions.
        retransmits: f64,
    },
    /// This machine was descheduled.
    MachineDescheduled {
        /// Share of the time.
        share: f64,
        /// Whether this end is the sender.
        sends: bool,
    },
    /// The CPU quota of a cgroup stopped the application of this end.
    QuotaUsedUp {
        /// Share of the time for which it was stopped.
        stopped: f64,
        /// The quota in CPUs.
        cpus: f64,
        /// The file that sets the quota.
        file: Arc<Path>,
    },
    /// The kernel of this machine dropped packets of the connection.
    DroppedHere {
        /// Segments dropped, as far as they matter for the finding: those with data, or all if few have
        /// data.
        dropped: f64,
        /// Segments that were lost; `None` if this end cannot tell.
        lost: Option<f64>,
        /// Where they were dropped, most segments first.
        drops: Vec<HostDrop>,
    },
    /// The application gave the sender no more data, or waited for an answer first.
    NothingToSend {
        /// Share of the time with nothing to send and nothing in flight.
        idle: f64,
        /// Share of the time with all data sent and room left in the congestion window; `None` if
        /// small.
        waiting: Option<f64>,
    },
    /// The send buffer was full of data in flight.
    SendBufferFull {
        /// Share of the time that the kernel accounts for.
        limited: f64,
        /// Share of the time in which samples show a full buffer, in addition to the kernel's
        /// account.
        seen: f64,
        /// Size of the buffer, if the kernel reports it.
        size: Option<f64>,
        /// What keeps the buffer small.
        sizing: Sizing,
    },
    /// The peer's window was full and did not change.
    PeerWindowSmall {
        /// Share of the time in which the window was full.
        limited: f64,
        /// The widest window.
        window: f64,
        /// Both ends use window scaling.
        has_scaling: bool,
        /// The widest window that the connection's window scale allows, if the window is about that
        /// wide.
        scale_bound: Option<f64>,
    },
    /// The peer's window filled up because its application did not read.
    PeerReadsSlowly {
        /// Share of the time in which the window was full.
        limited: f64,
        /// Share of the time in which the window was filling.
        filling: f64,
        /// The narrowest window.
        narrowest: f64,
        /// The widest window.
        widest: f64,
    },
    /// The peer delays its acknowledgements, as TCP does for unread data.
    PeerAcknowledgesLate {
        /// Time since the last acknowledgement, on average.
        since_last_ack: f64,
        /// Mean round trip.
        rtt: f64,
        /// Shortest round trip.
        min_rtt: f64,
        /// Longest round trip.
        max_rtt: f64,
        /// The longest delay that a delayed acknowledgement adds to a round trip.
        delay_bound: f64,
    },
    /// Small segments were acknowledged, full-sized segments never.
    FullSegmentsUnanswered {
        /// Size of a full segment.
        mss: f64,
        /// Bytes acknowledged.
        acked: f64,
        /// Bytes received.
        received: f64,
    },
    /// Retransmissions were not acknowledged.
    Unanswered {
        /// Share of the samples.
        share: f64,
        /// Time since the last acknowledgement.
        since_last_ack: f64,
    },
    /// The segment size shrank after loss.
    SegmentsShrank {
        /// Segment size at the first sample.
        before: f64,
        /// Segment size at the last sample.
        now: f64,
        /// Number of retransmissions.
        retransmits: f64,
    },
    /// The rate was steady despite heavy loss, and there was no queue.
    SteadyRate {
        /// Mean rate.
        rate: f64,
        /// Deviation of the rate, as a share of its mean.
        deviation: f64,
        /// Share of the segments that were lost.
        loss: f64,
        /// The sender uses BBR.
        has_bbr: bool,
    },
    /// Congestion signals came at an even rate.
    EvenSignals {
        /// Congestion signals.
        signals: f64,
        /// Segments lost at each signal.
        lost_per_signal: f64,
        /// Mean round trip before a signal.
        rtt: f64,
        /// The data delivered between two signals; `None` if there were fewer than two.
        interval: Option<SignalInterval>,
    },
    /// Segments were lost although no queue was full.
    LossWithoutQueue {
        /// Share of the segments that were lost.
        loss: f64,
        /// Mean round trip.
        rtt: f64,
        /// Shortest round trip.
        min_rtt: f64,
        /// The congestion window is so small that round trips say nothing about queues.
        has_small_window: bool,
        /// The rate that Reno reaches at this loss rate.
        mathis_bound: f64,
        /// The rate of this connection.
        rate: f64,
        /// The sender uses BBR.
        has_bbr: bool,
    },
    /// The sender reached the rate at which it is paced.
    Paced {
        /// The rate of this connection.
        rate: f64,
        /// The configured limit.
        max_rate: f64,
    },
    /// The congestion window grew and nothing was lost.
    WindowGrows {
        /// Congestion window at the first sample.
        first: f64,
        /// Congestion window at the last sample.
        last: f64,
        /// Mean round trip.
        rtt: f64,
    },
    /// Round trips vary more than a queue explains.
    RoundTripVaries {
        /// Shortest round trip.
        min_rtt: f64,
        /// Mean round trip.
        rtt: f64,
        /// Mean deviation of the round trip.
        deviation: f64,
        /// Share of CPU time that a hypervisor took from this machine; `None` if small.
        steal: Option<f64>,
    },
    /// The path has a long standing queue.
    StandingQueue {
        /// Mean round trip.
        rtt: f64,
        /// Shortest round trip.
        min_rtt: f64,
        /// The rate of this connection.
        rate: f64,
        /// The sender uses BBR.
        has_bbr: bool,
    },
    /// Queues of the path mark segments instead of dropping them.
    PathMarks {
        /// Share of the delivered segments that carried a mark.
        share: f64,
        /// The rate of this connection.
        rate: f64,
        /// Mean round trip.
        rtt: f64,
        /// Shortest round trip.
        min_rtt: f64,
    },
    /// The sender delivers the bandwidth that its congestion control has measured.
    BandwidthReached {
        /// The rate of this connection.
        rate: f64,
        /// The bandwidth of the path: as BBR has measured it, or the rate at which `taut_pipe`
        /// paces.
        bandwidth: f64,
        /// Mean round trip.
        rtt: f64,
        /// Shortest round trip.
        min_rtt: f64,
        /// The sender uses BBR; otherwise `taut_pipe`.
        has_bbr: bool,
    },
    /// The congestion window is used up and the queue is short.
    PathFull {
        /// The rate of this connection.
        rate: f64,
        /// Mean round trip.
        rtt: f64,
        /// Shortest round trip.
        min_rtt: f64,
    },
    /// Data waits to be read at this end while no data is sent or received.
    Unread {
        /// Bytes in the receive queue.
        queued: f64,
    },
    /// The receive buffer of this end was full of unread data.
    ReadsSlowly {
        /// Share of the samples.
        share: f64,
        /// Bytes in the receive queue at the last sample.
        queued: f64,
    },
    /// The application of this end reads soon enough to keep its buffer from filling, but too late
    /// for prompt acknowledgements.
    ReadsLate {
        /// Bytes in the receive queue, on average.
        queued: f64,
        /// How long each byte waits to be read.
        wait: f64,
    },
    /// The sender used up the window that this end offers.
    WindowUsed {
        /// Mean window offered.
        window: f64,
        /// Mean round trip, as the receiver estimates it.
        rtt: f64,
        /// Rate of arrival.
        rate: f64,
        /// Both ends use window scaling.
        has_scaling: bool,
        /// The widest window that the connection's window scale allows, if the window is about that
        /// wide.
        scale_bound: Option<f64>,
        /// What keeps the buffer small.
        sizing: Sizing,
    },
    /// Neither the window nor the application of this end limited the sender.
    NotHere {
        /// Rate of arrival.
        rate: f64,
    },
}

/// Mean figures of the interval between two congestion signals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SignalInterval {
    /// Segments delivered.
    pub segments: f64,
    /// Rate of delivery, in bytes a second.
    pub rate: f64,
    /// Deviation from the mean rate, in segments.
    pub unevenness: f64,
}

/// The reason for the size of a socket buffer that is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// The application set the size, which disables autotuning.
    Application,
    /// The buffer is as large as the sysctl allows.
    Sysctl {
        /// The sysctl's limit, in bytes.
        max: u64,
        /// The application did not set the size.
        is_automatic: bool,
    },
    /// The kernel sizes the buffer and may still grow it.
    Automatic,
    /// The buffer is below the limit, but it is unknown whether the application set its size.
    Undetermined {
        /// Size of the buffer, in bytes.
        size: u64,
        /// The sysctl's limit, in bytes.
        max: u64,
    },
    /// Neither the size nor the limit is known.
    Unknown,
}

// === impl Finding ===

impl Finding {
    pub(super) fn new(factor: Factor, weight: f64, cause: Cause) -> Self {
        Self {
            factor,
            weight: weight.clamp(0.0, 1.0),
            cause,
        }
    }
}

// === impl Sizing ===

impl Sizing {
    /// Returns what decides the size of a buffer of `size` bytes. `is_locked`: the application set
    /// the size. `max`: the sysctl's limit. An argument is `None` if unknown.
    pub(super) fn of(is_locked: Option<bool>, size: Option<u64>, max: Option<u64>) -> Self {
        match (is_locked, size, max) {
            (Some(true), ..) => Self::Application,
            (_, Some(size), Some(max)) if size >= max => Self::Sysctl {
                max,
                is_automatic: is_locked.is_some(),
            },
            (Some(false), ..) => Self::Automatic,
            (None, Some(size), Some(max)) => Self::Undetermined { size, max },
            _ => Self::Unknown,
        }
    }
}
