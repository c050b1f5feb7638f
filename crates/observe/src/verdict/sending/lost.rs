//! Rules about lost segments.

use std::time::Duration;

use taut_sys::tcp_info::TcpInfo;

use super::super::{Cause, Factor, Finding, SignalInterval};
use super::control;
use super::measures::{
    LINK_QUEUE, LINK_QUEUE_SECONDS, MILLISECOND, NEAR_BANDWIDTH, NO_QUEUE, NOT_CERTAIN, OFTEN,
    round_trips, stands, unanswered,
};
use crate::event_delta::EventDelta;
use crate::window::Window;

/// The minimum loss that matters. At a lower loss rate even Reno reaches windows of a hundred
/// segments and more.
pub(super) const LOSS_MATTERS: f64 = 1e-4;
/// The constant of equation 2.2 of the thesis (Mathis et al. 1997), for one acknowledgement per
/// segment.
pub(super) const MATHIS: f64 = 1.22;
/// The minimum correlation between round trip and segments in flight that shows a queue; the round
/// trip must also vary by [`QUEUE_VARIES`] of the shortest one. Losses are then drops of that
/// queue.
const FOLLOWS: f64 = 0.5;
const QUEUE_VARIES: f64 = 0.03;
/// Each additional byte in flight must lengthen the round trip by at least this share of the time
/// that the byte takes at the connection's rate.
const OWN_RATE: f64 = 0.6;
/// The windows at the signals are the same if they deviate by less than this share of their mean: a
/// path drops when the window exceeds what path and queue have room for. With random losses they
/// deviate by a fifth and more.
const SAME_WINDOW: f64 = 0.1;
/// The length of the parts whose rates are compared. A policer passes the same amount in each part;
/// a sender with random losses does not.
const PART: Duration = Duration::from_millis(500);
/// The maximum deviation of a steady rate, as a share of the mean.
const STEADY: f64 = 0.1;
/// The minimum share of segments that a policer drops.
const LIMITER_DROPS: f64 = 0.005;
/// A queue drops this much only on a path that holds just a few segments.
const LIMITER_DROPS_MUCH: f64 = 0.02;
/// The minimum share of segments that a policer drops if the sender paces at the bandwidth that it
/// has measured. Bursts that pass the token bucket make the sender measure more than the policer's
/// rate, again and again. Usable paths lose fewer segments at random.
const LIMITER_DROPS_PACED: f64 = 0.06;
/// The minimum window, in segments, whose round trips show queues. With a smaller window, delayed
/// acknowledgements make every answer late.
const FEW: f64 = 4.0;
/// The minimum window, in segments, whose mean round trip is meaningful.
const SMALL: f64 = 10.0;
/// Losses are even if the number of segments delivered between two signals matches the mean rate.
/// The tolerance is this many segments for each segment lost at a signal (the signal marks the
/// first lost segment, the rule means the last), plus [`EVEN_SHARE`] for the time until the signal.
const EVEN_SEGMENTS: f64 = 4.0;
/// The maximum number of losses at a signal that widen the tolerance. Further losses belong to the
/// same burst.
const TOGETHER_MOST: f64 = 6.0;
const EVEN_SHARE: f64 = 0.01;
/// The maximum deviation of even losses, as a share of the segments delivered. Losses that deviate
/// more are even only by chance.
const UNEVEN: f64 = 0.3;
/// The number of signal pairs that makes a policer likely. With fewer pairs the finding is less
/// than likely and requires more than [`TOGETHER`] lost segments per signal on a path without a
/// queue: an empty token bucket drops several segments, random loss drops one at a time.
const ENOUGH: u32 = 4;
const TOGETHER: f64 = 1.8;
/// Like [`TOGETHER`], for fewer than two signals.
const TOGETHER_ALONE: f64 = 3.0;
/// The weight of a finding that is not likely.
const NOT_LIKELY: f64 = 0.45;
/// A rate fits Mathis' bound up to this multiple of the bound: Cubic is faster than Reno, BBR much
/// faster.
const NEAR_MATHIS: f64 = 4.0;

