//! Rules about pacing, the congestion window and the length of round trips.

use taut_sys::tcp_info::TcpInfo;

use super::super::{Cause, Context, Factor, Finding};
use super::measures::{LINK_QUEUE, MANY, OFTEN, is_answered_in_bursts, round_trips, unanswered};
use crate::window::Window;

/// In slow start, the congestion window grows at least by this factor from the first sample to the
/// last.
const GROWS: f64 = 1.3;
/// A path also counts as full if the round trip is this much longer than the shortest, in seconds
/// (CoDel tolerates 5 ms).
const LINK_QUEUE_SECONDS: f64 = 0.004;
/// A queue is long if the round trip is this multiple of the shortest and longer by
/// [`LONG_QUEUE_SECONDS`].
const LONG_QUEUE: f64 = 2.0;
/// The delay that a person on a call notices, in seconds.
const LONG_QUEUE_SECONDS: f64 = 0.03;
/// A sender is considered paced when its goodput exceeds this share of the pacing rate. Below 1,
/// because the pacing rate includes headers.
const NEAR_PACE: f64 = 0.85;
/// The congestion window is used up when at least this share of it is in flight.
const IN_FLIGHT: f64 = 0.7;
/// A round trip of more than this multiple of the shortest, and [`WAITS_SECONDS`] longer, shows
/// waiting.
const WAITS: f64 = 2.0;
const WAITS_SECONDS: f64 = 0.002;
/// If such a round trip deviates by this share of its mean, the answering machine runs at times and
/// is descheduled at others. A queue, in contrast, stays long for many round trips.
const DEVIATES: f64 = 0.3;
/// The machine is also descheduled at times if no acknowledgement came for this multiple of the
/// mean gap between two.
const SILENT: f64 = 5.0;
/// The minimum share of stolen CPU time that is worth a remedy: a neighbour's bursts take less.
const STOLEN: f64 = 0.05;

pub(super) fn pacing(window: &Window<'_>, network: f64) -> Option<Finding> {
    let max_rate = window.last().max_pacing_rate? as f64;
    let rate = window.sent_rate();
    let cause = Cause::Paced { rate, max_rate };
    (rate >= max_rate * NEAR_PACE).then(|| Finding::new(Factor::Pacing, network, cause))
}

pub(super) fn slow_start(window: &Window<'_>, network: f64) -> Option<Finding> {
    let in_slow_start = |info: &TcpInfo| {
        info.snd_ssthresh
            .is_none_or(|ssthresh| info.snd_cwnd < ssthresh)
    };
    let often = window.often(in_slow_start);
    let (first, last) = (window.first().snd_cwnd, window.last().snd_cwnd);
    let retransmits = window.more_wrapping(|info| Some(info.total_retrans));
    let grew = f64::from(last) >= f64::from(first) * GROWS;
    (often > OFTEN && grew && retransmits == 0).then(|| {
        let cause = Cause::WindowGrows {
            first: first.into(),
            last: last.into(),
            rtt: window.mean_seconds(|info| info.rtt).unwrap_or_default(),
        };
        Finding::new(Factor::SlowStart, network * often, cause)
    })
}

/// Detects a machine that is descheduled at times: some round trips are those of an empty path,
/// others are much longer.
pub(super) fn descheduled(window: &Window<'_>, weight: f64, context: &Context) -> Option<Finding> {
    let (min_rtt, rtt) = round_trips(window)?;
    let deviation = window.mean_seconds(|info| info.rttvar)?;
    let waits = rtt > min_rtt * WAITS && rtt > min_rtt + WAITS_SECONDS;
    let in_flight = window.mean(|info| Some(info.unacked.into()))?;
    let comes_and_goes = deviation > rtt * DEVIATES || is_answered_in_bursts(window, SILENT);
    (waits && in_flight >= MANY && comes_and_goes && unanswered(window) < OFTEN).then(|| {
        let cause = Cause::RoundTripVaries {
            min_rtt,
            rtt,
            deviation,
            steal: context.steal.filter(|steal| *steal > STOLEN),
        };
        Finding::new(Factor::Descheduled, weight, cause)
    })
}

pub(super) fn queue(window: &Window<'_>, network: f64) -> Option<Finding> {
    let (min_rtt, rtt) = round_trips(window)?;
    (rtt > min_rtt * LONG_QUEUE && rtt > min_rtt + LONG_QUEUE_SECONDS).then(|| {
        let cause = Cause::StandingQueue {
            rtt,
            min_rtt,
            rate: window.sent_rate(),
        };
        Finding::new(Factor::Queue, network, cause)
    })
}

pub(super) fn link(window: &Window<'_>, network: f64) -> Option<Finding> {
    let (min_rtt, rtt) = round_trips(window)?;
    let full = window.often(|info| f64::from(info.unacked) >= f64::from(info.snd_cwnd) * IN_FLIGHT);
    // Without a queue the path has room: the congestion window may not have grown far enough yet.
    (rtt > min_rtt * LINK_QUEUE || rtt > min_rtt + LINK_QUEUE_SECONDS).then(|| {
        let cause = Cause::PathFull {
            rate: window.sent_rate(),
            rtt,
            min_rtt,
        };
        Finding::new(Factor::Link, network * full, cause)
    })
}
