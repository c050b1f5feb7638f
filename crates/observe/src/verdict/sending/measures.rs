//! Measurements that several rules of the sending end share.

use taut_sys::tcp_info::TcpInfo;

use crate::window::{SampleRef, Window};

/// A condition that holds in more than this share of the samples holds most of the time.
pub(super) const OFTEN: f64 = 0.5;
/// A round trip of less than this multiple of the shortest shows no queue.
pub(super) const NO_QUEUE: f64 = 1.25;
/// The minimum difference between round trips that says something about queues, in seconds.
pub(super) const MILLISECOND: f64 = 0.001;
/// The weight of a finding that one end cannot confirm: likely, never sure.
pub(super) const NOT_CERTAIN: f64 = 0.7;
/// A round trip of more than this multiple of the shortest, and [`WAITS_SECONDS`] longer, shows
/// waiting.
const WAITS: f64 = 2.0;
const WAITS_SECONDS: f64 = 0.002;
/// On a full path, which has at least a short queue, the round trip exceeds this multiple of the
/// shortest.
pub(super) const LINK_QUEUE: f64 = 1.1;
/// A path also counts as full if the round trip is this much longer than the shortest, in seconds
/// (CoDel tolerates 5 ms).
pub(super) const LINK_QUEUE_SECONDS: f64 = 0.004;
/// What waits in a queue waits about as long as the segment before. So a round trip shows a queue
/// only if it is longer than the shortest by this multiple of the deviation of single round trips.
/// Random delays up to J exceed the least by J/2 on average, and deviate by J/4.
const QUEUE_STANDS: f64 = 3.0;
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
/// The longest delay of an acknowledgement, in seconds: Linux's `TCP_DELACK_MIN` of 40 ms, a tick
/// of a 100 Hz clock, and the length of the burst that it answers.
pub(super) const DELAYED_SECONDS: f64 = 0.065;
/// The minimum mean share of the peer's buffer that holds unread data if the reader delays
/// acknowledgements. On a path that several flows share, acknowledgements come in bursts, too, but
/// the window stays as it is.
pub(super) const UNREAD_LITTLE: f64 = 0.02;

/// Returns the share of the samples in which a retransmitted segment was not acknowledged yet. (Probes of a closed
/// window back off, too, with nothing in flight.)
pub(super) fn unanswered(window: &Window<'_>) -> f64 {
    window.often(|info| info.retransmits > 0 || (info.backoff > 0 && info.unacked > 0))
}

/// Returns the shortest and the mean round trip, in seconds. The shortest, of all connections to
/// the peer, is taken as the round trip without a queue.
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

/// Whether round trips that are longer by `waits` seconds, on average, show a queue for certain:
/// other delays deviate, too.
pub(super) fn stands(window: &Window<'_>, waits: f64) -> bool {
    let deviation = window.mean_seconds(|info| info.rttvar).unwrap_or_default();
    waits > deviation * QUEUE_STANDS
}

/// Returns the share of the samples in which the congestion window was used up.
pub(super) fn window_used_up(window: &Window<'_>) -> f64 {
    window.often(|info| f64::from(info.unacked) >= f64::from(info.snd_cwnd) * IN_FLIGHT)
}

/// The age of the last acknowledgement at a sample, on average over the samples with data in
/// flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Age {
    pub(super) seconds: f64,
    /// The same as a multiple of the mean gap between two acknowledgements.
    pub(super) gaps: f64,
}

/// Returns the age of the last acknowledgement; `None` if no data was in flight.
pub(super) fn last_acknowledgement(window: &Window<'_>) -> Option<Age> {
    // Without data in flight no acknowledgement is due.
    let seconds = window.mean_since_last_ack(|info| info.unacked > 0)?;
    // A receiver acknowledges every second segment.
    let gap = 2.0 * f64::from(window.last().snd_mss) / window.busy_rate();
    Some(Age {
        seconds,
        gaps: seconds / gap,
    })
}

/// Whether acknowledgements come in bursts: the last one is older than `times` the mean gap between
/// two. A queue spaces acknowledgements evenly.
pub(super) fn is_answered_in_bursts(window: &Window<'_>, times: f64) -> bool {
    last_acknowledgement(window).is_some_and(|age| age.seconds > SILENT_SECONDS && age.gaps > times)
}

/// Whether the peer owes answers: round trips are much longer than the shortest, and the peer
/// leaves data in flight unanswered more often than it closes its window. A machine that does not
/// run neither acknowledges nor closes its window. The kernel of a reader that does not keep up
/// acknowledges what arrives, until its window is closed and nothing is in flight. If the window is
/// never closed, no reader holds the answers back.
pub(super) fn owes_answers(window: &Window<'_>) -> bool {
    let Some((min_rtt, rtt)) = own_round_trips(window) else {
        return false;
    };
    let longest = f64::max(min_rtt * WAITS, min_rtt + WAITS_SECONDS);
    let in_flight = window.mean(|info| Some(info.unacked.into()));
    if rtt <= longest || in_flight.is_none_or(|segments| segments < MANY) {
        return false;
    }
    let is_closed = |info: &TcpInfo| info.snd_wnd.is_some_and(|wnd| wnd < info.snd_mss);
    let is_owed = |sample: &SampleRef<'_>, info: &TcpInfo| {
        let age = sample.since_last_ack().unwrap_or_default();
        info.unacked > 0 && !is_closed(info) && age.as_secs_f64() > longest
    };
    let closed = window.often(is_closed);
    closed == 0.0 || window.often_of_samples(is_owed) > closed
}