/// Detects a path MTU black hole: the handshake and short segments got through, full-sized segments
/// did not. A link on the path cannot carry full-sized packets, and the router's ICMP message is
/// lost (RFC 2923 2.1).
pub(super) fn black_hole(window: &Window<'_>, network: f64) -> Option<Finding> {
    let last = window.last();
    let acked = last.bytes_acked?;
    let queued = window.samples().last()?.connection.send_queue;
    (unanswered(window) > OFTEN && acked < last.snd_mss.into() && queued >= last.snd_mss).then(
        || {
            let cause = Cause::FullSegmentsUnanswered {
                mss: last.snd_mss.into(),
                acked: acked as f64,
                received: last.bytes_received.unwrap_or(0) as f64,
            };
            Finding::new(Factor::PathMtu, network * NOT_CERTAIN, cause)
        },
    )
}

pub(super) fn timeouts(window: &Window<'_>, network: f64) -> Option<Finding> {
    let share = unanswered(window);
    (share > OFTEN && shrinks(window).is_none()).then(|| {
        let cause = Cause::Unanswered {
            share,
            since_last_ack: window.last().last_ack_recv.as_secs_f64(),
        };
        Finding::new(Factor::Timeouts, network, cause)
    })
}

/// Returns the segment size at the first and the last sample, if it became smaller.
fn shrinks(window: &Window<'_>) -> Option<(u32, u32)> {
    let (before, now) = (window.first().snd_mss, window.last().snd_mss);
    (now < before).then_some((before, now))
}

pub(super) fn path_mtu(window: &Window<'_>, network: f64) -> Option<Finding> {
    let (before, now) = shrinks(window)?;
    let retransmits = window.more_wrapping(|info| Some(info.total_retrans));
    (retransmits > 0).then(|| {
        let cause = Cause::SegmentsShrank {
            before: before.into(),
            now: now.into(),
            retransmits: retransmits.into(),
        };
        Finding::new(Factor::PathMtu, network, cause)
    })
}

/// Detects a policer: no queue causes its losses, and the losses are not random, because an empty
/// token bucket drops at the same rate each time.
pub(super) fn rate_limit(window: &Window<'_>, network: f64) -> Option<Finding> {
    let loss = window.loss();
    let (min_rtt, rtt) = round_trips(window)?;
    // A round trip before the losses that single round trips exceed by chance is no certain queue.
    let delta = window.event_delta();
    let at_signals = delta.and_then(|delta| delta.round_trip_at_signals());
    let is_certain = at_signals.is_none_or(|rtt| stands(window, rtt - min_rtt));
    let is_queue = is_lost_at_a_queue(window, min_rtt);
    if loss < LOSS_MATTERS || is_queue && is_certain {
        return None;
    }
    // A sender with a model paces, so its losses are even whatever drops its segments.
    let model = control::is_model_based(window);
    if model && (loss < LIMITER_DROPS_PACED || shows_queue(window)?) {
        return None;
    }
    if let Some(delta) = delta.filter(|_| !model) {
        return limiter_by_signals(window, &delta, is_queue, network);
    }
    if is_queue {
        return None;
    }
    // With small windows, delayed acknowledgements lengthen the round trip, so it shows no queue.
    let waits = rtt > min_rtt * NO_QUEUE + MILLISECOND && loss < LIMITER_DROPS_MUCH;
    if !model && (loss < LIMITER_DROPS || waits) {
        return None;
    }
    let rates = window.sent_rates(PART);
    let rate = rates.iter().sum::<f64>() / rates.len() as f64;
    let squares = rates.iter().map(|part| (part / rate - 1.0).powi(2));
    let deviation = (squares.sum::<f64>() / rates.len() as f64).sqrt();
    (rates.len() >= 5 && (model || deviation < STEADY)).then(|| {
        let cause = Cause::SteadyRate {
            rate,
            deviation,
            loss,
            has_bbr: model,
        };
        Finding::new(Factor::RateLimit, network * NOT_CERTAIN, cause)
    })
}

