//! What does not get through.

use std::time::Duration;

use super::super::units::{percent, rate, seconds, time};
use super::super::{Factor, Finding, Words};
use super::waits::{LINK_QUEUE, round_trips};
use super::{MILLISECOND, NO_QUEUE, NOT_CERTAIN, OFTEN};
use crate::event_delta::EventDelta;
use crate::window::Window;

/// Loss that matters: the share of segments. Below, even Reno has windows of a hundred segments and more.
const LOSS_MATTERS: f64 = 1e-4;
/// The constant of equation 2.2 of the thesis (Mathis et al. 1997), for one acknowledgement every segment.
const MATHIS: f64 = 1.22;
/// A round trip that goes with what is in flight so closely, and varies by this share of its least, is made
/// by a queue: what was lost was lost for want of room there.
const FOLLOWS: f64 = 0.5;
const QUEUE_VARIES: f64 = 0.03;
/// And what is more in flight waits there for this share of the time that it takes at the rate of all.
const OWN_RATE: f64 = 0.6;
/// A rate limiter lets the same through in each part of this length, and a sender that loses at random does not:
/// the deviation of a part from the mean.
const PART: Duration = Duration::from_millis(500);
const STEADY: f64 = 0.1;
/// And what it drops is more than this share.
const LIMITER_DROPS: f64 = 0.005;
/// So much a queue drops only where the path has room for a few segments.
const LIMITER_DROPS_MUCH: f64 = 0.02;
/// A window of fewer segments: each is answered late, as acknowledgements are delayed, and no queue is seen.
const FEW: f64 = 4.0;
/// And of one of fewer the mean round trip says little.
const SMALL: f64 = 10.0;
/// Losses that come at the same rate each time: what was delivered from one to the next is what the mean rate would have
/// delivered, to so many segments for each that is lost at a signal (of several the first is heard of, and the last is meant), and to
/// this share for the time at which that is heard.
const EVEN_SEGMENTS: f64 = 4.0;
/// Of more than so many that are lost at a signal the others are of the same burst.
const TOGETHER_MOST: f64 = 6.0;
const EVEN_SHARE: f64 = 0.01;
/// What is even by that is so by chance if it is more than this share of what was delivered.
const UNEVEN: f64 = 0.3;
/// Pairs of signals that are enough to see that; with fewer it is less than likely,
const ENOUGH: u32 = 4;
/// and so many segments have to be lost at each, on a path without a queue: a bucket that is empty drops several, and at random it
/// is one at a time.
const TOGETHER: f64 = 1.8;
/// The same, of fewer than two.
const TOGETHER_ALONE: f64 = 3.0;
const NOT_LIKELY: f64 = 0.45;
const LIMITER_HELPS: &str = "ask whoever runs the path what rate was agreed; pacing at it (SO_MAX_PACING_RATE, BBR) saves the losses";
/// What is said to fit Mathis' bound is within this factor of it: Cubic does better than Reno, BBR much better.
const NEAR_MATHIS: f64 = 4.0;

/// How often a segment had been sent again and was not answered.
pub(super) fn unanswered(window: &Window<'_>) -> f64 {
    window.often(|info| info.retransmits > 0 || info.backoff > 0)
}

/// The handshake went through, and what is shorter than a segment, and none that is full: a link on the way
/// takes no such packets, and the router that says so is not heard (RFC 2923 2.1).
pub(super) fn black_hole(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let last = window.last();
    let acked = last.bytes_acked?;
    let connection = &window.samples().last()?.connection;
    let waits = connection.send_queue;
    (unanswered(window) > OFTEN && acked < last.snd_mss.into() && waits >= last.snd_mss).then(|| {
        Finding::new(words, Factor::PathMtu, network * NOT_CERTAIN)
            .because(
                || format!(
                    "no segment of {} bytes was ever acknowledged, though the connection was made and {} bytes came",
                    last.snd_mss,
                    last.bytes_received.unwrap_or(0)
                ),
                &[
                    ("CurMSS", last.snd_mss.into()),
                    ("HCThruOctetsAcked", acked as f64),
                ],
            )
            .helps("let ICMP \"fragmentation needed\" through, set the MTU of the tunnel, or net.ipv4.tcp_mtu_probing=1")
    })
}

