//! Rules about pacing, the congestion window and the length of round trips.

use super::super::{Cause, Context, Factor, Finding, LIKELY_MOST};
use super::control;
use super::measures::{
    DELAYED_SECONDS, LINK_QUEUE, LINK_QUEUE_SECONDS, NEAR_BANDWIDTH, NOT_CERTAIN, OFTEN,
    UNREAD_LITTLE, last_acknowledgement, owes_answers, own_round_trips, round_trips, stands,
    unanswered, window_used_up,
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
/// The minimum share of delivered segments with a congestion mark. Below it even Reno reaches
/// windows of a hundred segments and more.
const MARKS_MATTER: f64 = 1e-4;
/// A sender is considered paced when its goodput exceeds this share of the pacing rate. Below 1,
/// because the pacing rate includes headers.
const NEAR_PACE: f64 = 0.85;
/// If a round trip that shows waiting deviates by this share of its mean, the answering machine
/// runs at times and is descheduled at others. A queue, in contrast, stays long for many round
/// trips.
const DEVIATES: f64 = 0.3;
/// The machine is also descheduled at times if its silence accounts for the waiting. A machine that
/// runs for half of the time or less, in slices, is silent for the rest, which is also the longest
/// that a segment waits for it. So the last acknowledgement is, on average, at least this share of
/// the waiting old. In a queue, whoever else fills it, segments wait while others are acknowledged.
const SILENT_SHARE: f64 = 0.25;
/// The minimum of that age, as a multiple of the mean gap between two acknowledgements, and in
/// seconds: the kernel dates acknowledgements by a clock that ticks every 4 ms, or every 10.
const SILENT: f64 = 5.0;
const SILENT_SECONDS: f64 = 0.002;
/// The minimum share of stolen CPU time that is worth a remedy: a neighbour's bursts take less.
const STOLEN: f64 = 0.05;

pub(super) fn pacing(window: &Window<'_>, network: f64) -> Option<Finding> {
    let max_rate = window.last().max_pacing_rate? as f64;
    let rate = window.busy_rate();
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
    let is_silent = waits_in_silence(window);
    let comes_and_goes = deviation > rtt * DEVIATES || is_silent;
    // Late acknowledgements of a reader lengthen round trips, too, but by less.
    let has_room = window
        .unread_share()
        .is_some_and(|share| share <= UNREAD_LITTLE);
    let longest = window.longest_rtt().unwrap_or_default().as_secs_f64();
    let is_certain = is_silent && (has_room || longest > min_rtt + DELAYED_SECONDS);
    let at_most = if is_certain { 1.0 } else { LIKELY_MOST };
    let is_answered = unanswered(window) < OFTEN;
    (comes_and_goes && is_answered && owes_answers(window)).then(|| {
        let cause = Cause::RoundTripVaries {
            min_rtt,
            rtt,
            deviation,
            steal: context.steal.filter(|steal| *steal > STOLEN),
        };
        Finding::new(Factor::Descheduled, weight.min(at_most), cause)
    })
}

/// Whether the times without acknowledgements are long enough to account for what the round trip is
/// longer than that of the empty path.
fn waits_in_silence(window: &Window<'_>) -> bool {
    let Some((min_rtt, rtt)) = round_trips(window) else {
        return false;
    };
    last_acknowledgement(window).is_some_and(|age| {
        age.seconds > SILENT_SECONDS
            && age.gaps > SILENT
            && age.seconds > (rtt - min_rtt) * SILENT_SHARE
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
            rate: window.busy_rate(),
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
        rate: window.busy_rate(),
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
    let rate = window.busy_rate();
    // A full path carries its bandwidth all the time. Bursts of a sender that something else limits
    // wait, too, but only for themselves, and are delivered faster than the sender sends on
    // average.
    let bandwidth = window.mean(|info| info.delivery_rate.map(|rate| rate as f64));
    if bandwidth.is_some_and(|bandwidth| rate < bandwidth * NEAR_BANDWIDTH) {
        return None;
    }
    // Without a queue the path has room: the congestion window may not have grown far enough yet.
    (rtt > min_rtt * LINK_QUEUE || rtt > min_rtt + LINK_QUEUE_SECONDS).then(|| {
        let cause = Cause::PathFull { rate, rtt, min_rtt };
        let certain = match stands(window, rtt - min_rtt) {
            true => 1.0,
            false => NOT_CERTAIN,
        };
        Finding::new(Factor::Link, network * full * certain, cause)
    })
}

/// Detects a full path by a sender that delivers the bandwidth of its model. It keeps no queue, but
/// probes for more bandwidth again and again.
fn full_by_model(window: &Window<'_>, network: f64, model: control::Model) -> Option<Finding> {
    let (min_rtt, rtt) = round_trips(window)?;
    let rate = window.busy_rate();
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
    let rate = window.busy_rate();
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