/// Detects a policer by the signals. `may_queue`: the round trip at the signals may show a queue.
fn limiter_by_signals(
    window: &Window<'_>,
    delta: &EventDelta,
    may_queue: bool,
    network: f64,
) -> Option<Finding> {
    let rtt = delta.round_trip_at_signals()?;
    let signals = f64::from(delta.0.signals);
    let lost_per_signal = f64::from(window.repeated()) / signals;
    let uneven = delta.uneven();
    let is_regular = uneven.is_none_or(|uneven| uneven.deviation < uneven.mean * UNEVEN);
    let is_even = uneven.is_some_and(|uneven| {
        uneven.deviation
            < EVEN_SEGMENTS * lost_per_signal.clamp(1.0, TOGETHER_MOST) + uneven.mean * EVEN_SHARE
            && uneven.deviation < uneven.mean * UNEVEN
    });
    let mean_window = delta.windows()?.mean;
    let (min_rtt, mean_rtt) = round_trips(window)?;
    let is_short = mean_window < SMALL || mean_rtt <= min_rtt * NO_QUEUE + MILLISECOND;
    // A few signals may come at an even rate by chance.
    let (is_limiter, certain) = match delta.0.between {
        ENOUGH.. => (
            is_even,
            // A sender that paces, like `taut_pipe`, loses evenly whatever the cause, but random
            // loss drops one segment at a time.
            match lost_per_signal > TOGETHER && is_short {
                true => NOT_CERTAIN,
                false => NOT_LIKELY,
            },
        ),
        few => {
            let least = if few == 0 { TOGETHER_ALONE } else { TOGETHER };
            let may_be_even = is_even || uneven.is_none();
            let is_limiter = may_be_even && lost_per_signal > least
                || is_even && has_same_windows(delta)
                || lost_per_signal > TOGETHER_ALONE && is_regular;
            let waits = rtt - min_rtt;
            let is_queued = rtt > min_rtt * LINK_QUEUE + MILLISECOND && stands(window, waits);
            (is_limiter && !may_queue && !is_queued, NOT_LIKELY)
        }
    };
    is_limiter.then(|| {
        let cause = Cause::EvenSignals {
            signals,
            lost_per_signal,
            rtt,
            interval: uneven.map(|uneven| SignalInterval {
                segments: uneven.mean,
                rate: delta.rate() * f64::from(window.last().snd_mss),
                unevenness: uneven.deviation,
            }),
        };
        Finding::new(Factor::RateLimit, network * certain, cause)
    })
}

/// Whether the mean round trip shows a queue. With a few segments in flight it shows only delayed
/// acknowledgements.
fn shows_queue(window: &Window<'_>) -> Option<bool> {
    let in_flight = window.mean(|info| Some(info.unacked.into()))?;
    Some(in_flight >= FEW && is_queued(window, NO_QUEUE)?)
}

/// Whether segments wait in a queue on average: the mean round trip exceeds `times` the shortest.
fn is_queued(window: &Window<'_>, times: f64) -> Option<bool> {
    let (min_rtt, rtt) = round_trips(window)?;
    Some(stands(window, rtt - min_rtt) && rtt > min_rtt * times + MILLISECOND)
}

/// Whether a full queue dropped the lost segments: the round trip before the loss was longer than
/// the shortest.
fn is_lost_at_a_queue(window: &Window<'_>, min_rtt: f64) -> bool {
    let delta = window.event_delta();
    match delta.and_then(|delta| delta.round_trip_at_signals()) {
        Some(_) if has_small_window(window) => false,
        Some(rtt) if rtt > min_rtt * NO_QUEUE + MILLISECOND => true,
        // CoDel drops while the queue is still short. A path with jitter has such round trips, too.
        Some(rtt) => {
            let is_same = delta.is_some_and(|delta| has_same_windows(&delta));
            rtt > min_rtt + LINK_QUEUE_SECONDS
                && stands(window, rtt - min_rtt)
                && (is_same || fills_a_queue(window, min_rtt))
        }
        None => fills_a_queue(window, min_rtt),
    }
}

/// Whether the congestion windows at the signals were about the same.
fn has_same_windows(delta: &EventDelta) -> bool {
    let windows = delta.windows();
    windows.is_some_and(|windows| windows.deviation < windows.mean * SAME_WINDOW)
}

/// Whether the windows are so small, at this loss rate, that round trips say nothing about queues.
fn has_small_window(window: &Window<'_>) -> bool {
    let windows = window.event_delta().and_then(|delta| delta.windows());
    windows.is_some_and(|windows| windows.mean < FEW && window.loss() > LIMITER_DROPS_MUCH)
}