pub(super) fn timeouts(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let often = unanswered(window);
    let silent = window.last().last_ack_recv.as_secs_f64();
    (often > OFTEN && shrinks(window).is_none()).then(|| {
        Finding::new(words, Factor::Timeouts, network)
            .because(
                || format!("in {} of the looks the same segment had been sent again without an answer", percent(often)),
                &[("CurTimeoutCount_share", often)],
            )
            .because(
                || format!("the last acknowledgement came {} ago", time(silent)),
                &[("since_last_ack", silent)],
            )
            .helps("see whether the peer is there, and what drops packets on the way (firewall, conntrack, route)")
    })
}

fn shrinks(window: &Window<'_>) -> Option<(u32, u32)> {
    let (before, now) = (window.first().snd_mss, window.last().snd_mss);
    (now < before).then_some((before, now))
}

pub(super) fn path_mtu(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let (before, now) = shrinks(window)?;
    let lost = window.more_wrapping(|info| Some(info.total_retrans));
    (lost > 0).then(|| {
        Finding::new(words, Factor::PathMtu, network)
            .because(
                || format!("segments became smaller, from {before} to {now} bytes, after {lost} had to be sent again"),
                &[("CurMSS_before", before.into()), ("CurMSS", now.into())],
            )
            .helps("let ICMP \"fragmentation needed\" through, set the MTU of the tunnel, or net.ipv4.tcp_mtu_probing=1")
    })
}

/// Loss for which no queue is the cause, and that comes when a bucket of tokens is empty, which it is at the same
/// rate each time, and not at random.
pub(super) fn rate_limit(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let lost = window.loss();
    let (least, mean) = round_trips(window)?;
    if lost < LOSS_MATTERS || is_lost_at_a_queue(window, least) {
        return None;
    }
    if let Some(delta) = window.event_delta() {
        return limiter_by_signals(window, &delta, network, words);
    }
    // Of a window of few segments each is answered late, as acknowledgements are delayed, and no queue is seen.
    let waits = mean > least * NO_QUEUE + MILLISECOND && lost < LIMITER_DROPS_MUCH;
    if lost < LIMITER_DROPS || waits {
        return None;
    }
    let rates = window.sent_rates(PART);
    let sent = rates.iter().sum::<f64>() / rates.len() as f64;
    let squares = rates.iter().map(|rate| (rate / sent - 1.0).powi(2));
    let deviation = (squares.sum::<f64>() / rates.len() as f64).sqrt();
    (rates.len() >= 5 && deviation < STEADY).then(|| {
        Finding::new(words, Factor::RateLimit, network * NOT_CERTAIN)
            .because(
                || format!(
                    "{} in each half second, within {}, while {} of the segments were dropped and no queue was there",
                    rate(sent),
                    percent(deviation),
                    percent(lost)
                ),
                &[("rate", sent), ("rate_deviation", deviation), ("loss", lost)],
            )
            .helps(LIMITER_HELPS)
    })
}

fn limiter_by_signals(
    window: &Window<'_>,
    delta: &EventDelta,
    network: f64,
    words: Words,
) -> Option<Finding> {
    let at_signals = delta.round_trip_at_signals()?;
    let signals = f64::from(delta.0.signals);
    let together = f64::from(window.repeated()) / signals;
    let uneven = delta.uneven();
    let is_even = uneven.is_some_and(|uneven| {
        uneven.deviation
            < EVEN_SEGMENTS * together.clamp(1.0, TOGETHER_MOST) + uneven.mean * EVEN_SHARE
            && uneven.deviation < uneven.mean * UNEVEN
    });
    // Few may come at the same rate by chance.
    let windows = delta.windows()?.mean;
    let (is_limiter, certain) = match delta.0.between {
        ENOUGH.. => (
            is_even && (windows < SMALL || !is_queued(window, NO_QUEUE)?),
            // Who sends at one rate, as BBR does, loses evenly whatever it loses by; but at random one at a time.
            match together > TOGETHER {
                true => NOT_CERTAIN,
                false => NOT_LIKELY,
            },
        ),
        few => {
            let least = if few == 0 { TOGETHER_ALONE } else { TOGETHER };
            let is_limiter = (is_even || uneven.is_none())
                && together > least
                && !is_queued(window, LINK_QUEUE)?;
            (is_limiter, NOT_LIKELY)
        }
    };
    if !is_limiter {
        return None;
    }
    let finding = Finding::new(words, Factor::RateLimit, network * certain).because(
        || {
            format!(
                "the congestion window was made smaller {signals} times, and each time {together:.1} segments were dropped, \
                 on the average, after a round trip of {}",
                time(at_signals)
            )
        },
        &[
            ("CongSignals", signals),
            ("lost_per_signal", together),
            ("rtt_at_signals", at_signals),
        ],
    );
    let finding = match uneven {
        None => finding,
        Some(uneven) => {
            let carried = delta.rate() * f64::from(window.last().snd_mss);
            finding.because(
                || {
                    format!(
                        "from one time to the next {:.0} segments were carried on the average, which is {} within {:.1} segments",
                        uneven.mean,
                        rate(carried),
                        uneven.deviation
                    )
                },
                &[
                    ("signal_interval", uneven.mean),
                    ("rate", carried),
                    ("signal_unevenness", uneven.deviation),
                ],
            )
        }
    };
    Some(finding.helps(LIMITER_HELPS))
}

