//! Predicts what a connection would carry without the factor that limits it, and what would limit
//! it next.
//!
//! Each other limit has a rate, from the same samples as the verdict ([`Limit`]). The smallest rate
//! decides. The capacity of the path is the difficult one, because a connection that something else
//! limits does not fill the path. But such a connection sends its window in one piece, the
//! bottleneck spaces the piece out, and the acknowledgements come back at the rate of the
//! bottleneck: a packet train (Dovrolis, Ramanathan and Moore, "Packet-dispersion techniques and a
//! capacity-estimation methodology", 2004). If most trains are about as fast as the fastest, that
//! is the capacity that is left to the connection; otherwise, and if the sender paces, it is a
//! lower bound.
//!
//! Only a sender has a prediction. A receiver knows none of the sender's limits.

use serde::{Deserialize, Serialize};

use super::sending::{control, response};
use super::{Confidence, Context, Factor, LEAST, widest_window};
use crate::window::Window;

/// What a connection would carry if the factor of its verdict were gone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// Payload, in bytes a second.
    pub rate: f64,
    /// The rate is a lower bound, because the capacity of the path is unknown.
    pub is_lower_bound: bool,
    /// The factor that would limit the connection next; `None` if the rate is a lower bound.
    pub next: Option<Factor>,
}

/// The rate that a factor allows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Limit {
    factor: Factor,
    /// Bytes a second.
    rate: f64,
}

/// The rate that the path carries, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Capacity {
    Known(f64),
    AtLeast(f64),
}

/// A prediction is worth a sentence if it exceeds the rate by this factor.
const WORTH: f64 = 1.1;
/// The minimum number of scans with trains that shows a capacity.
const SCANS_LEAST: usize = 5;
/// The quantile of the scans' fastest trains that is the capacity. Fewer are faster, because
/// something bundled their acknowledgements; more are slower, because the sender left gaps.
const CAPACITY: f64 = 0.7;
/// The ninth decile exceeds the capacity by less than this factor if the bottleneck spaces the
/// trains: they have a common ceiling. Otherwise they are as dense as the sender happened to send.
const CEILING: f64 = 1.25;
/// Trains within this share of a steady pacing rate may be spaced by the sender itself. A steady
/// one varies by less than [`STEADY_PACE`].
const NEAR_PACE: f64 = 0.15;
const STEADY_PACE: f64 = 1.5;
/// The share of a send buffer that data in flight takes when a program waits for room, on average.
/// It is above two thirds, because the kernel wakes the program when a third of the buffer is free
/// (`sk_stream_is_writeable()`).
const SENDBUF_USED: f64 = 0.75;
/// The window of the peer has limited the sender at times from this share of the time on.
const WINDOW_USED_UP: f64 = 0.02;
/// The share of the pacing rate that is payload: the rate includes headers (TCP with timestamps,
/// IP, Ethernet).
const PACED_PAYLOAD: f64 = 0.95;

/// Returns what the connection would carry without `factor`. `shares`: the share of the time that
/// each factor accounts for, as in a verdict. `None` if the verdict is not clear, if there is
/// nothing to gain, or if nothing can be said.
pub(super) fn gain(
    window: &Window<'_>,
    context: &Context,
    (factor, confidence): (Factor, Confidence),
    shares: &[(Factor, f64)],
) -> Option<Gain> {
    let is_gain = matches!(
        factor,
        Factor::SenderApplication
            | Factor::SendBuffer
            | Factor::ReceiverApplication
            | Factor::ReceiveBuffer
            | Factor::SlowStart
            | Factor::Loss
            | Factor::Pacing
            | Factor::RateLimit
            | Factor::CpuQuota
    );
    if !is_gain || confidence == Confidence::Unclear || super::sends(window) != Some(true) {
        return None;
    }
    let rate = window.sent_rate();
    let share = |of: Factor| {
        let found = shares.iter().find(|(factor, _)| *factor == of);
        found.map_or(0.0, |(_, share)| *share)
    };
    let limits = [
        quota_removed(window, context, factor),
        send_buffer(window, context),
        receive_window(window, factor),
        loss(window, factor),
        pacing(window),
    ];
    let limits = limits.into_iter().flatten();
    let least = limits
        .filter(|limit| limit.factor != factor || limit.factor == Factor::ReceiveBuffer)
        .min_by(|a, b| a.rate.total_cmp(&b.rate));
    let (rest, next) = match (least, capacity(window)?) {
        (Some(limit), Capacity::Known(path) | Capacity::AtLeast(path)) if limit.rate <= path => {
            (limit.rate, Some(limit.factor))
        }
        (_, Capacity::Known(path)) => (path, Some(Factor::Link)),
        (_, Capacity::AtLeast(path)) => (path, None),
    };
    // The application's pauses remain (Amdahl's law): each byte takes its share of the pauses, and
    // the time at the rate of the next limit.
    let paused = match factor {
        Factor::SenderApplication | Factor::CpuQuota => 0.0,
        _ => share(Factor::SenderApplication) + share(Factor::CpuQuota),
    };
    let paused = if paused > LEAST { paused / rate } else { 0.0 };
    let without = 1.0 / (paused + 1.0 / rest);
    let next = match next {
        Some(_) if paused > 1.0 / rest => Some(Factor::SenderApplication),
        next => next,
    };
    (without.is_finite() && without > rate * WORTH).then_some(Gain {
        rate: without,
        is_lower_bound: next.is_none(),
        next,
    })
}

