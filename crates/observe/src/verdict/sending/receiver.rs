//! Rules about the peer's window and the application that reads at the peer.

use super::super::{Cause, Factor, Finding, LIKELY, LIKELY_MOST, NEAR_SCALE, widest_window};
use super::control;
use super::measures::{
    DELAYED_SECONDS, MANY, NOT_CERTAIN, UNREAD_LITTLE, is_answered_in_bursts, owes_answers,
    own_round_trips,
};
use crate::window::{Shares, Window};

/// The minimum share of the time in which the window of a slow reader is filling; other windows
/// fill for less.
const FILLED: f64 = 0.15;
/// A window that is also full for more than this share of the time is drained at the reader's rate.
const USED_UP: f64 = 0.02;
/// A queue spaces acknowledgements evenly, so the last one is half a gap old at a sample, on
/// average. If it is this many gaps old, acknowledgements come in bursts.
const BURSTS: f64 = 2.0;
/// The minimum mean delay that counts as late, in seconds. A sender that fills no queue also
/// receives acknowledgements in bursts, but on time.
const LATE_SECONDS: f64 = 0.01;
/// The application reads slowly if the window falls below this share of its widest.
const WINDOW_FALLS: f64 = 0.7;
/// If the widest window that the peer ever offered is known, a single fall counts only below this
/// share: a buffer holds more or less data as the overhead of its segments changes.
const WINDOW_CLOSES: f64 = 0.35;
/// The window limits a sender that uses this share of it in each round trip.
const WINDOW_USED: f64 = 0.7;
/// The maximum mean share of the peer's buffer that holds unread data if its application keeps up.
const UNREAD: f64 = 1.0 - WINDOW_FALLS;

/// Explains the time in which the peer's window was full: the peer's buffer is small, or its
/// application does not read. `paced`: the result of [`paced_by_window`].
pub(super) fn window(window: &Window<'_>, shares: Shares, paced: f64) -> Finding {
    let limited = shares.receiver + paced;
    let range = window.range(|info| info.snd_wnd);
    let probes = window.range(|info| Some(info.probes)).unwrap_or_default().1;
    // A window smaller than a segment is closed, even if it never changes.
    let is_closed = range.is_some_and(|(least, _)| least < window.last().snd_mss);
    // A small buffer and a reader that keeps its buffer full both make the window steady. Only the
    // widest window that the peer ever offered tells them apart.
    let is_known = window.samples().last().is_some_and(|sample| {
        let internals = sample.connection.internals;
        internals.is_some_and(|internals| internals.max_window > 0)
    });
    let is_unread = window.unread_share().is_some_and(|share| share > UNREAD);
    let falls_to = if is_known {
        WINDOW_CLOSES
    } else {
        WINDOW_FALLS
    };
    if fell(window, falls_to) || is_unread || probes > 0 || is_closed {
        return application(window, shares, paced);
    }
    let widest = range.map_or(0.0, |(_, widest)| f64::from(widest));
    let scale = window.last().window_scales.map(|(peers, _)| peers);
    let bound = widest_window(scale);
    let cause = Cause::PeerWindowSmall {
        limited,
        window: widest,
        has_scaling: scale.is_some(),
        scale_bound: (widest >= bound * NEAR_SCALE).then_some(bound),
    };
    let is_certain = is_known && !owes_answers(window);
    let at_most = if is_certain { 1.0 } else { LIKELY_MOST };
    Finding::new(Factor::ReceiveBuffer, limited.min(at_most), cause)
}

/// Whether the window was filling for much of the time and was full at times, so that the mean rate
/// is the reader's.
pub(super) fn is_filled(window: &Window<'_>, shares: Shares) -> bool {
    shares.receiver > USED_UP && window.filled() > FILLED
}