/// Whether segments wait on the way, on the average: a round trip is so many times its least.
fn is_queued(window: &Window<'_>, times: f64) -> Option<bool> {
    let (least, mean) = round_trips(window)?;
    Some(mean > least * times + MILLISECOND)
}

/// Whether what was lost was lost for want of room in a queue: the round trip before it was longer.
fn is_lost_at_a_queue(window: &Window<'_>, least: f64) -> bool {
    let delta = window.event_delta();
    match delta.and_then(|delta| delta.round_trip_at_signals()) {
        Some(_) if is_of_few(window) => false,
        Some(at) => at > least * NO_QUEUE + MILLISECOND,
        None => fills_a_queue(window, least),
    }
}

/// Whether windows are of so few segments, for what is lost of them, that round trips say nothing of queues.
fn is_of_few(window: &Window<'_>) -> bool {
    let windows = window.event_delta().and_then(|delta| delta.windows());
    windows.is_some_and(|windows| windows.mean < FEW && window.loss() > LIMITER_DROPS_MUCH)
}

/// Whether the round trip is longer the more is in flight, by as much as what is more takes at this rate: where the
/// path has room left, a burst waits for itself only, at the rate of the path.
fn fills_a_queue(window: &Window<'_>, least: f64) -> bool {
    let (shortest, longest) = window.range(|info| info.rtt).unwrap_or_default();
    let varies = (longest.saturating_sub(shortest)).as_secs_f64();
    let follows = window.correlation(|info| Some(info.unacked.into()), |info| seconds(info.rtt));
    let longer = window.slope(
        |info| Some(f64::from(info.unacked) * f64::from(info.snd_mss)),
        |info| seconds(info.rtt),
    );
    varies > least * QUEUE_VARIES
        && varies > MILLISECOND
        && follows.is_some_and(|c| c > FOLLOWS)
        && longer.is_some_and(|seconds_a_byte| seconds_a_byte * window.sent_rate() > OWN_RATE)
}

pub(super) fn loss(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let lost = window.loss();
    let (least, mean) = round_trips(window)?;
    let of_few = is_of_few(window);
    let is_long = mean > least * NO_QUEUE + MILLISECOND;
    if lost < LOSS_MATTERS || is_long && !of_few || is_lost_at_a_queue(window, least) {
        return None;
    }
    let mss = f64::from(window.last().snd_mss);
    let bound = mss * MATHIS / (mean * lost.sqrt());
    let sent = window.sent_rate();
    let near = sent <= bound * NEAR_MATHIS;
    let certain = match (near, of_few) {
        (true, false) => 1.0,
        (true, true) => NOT_CERTAIN,
        (false, _) => 0.6,
    };
    let whose = match of_few {
        true => "is of windows of a few segments",
        false => "was that of an empty path",
    };
    Some(
        Finding::new(words, Factor::Loss, network * certain)
            .because(
                || format!(
                    "{} of the segments were lost, while the round trip of {} {whose} ({} at least)",
                    percent(lost),
                    time(mean),
                    time(least)
                ),
                &[("loss", lost), ("SmoothedRTT", mean), ("MinRTT", least)],
            )
            .because(
                || format!(
                    "with that loss Reno reaches {} (Mathis); it sends {}",
                    rate(bound),
                    rate(sent)
                ),
                &[("mathis_bound", bound), ("rate", sent)],
            )
            .helps("repair what loses packets; or BBR, which minds it less; or a relay before the lossy part (taut relay)"),
    )
}