/// The capacity of the path: of its bottleneck, or what cross traffic leaves of it.
fn capacity(window: &Window<'_>) -> Option<Capacity> {
    let delivered = window.range(|info| info.delivery_rate);
    let delivered = delivered.map_or(0.0, |(_, most)| most as f64);
    let mut trains = window.train_rates();
    trains.sort_by(f64::total_cmp);
    let quantile = |share: f64| {
        let last = trains.len().checked_sub(1)?;
        trains.get((last as f64 * share).round() as usize).copied()
    };
    let (Some(middle), Some(most), Some(fastest)) =
        (quantile(0.5), quantile(CAPACITY), quantile(0.9))
    else {
        return (delivered > 0.0).then_some(Capacity::AtLeast(delivered));
    };
    let has_ceiling = trains.len() >= SCANS_LEAST && fastest <= most * CEILING;
    if has_ceiling && !is_paced(window, most) {
        return Some(Capacity::Known(most));
    }
    Some(Capacity::AtLeast(middle.max(delivered)))
}

/// Whether the sender itself may have spaced trains of this rate.
fn is_paced(window: &Window<'_>, rate: f64) -> bool {
    if control::is_model_based(window) || control::paced_rate(window).is_some() {
        return true;
    }
    let is_limited = window.last().max_pacing_rate.is_some();
    let paces = window.range(|info| info.pacing_rate);
    let is_near = paces.is_some_and(|(least, most)| {
        let (least, most) = (least as f64, most as f64);
        let is_steady = most < least * STEADY_PACE;
        is_steady && rate > least * (1.0 - NEAR_PACE) && rate < most * (1.0 + NEAR_PACE)
    });
    is_limited || is_near
}

/// The application without its quota: its rate while it ran.
fn quota_removed(window: &Window<'_>, context: &Context, factor: Factor) -> Option<Limit> {
    let quota = context.cpu_quota.as_ref()?;
    let ran = 1.0 - quota.stopped;
    (factor == Factor::CpuQuota && ran > 0.0).then(|| Limit {
        factor: Factor::SenderApplication,
        rate: window.sent_rate() / ran,
    })
}

/// A buffer of data in flight for each round trip. The kernel grows a buffer whose size the
/// application has not fixed up to the third value of `net.ipv4.tcp_wmem`.
fn send_buffer(window: &Window<'_>, context: &Context) -> Option<Limit> {
    let connection = window.samples().last()?.connection;
    let memory = connection.memory?;
    let is_fixed = connection
        .internals
        .is_some_and(|internals| internals.sndbuf_locked);
    let size = match (is_fixed, context.settings.wmem_max) {
        (true, _) => u64::from(memory.sndbuf),
        (false, most) => most?.max(memory.sndbuf.into()),
    };
    let rtt = window.mean_seconds(|info| info.rtt)?;
    Some(Limit {
        factor: Factor::SendBuffer,
        rate: size as f64 * payload_share(window) * SENDBUF_USED / rtt,
    })
}

/// The share of the send buffer's memory that is payload.
fn payload_share(window: &Window<'_>) -> f64 {
    let (mut payload, mut taken) = (0.0, 0.0);
    for sample in window.samples() {
        if let Some(memory) = sample.connection.memory {
            payload += f64::from(sample.connection.send_queue);
            taken += f64::from(memory.wmem_queued);
        }
    }
    match taken > 0.0 {
        true => (payload / taken).clamp(0.1, 1.0),
        false => 0.5,
    }
}

/// A window of the peer for each round trip. The peer's kernel widens a window that is used, as far
/// as the connection's window scale allows (RFC 7323 2.3), so a narrower one counts only if it has
/// already held the sender back.
fn receive_window(window: &Window<'_>, factor: Factor) -> Option<Limit> {
    let rtt = window.mean_seconds(|info| info.rtt)?;
    let scaled = widest_window(window.last().window_scales.map(|(peers, _)| peers));
    let now = window.range(|info| info.snd_wnd).map(|(_, widest)| widest);
    let has_limited = window
        .shares()
        .is_some_and(|shares| shares.receiver > WINDOW_USED_UP);
    let is_other = !matches!(factor, Factor::ReceiveBuffer | Factor::ReceiverApplication);
    let widest = match now {
        Some(now) if has_limited && is_other => now.into(),
        // A new connection has another window scale.
        Some(now)
            if factor == Factor::ReceiveBuffer && f64::from(now) >= scaled * super::NEAR_SCALE =>
        {
            return None;
        }
        _ => scaled,
    };
    Some(Limit {
        factor: Factor::ReceiveBuffer,
        rate: widest / rtt,
    })
}

/// The rate at which the congestion control replaces what losses take, at the measured loss.
fn loss(window: &Window<'_>, factor: Factor) -> Option<Limit> {
    let is_cause = matches!(factor, Factor::Loss | Factor::RateLimit);
    let rate = (!is_cause).then(|| response::rate(window))??;
    Some(Limit {
        factor: Factor::Loss,
        rate,
    })
}

fn pacing(window: &Window<'_>) -> Option<Limit> {
    let most = window.last().max_pacing_rate? as f64;
    Some(Limit {
        factor: Factor::Pacing,
        rate: most * PACED_PAYLOAD,
    })
}