/// Whether the window was on average far below the widest that the peer ever offered, and used up
/// at times: a reader that reads in parts leaves a part of its buffer full. So does a descheduled
/// peer.
pub(super) fn is_unread(window: &Window<'_>, shares: Shares) -> bool {
    let is_narrow = || window.unread_share().is_some_and(|share| share > UNREAD);
    shares.receiver > USED_UP && is_narrow()
}

/// Returns the share of the time in which the peer's window limits a sender that paces at the
/// bandwidth that it has measured: all of `network`, or nothing. Such a sender never fills the
/// window, because it measures as bandwidth what the window lets through.
pub(super) fn paced_by_window(window: &Window<'_>, shares: Shares, network: f64) -> f64 {
    let carried = || {
        let in_flight = window.busy_rate() * window.mean_seconds(|info| info.rtt)?;
        let offered = window.mean(|info| info.snd_wnd.map(f64::from))?;
        Some(in_flight >= offered * WINDOW_USED)
    };
    let limits = shares.receiver > USED_UP
        && control::is_model_based(window)
        && carried().unwrap_or_default();
    if limits { network } else { 0.0 }
}

/// Attributes a likely share of the network's time to the reader. While the window fills, the
/// network limits the sender, but a faster network would only fill the window sooner.
pub(super) fn application(window: &Window<'_>, shares: Shares, network: f64) -> Finding {
    let (narrowest, widest) = window.range(|info| info.snd_wnd).unwrap_or_default();
    // The verdict is sure only if the kernel's own accounting supports it, and if the peer cannot
    // be a machine that does not run.
    let at_most = match shares.receiver >= LIKELY && !owes_answers(window) {
        true => 1.0,
        false => LIKELY_MOST,
    };
    let weight = (shares.receiver + network * NOT_CERTAIN).min(at_most);
    let cause = Cause::PeerReadsSlowly {
        limited: shares.receiver,
        filling: window.filled(),
        narrowest: narrowest.into(),
        widest: widest.into(),
    };
    Finding::new(Factor::ReceiverApplication, weight, cause)
}

/// Detects a late reader by its acknowledgements. A peer acknowledges data at once when its
/// application has read it, and delays the acknowledgement of unread data (`__tcp_ack_snd_check()`:
/// when the window would not grow). So a late reader lengthens round trips and causes bursts of
/// acknowledgements long before its buffer is full. A descheduled peer is silent for longer, or
/// until the sender has used up its window.
pub(super) fn acknowledges_late(
    window: &Window<'_>,
    shares: Shares,
    network: f64,
) -> Option<Finding> {
    // The cheapest first: most connections have less in flight.
    if window.mean(|info| Some(info.unacked.into()))? < MANY {
        return None;
    }
    let (min_rtt, rtt) = own_round_trips(window)?;
    // Without events the longest round trip is unknown: samples contain only the smoothed one.
    let max_rtt = window.longest_rtt()?.as_secs_f64();
    let unread = window.unread_share()?;
    let since_last_ack = window.mean_since_last_ack(|_| true)?;
    (shares.receiver <= USED_UP
        && unread > UNREAD_LITTLE
        && is_answered_in_bursts(window, BURSTS)
        && rtt > min_rtt + LATE_SECONDS
        && max_rtt < min_rtt + DELAYED_SECONDS)
        .then(|| {
            let cause = Cause::PeerAcknowledgesLate {
                since_last_ack,
                rtt,
                min_rtt,
                max_rtt,
                delay_bound: DELAYED_SECONDS,
            };
            Finding::new(Factor::ReceiverApplication, network * NOT_CERTAIN, cause)
        })
}

/// Whether the peer's window ever shrank below this share of its earlier size.
fn fell(window: &Window<'_>, share: f64) -> bool {
    let mut widest = 0.0;
    window
        .infos()
        .filter_map(|info| info.snd_wnd)
        .any(|snd_wnd| {
            widest = f64::max(widest, snd_wnd.into());
            f64::from(snd_wnd) < widest * share
        })
}
