//! Rules about pacing, the congestion window and the length of round trips.

use super::super::{Cause, Context, Factor, Finding};
use super::control;
use super::measures::{
    LINK_QUEUE, LINK_QUEUE_SECONDS, MANY, NEAR_BANDWIDTH, NOT_CERTAIN, OFTEN,
    is_answered_in_bursts, own_round_trips, round_trips, unanswered, window_used_up,
};
use crate::window::Window;

/// In slow start, the congestion window grows at least by this factor from the first sample to the
/// last.
const GROWS: f64 = 1.3;
/// A queue is long if the round trip is this multiple of the shortest and longer by
/// [`LONG_QUEUE_SECONDS`].
const LONG_QUEUE: f64 = 2.0;
/// The delay that a person on a call notices, in seconds.
const LONG_QUEUE_SECONDS: f64 = 0.03;
/// A queue of this many seconds is long on a path of any length: a tenth of the 400 ms that ITU-T
/// G.114 allows for a call in one direction.
const LONG_QUEUE_ALWAYS_SECONDS: f64 = 0.04;
/// The minimum share of delivered segments with a congestion mark. Below it even Reno reaches windows
/// of a hundred segments and more.
const MARKS_MATTER: f64 = 1e-4;
/// A sender is considered paced when its goodput exceeds this share of the pacing rate. Below 1,
/// because the pacing rate includes headers.
const NEAR_PACE: f64 = 0.85;
/// A round trip of more than this multiple of the shortest, and [`WAITS_SECONDS`] longer, shows
/// waiting.
const WAITS: f64 = 2.0;
const WAITS_SECONDS: f64 = 0.002;
/// If such a round trip deviates by this share of its mean, the answering machine runs at times and
/// is descheduled at others. A queue, in contrast, stays long for many round trips.
const DEVIATES: f64 = 0.3;
/// The machine is also descheduled at times if no acknowledgement came for this multiple of the
/// mean gap between two, and the round trip deviates by [`DEVIATES_IN_BURSTS`]: flows that share a
/// queue are answered in bursts, too, but after a steady time.
const SILENT: f64 = 5.0;
const DEVIATES_IN_BURSTS: f64 = 0.1;
/// The minimum share of stolen CPU time that is worth a remedy: a neighbour's bursts take less.
const STOLEN: f64 = 0.05;

pub(super) fn pacing(window: &Window<'_>, network: f64) -> Option<Finding> {
    let max_rate = window.last().max_pacing_rate? as f64;
    let rate = window.sent_rate();
    let cause = Cause::Paced { rate, max_rate };
    (rate >= max_rate * NEAR_PACE).then(|| Finding::new(Factor::Pacing, network, cause))
}

pub(super) fn slow_start(window: &Window<'_>, network: f64) -> Option<Finding> {
    let (first, last) = (window.first().snd_cwnd, window.last().snd_cwnd);
    let grew = f64::from(last) >= f64::from(first) * GROWS;
    let often = match control::model(window) {
        Some(model) => model.startup,
        // After a loss the window is past slow start, or grows to a threshold that is known.
        None if window.more_wrapping(|info| Some(info.total_retrans)) > 0 => 0.0,
        None => window.often(|info| {
            info.snd_ssthresh
                .is_none_or(|ssthresh| info.snd_cwnd < ssthresh)
        }),
    };
    (often > OFTEN && grew).then(|| {
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
    let (min_rtt, rtt) = own_round_trips(window)?;
    let deviation = window.mean_seconds(|info| info.rttvar)?;
    let waits = rtt > min_rtt * WAITS && rtt > min_rtt + WAITS_SECONDS;
    let in_flight = window.mean(|info| Some(info.unacked.into()))?;
    let comes_and_goes = deviation > rtt * DEVIATES
        || deviation > rtt * DEVIATES_IN_BURSTS && is_answered_in_bursts(window, SILENT);
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
    let waits = rtt - min_rtt;
    let is_long = rtt > min_rtt * LONG_QUEUE && waits > LONG_QUEUE_SECONDS;
    // If a sender has no more to send, because of its application or its send buffer, delayed
    // acknowledgements lengthen its round trips.
    let has_unsent = window.often_of_samples(super::has_unsent) > OFTEN;
    let paces = control::is_model_based(window) || control::paced_rate(window).is_some();
    let uses_window = paces || window_used_up(window) > OFTEN;
    let fills = has_unsent && uses_window;
    (is_long || fills && waits > LONG_QUEUE_ALWAYS_SECONDS).then(|| {
        let cause = Cause::StandingQueue {
            rtt,
            min_rtt,
            rate: window.sent_rate(),
            has_bbr: control::is_model_based(window),
        };
        Finding::new(Factor::Queue, network, cause)
    })
}

/// Detects a path whose queues mark segments instead of dropping them (RFC 3168). A mark shows a
/// queue, even one that is too short to show in the round trip.
pub(super) fn marks(window: &Window<'_>, network: f64) -> Option<Finding> {
    let (min_rtt, rtt) = round_trips(window)?;
    let delivered = window.more_wrapping(|info| info.delivered);
    let marked = window.more_wrapping(|info| info.delivered_ce);
    let share = f64::from(marked) / f64::from(delivered.max(1));
    if share < MARKS_MATTER || queue(window, network).is_some() {
        return None;
    }
    let cause = Cause::PathMarks {
        share,
        rate: window.sent_rate(),
        rtt,
        min_rtt,
    };
    Some(Finding::new(Factor::Link, network, cause))
}

pub(super) fn link(window: &Window<'_>, network: f64) -> Option<Finding> {
    match control::model(window) {
        Some(model) => full_by_model(window, network, model),
        None => full_by_window(window, network)
            .filter(|found| found.weight > 0.0)
            .or_else(|| full_by_pacing(window, network)),
    }
}

/// Detects a full path by a used-up congestion window and a queue.
fn full_by_window(window: &Window<'_>, network: f64) -> Option<Finding> {
    let (min_rtt, rtt) = round_trips(window)?;
    let full = window_used_up(window);
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

/// Detects a full path by a sender that delivers the bandwidth of its model. It keeps no queue, but
/// probes for more bandwidth again and again.
fn full_by_model(window: &Window<'_>, network: f64, model: control::Model) -> Option<Finding> {
    let (min_rtt, rtt) = round_trips(window)?;
    let rate = window.sent_rate();
    (rate >= model.bandwidth * NEAR_BANDWIDTH).then(|| {
        let cause = Cause::BandwidthReached {
            rate,
            bandwidth: model.bandwidth,
            rtt,
            min_rtt,
            has_bbr: true,
        };
        Finding::new(Factor::Link, network * (1.0 - model.startup), cause)
    })
}

/// Detects a full path by a `taut_pipe` that sends at the rate at which it paces. Never sure,
/// because `taut_pipe` does not report whether it is still searching for the bandwidth.
fn full_by_pacing(window: &Window<'_>, network: f64) -> Option<Finding> {
    let bandwidth = control::paced_rate(window)?;
    let (min_rtt, rtt) = round_trips(window)?;
    let rate = window.sent_rate();
    (rate >= bandwidth * NEAR_BANDWIDTH).then(|| {
        let cause = Cause::BandwidthReached {
            rate,
            bandwidth,
            rtt,
            min_rtt,
            has_bbr: false,
        };
        Finding::new(Factor::Link, network * NOT_CERTAIN, cause)
    })
}
