//! How long round trips are, and what makes them so.

use taut_sys::tcp_info::TcpInfo;

use super::super::units::{percent, rate, seconds, time};
use super::super::{Context, Factor, Finding, Words};
use super::OFTEN;
use super::lost::unanswered;
use crate::window::Window;

/// The congestion window grows by this much at least within a window that is called slow start.
const GROWS: f64 = 1.3;
/// A path that is full has a queue, however short: the round trip is so many times its least, or so many seconds longer
/// (CoDel lets 5 ms stand).
pub(super) const LINK_QUEUE: f64 = 1.1;
const LINK_QUEUE_SECONDS: f64 = 0.004;
/// And one that is longer by this and by [`LONG_QUEUE_SECONDS`] has a long one.
const LONG_QUEUE: f64 = 2.0;
/// What a person on a call notices, in seconds.
const LONG_QUEUE_SECONDS: f64 = 0.03;
/// As near as a rate comes to the one that it is paced at, headers being counted there and not here.
const NEAR_PACE: f64 = 0.85;
/// Of the congestion window this share is in flight when it is the window that limits.
const IN_FLIGHT: f64 = 0.7;
/// A round trip that is this many times its least, and this much longer in seconds, is not one of an empty path;
const WAITS: f64 = 2.0;
const WAITS_SECONDS: f64 = 0.002;
/// and if it deviates by this share of itself, whoever answers is there at one time and away at another. A queue
/// is long for many round trips on end.
const DEVIATES: f64 = 0.3;
/// The same is so if no acknowledgement has come for so long, in seconds and in times of what lies between two of
/// them on the average,
const SILENT_SECONDS: f64 = 0.01;
const SILENT: f64 = 5.0;
/// and so many segments are in flight: of a few each is answered late, as acknowledgements are delayed.
pub(super) const MANY: f64 = 8.0;
/// Of a machine's CPUs: what a neighbour takes now and then is less.
const STOLEN: f64 = 0.05;

pub(super) fn pacing(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let most = window.last().max_pacing_rate? as f64;
    let sent = window.sent_rate();
    (sent >= most * NEAR_PACE).then(|| {
        Finding::new(words, Factor::Pacing, network)
            .because(
                || format!("it sends {}, and may send {}", rate(sent), rate(most)),
                &[("rate", sent), ("max_pacing_rate", most)],
            )
            .helps("the application, or its manager, sets SO_MAX_PACING_RATE")
    })
}

pub(super) fn slow_start(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let in_it = |info: &TcpInfo| {
        info.snd_ssthresh
            .is_none_or(|ssthresh| info.snd_cwnd < ssthresh)
    };
    let often = window.often(in_it);
    let (first, last) = (window.first().snd_cwnd, window.last().snd_cwnd);
    let lost = window.more_wrapping(|info| Some(info.total_retrans));
    let grew = f64::from(last) >= f64::from(first) * GROWS;
    (often > OFTEN && grew && lost == 0).then(|| {
        let rtt = window.mean(|info| seconds(info.rtt)).unwrap_or_default();
        Finding::new(words, Factor::SlowStart, network * often)
            .because(
                || format!("the congestion window grew from {first} to {last} segments, and nothing was lost"),
                &[("CurCwnd_first", first.into()), ("CurCwnd_last", last.into())],
            )
            .because(
                || format!("each step takes a round trip of {}", time(rtt)),
                &[("SmoothedRTT", rtt)],
            )
            .helps("keep connections open, or put a relay on the way (taut relay)")
    })
}

/// How long a round trip is without a queue, and on the average.
pub(super) fn round_trips(window: &Window<'_>) -> Option<(f64, f64)> {
    let least = window.range(|info| info.min_rtt)?.0.as_secs_f64();
    let mean = window.mean(|info| seconds(info.rtt))?;
    (least > 0.0).then_some((least, mean))
}

/// A round trip that is now that of an empty path, and now much longer.
pub(super) fn descheduled(
    window: &Window<'_>,
    weight: f64,
    context: &Context,
    words: Words,
) -> Option<Finding> {
    let (least, mean) = round_trips(window)?;
    let deviates = window.mean(|info| seconds(info.rttvar))?;
    let waits = mean > least * WAITS && mean > least + WAITS_SECONDS;
    let in_flight = window.mean(|info| Some(info.unacked.into()))?;
    let comes_and_goes = deviates > mean * DEVIATES || is_answered_in_bursts(window, SILENT);
    (waits && in_flight >= MANY && comes_and_goes && unanswered(window) < OFTEN).then(|| {
        Finding::new(words, Factor::Descheduled, weight)
            .because(
                || format!(
                    "the round trip is {} at times, {} on the average, and deviates from that by {}: a queue would be steadier",
                    time(least),
                    time(mean),
                    time(deviates)
                ),
                &[("MinRTT", least), ("SmoothedRTT", mean), ("RTTVar", deviates)],
            )
    })
    .map(|finding| match context.steal {
        Some(steal) if steal > STOLEN => finding
            .because(
                || format!("from this machine {} of its CPUs' time was taken", percent(steal)),
                &[("steal", steal)],
            )
            .helps("a larger share of CPU for this machine; on it, if it is the sender: taut guest"),
        _ => finding.helps(
            "on the host of the guest that receives: taut snoop; or a larger share of CPU for whoever waits for it",
        ),
    })
}

/// Whether acknowledgements come together, and none for so many times what would lie between two: from a queue they
/// come one by one.
pub(super) fn is_answered_in_bursts(window: &Window<'_>, times: f64) -> bool {
    // Where nothing is on its way nothing is to be answered.
    let silent = window.mean(|info| (info.unacked > 0).then_some(info.last_ack_recv.as_secs_f64()));
    // Between two of a receiver that acknowledges every second segment.
    let apart = 2.0 * f64::from(window.last().snd_mss) / window.sent_rate();
    silent.is_some_and(|silent| silent > SILENT_SECONDS && silent > apart * times)
}

pub(super) fn queue(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let (least, mean) = round_trips(window)?;
    (mean > least * LONG_QUEUE && mean > least + LONG_QUEUE_SECONDS).then(|| {
        Finding::new(words, Factor::Queue, network)
            .because(
                || format!("the round trip is {}, and {} without a queue", time(mean), time(least)),
                &[("SmoothedRTT", mean), ("MinRTT", least)],
            )
            .because(
                || format!("it sends {} into it", rate(window.sent_rate())),
                &[("rate", window.sent_rate())],
            )
            .helps("a short queue where it stands (fq_codel, CAKE), or BBR at this end; the rate will be the same")
    })
}

pub(super) fn link(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let (least, mean) = round_trips(window)?;
    let full = window.often(|info| f64::from(info.unacked) >= f64::from(info.snd_cwnd) * IN_FLIGHT);
    // Where no queue is seen there is room, and the congestion window may only not have grown into it yet.
    (mean > least * LINK_QUEUE || mean > least + LINK_QUEUE_SECONDS).then(|| {
        Finding::new(words, Factor::Link, network * full).because(
            || {
                format!(
                    "it sends {} steadily; the round trip of {} is not far from the least, {}",
                    rate(window.sent_rate()),
                    time(mean),
                    time(least)
                )
            },
            &[
                ("rate", window.sent_rate()),
                ("SmoothedRTT", mean),
                ("MinRTT", least),
            ],
        )
    })
}