/// Whether the round trip grows with the bytes in flight, by the time that these bytes take at this
/// connection's rate. On a path with spare capacity a burst waits only for itself, at the path's
/// higher rate.
fn fills_a_queue(window: &Window<'_>, min_rtt: f64) -> bool {
    let (shortest, longest) = window.range(|info| info.rtt).unwrap_or_default();
    let varies = (longest.saturating_sub(shortest)).as_secs_f64();
    let rtt = |info: &TcpInfo| info.rtt.map(|rtt| rtt.as_secs_f64());
    let follows = window.correlation(|info| Some(info.unacked.into()), rtt);
    let longer = window.slope(
        |info| Some(f64::from(info.unacked) * f64::from(info.snd_mss)),
        rtt,
    );
    varies > min_rtt * QUEUE_VARIES
        && varies > MILLISECOND
        && follows.is_some_and(|c| c > FOLLOWS)
        && longer.is_some_and(|seconds_a_byte| seconds_a_byte * window.busy_rate() > OWN_RATE)
}

/// Whether the lost segments met no queue: the round trip is short, also before the losses.
pub(super) fn is_without_queue(window: &Window<'_>) -> bool {
    let Some((min_rtt, rtt)) = round_trips(window) else {
        return false;
    };
    let is_short = rtt <= min_rtt * NO_QUEUE + MILLISECOND;
    is_short && !is_lost_at_a_queue(window, min_rtt)
}

/// Returns how certain it is that segments were lost at random: one at a time, and at any interval.
fn randomness(window: &Window<'_>) -> f64 {
    let Some(delta) = window.event_delta() else {
        // Without events, the losses of a policer look the same unless the rate is very steady.
        return match lost_together(window) {
            Some(lost) if lost < TOGETHER_ALONE => NOT_CERTAIN,
            _ => NOT_LIKELY,
        };
    };
    let lost_per_signal = f64::from(window.repeated()) / f64::from(delta.0.signals.max(1));
    let uneven = delta.uneven();
    match uneven.map(|uneven| uneven.deviation > uneven.mean * UNEVEN) {
        Some(true) if lost_per_signal <= TOGETHER => 1.0,
        Some(_) if lost_per_signal <= TOGETHER => NOT_CERTAIN,
        _ => NOT_LIKELY,
    }
}

/// Returns the number of segments that are lost at a time, on average, from the scans alone. The
/// number of times follows from the share of scans without a loss, as if they were independent (the
/// zero class of a Poisson distribution). `None` without losses.
fn lost_together(window: &Window<'_>) -> Option<f64> {
    let pairs = window.infos().zip(window.infos().skip(1));
    let (mut scans, mut quiet) = (0.0, 0.0);
    for (before, after) in pairs {
        scans += 1.0;
        if before.total_retrans == after.total_retrans {
            quiet += 1.0;
        }
    }
    // With losses in each scan, about half of another one would be without.
    let times = -(f64::max(quiet, 0.5) / scans).ln() * scans;
    (times > 0.0).then(|| f64::from(window.repeated()) / times)
}

pub(super) fn loss(window: &Window<'_>, network: f64) -> Option<Finding> {
    let loss = window.loss();
    let (min_rtt, rtt) = round_trips(window)?;
    let has_small_window = has_small_window(window);
    // With events, the round trips at the signals have been judged already.
    let is_long = match window.event_delta() {
        Some(_) => is_queued(window, NO_QUEUE)?,
        None => rtt > min_rtt * NO_QUEUE + MILLISECOND,
    };
    if loss < LOSS_MATTERS || is_long && !has_small_window || is_lost_at_a_queue(window, min_rtt) {
        return None;
    }
    let mss = f64::from(window.last().snd_mss);
    let mathis_bound = mss * MATHIS / (rtt * loss.sqrt());
    let rate = window.busy_rate();
    // Loss does not slow a sender that delivers what its model of the path allows.
    let model = control::model(window);
    if model.is_some_and(|model| rate >= model.bandwidth * NEAR_BANDWIDTH) {
        return None;
    }
    let is_near = rate <= mathis_bound * NEAR_MATHIS;
    let certain = match (is_near, has_small_window) {
        (false, _) => NOT_LIKELY,
        (true, true) => NOT_CERTAIN,
        (true, false) if model.is_some() => 1.0,
        (true, false) => randomness(window),
    };
    let cause = Cause::LossWithoutQueue {
        loss,
        rtt,
        min_rtt,
        has_small_window,
        mathis_bound,
        rate,
        has_bbr: model.is_some(),
    };
    Some(Finding::new(Factor::Loss, network * certain, cause))
}
