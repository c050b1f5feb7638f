//! Measurements that several rules of the sending end share.

use crate::window::Window;

/// A condition that holds in more than this share of the samples holds most of the time.
pub(super) const OFTEN: f64 = 0.5;
/// A round trip of less than this multiple of the shortest shows no queue.
pub(super) const NO_QUEUE: f64 = 1.25;
/// The minimum difference between round trips that says something about queues, in seconds.
pub(super) const MILLISECOND: f64 = 0.001;
/// The weight of a finding that one end cannot confirm: likely, never sure.
pub(super) const NOT_CERTAIN: f64 = 0.7;
/// On a full path, which has at least a short queue, the round trip exceeds this multiple of the
/// shortest.
pub(super) const LINK_QUEUE: f64 = 1.1;
/// A path also counts as full if the round trip is this much longer than the shortest, in seconds
/// (CoDel tolerates 5 ms).
pub(super) const LINK_QUEUE_SECONDS: f64 = 0.004;
/// The path is full if a sender delivers at least this share of the bandwidth that its congestion
/// control has measured. Below 1, because the measurement is the highest of the last ten round
/// trips, and because segments are lost.
pub(super) const NEAR_BANDWIDTH: f64 = 0.7;
/// The minimum number of segments in flight for timing rules. With fewer, delayed acknowledgements
/// make every answer late.
pub(super) const MANY: f64 = 8.0;
/// The congestion window is used up when at least this share of it is in flight.
const IN_FLIGHT: f64 = 0.7;
/// The minimum mean time since the last acknowledgement, in seconds, that shows bursts.
const SILENT_SECONDS: f64 = 0.01;

/// Returns the share of the samples in which a retransmitted segment was not acknowledged yet.
pub(super) fn unanswered(window: &Window<'_>) -> f64 {
    window.often(|info| info.retransmits > 0 || info.backoff > 0)
}

/// Returns the shortest and the mean round trip, in seconds. The shortest, of all connections to the
/// peer, is taken as the round trip without a queue.
pub(super) fn round_trips(window: &Window<'_>) -> Option<(f64, f64)> {
    let shortest = window.shortest_rtt()?.as_secs_f64();
    Some((shortest, window.mean_seconds(|info| info.rtt)?))
}

/// Like [`round_trips`], but with the shortest round trip of this connection alone. Some of its
/// round trips were that short, so the cause of longer ones comes and goes.
pub(super) fn own_round_trips(window: &Window<'_>) -> Option<(f64, f64)> {
    let shortest = window.range(|info| info.min_rtt)?.0.as_secs_f64();
    let mean = window.mean_seconds(|info| info.rtt)?;
    (shortest > 0.0).then_some((shortest, mean))
}

/// Returns the share of the samples in which the congestion window was used up.
pub(super) fn window_used_up(window: &Window<'_>) -> f64 {
    window.often(|info| f64::from(info.unacked) >= f64::from(info.snd_cwnd) * IN_FLIGHT)
}

/// Whether acknowledgements come in bursts: the last one is older than `times` the mean gap between
/// two. A queue spaces acknowledgements evenly.
pub(super) fn is_answered_in_bursts(window: &Window<'_>, times: f64) -> bool {
    // Without data in flight no acknowledgement is due.
    let silent = window.mean(|info| (info.unacked > 0).then_some(info.last_ack_recv.as_secs_f64()));
    // A receiver acknowledges every second segment.
    let apart = 2.0 * f64::from(window.last().snd_mss) / window.sent_rate();
    silent.is_some_and(|silent| silent > SILENT_SECONDS && silent > apart * times)
}
