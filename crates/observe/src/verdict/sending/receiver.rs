//! Rules about the peer's window and the application that reads at the peer.

use super::super::{Cause, Factor, Finding, LIKELY, LIKELY_MOST};
use super::measures::{MANY, NOT_CERTAIN, is_answered_in_bursts, round_trips};
use crate::window::{Shares, Window};

/// The minimum share of the time in which the window of a slow reader is filling; other windows
/// fill for less.
const FILLED: f64 = 0.15;
/// A window that is also full for more than this share of the time is drained at the reader's rate.
const USED_UP: f64 = 0.02;
/// The longest delay of an acknowledgement, in seconds: Linux's `TCP_DELACK_MIN` of 40 ms, a tick
/// of a 100 Hz clock, and the length of the burst that it answers.
const DELAYED_SECONDS: f64 = 0.065;
/// A queue spaces acknowledgements evenly, so the last one is half a gap old at a sample, on
/// average. If it is this many gaps old, acknowledgements come in bursts.
const BURSTS: f64 = 2.0;
/// The minimum mean delay that counts as late, in seconds. A sender that fills no queue also
/// receives acknowledgements in bursts, but on time.
const LATE_SECONDS: f64 = 0.01;
/// The application reads slowly if the window falls below this share of its widest.
const WINDOW_FALLS: f64 = 0.7;

/// Explains the time in which the peer's window was full: the peer's buffer is small, or its
/// application does not read.
pub(super) fn window(window: &Window<'_>, shares: Shares) -> Finding {
    let range = window.range(|info| info.snd_wnd);
    let probes = window.range(|info| Some(info.probes)).unwrap_or_default().1;
    // A window smaller than a segment is closed, even if it never changes.
    let is_closed = range.is_some_and(|(least, _)| least < window.last().snd_mss);
    if fell(window) || probes > 0 || is_closed {
        return application(window, shares, 0.0);
    }
    let cause = Cause::PeerWindowSmall {
        limited: shares.receiver,
        window: range.map_or(0.0, |(_, widest)| widest.into()),
        has_scaling: window.last().window_scales.is_some(),
    };
    Finding::new(Factor::ReceiveBuffer, shares.receiver, cause)
}

/// Whether the window was filling for much of the time and was full at times, so that the mean rate
/// is the reader's.
pub(super) fn is_filled(window: &Window<'_>, shares: Shares) -> bool {
    shares.receiver > USED_UP && window.filled() > FILLED
}

/// Attributes a likely share of the network's time to the reader. While the window fills, the
/// network limits the sender, but a faster network would only fill the window sooner.
pub(super) fn application(window: &Window<'_>, shares: Shares, network: f64) -> Finding {
    let (narrowest, widest) = window.range(|info| info.snd_wnd).unwrap_or_default();
    // The verdict is sure only if the kernel's own accounting supports it.
    let at_most = match shares.receiver >= LIKELY {
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
/// acknowledgements long before its buffer is full. A descheduled peer is silent for longer.
pub(super) fn acknowledges_late(window: &Window<'_>, network: f64) -> Option<Finding> {
    let (min_rtt, rtt) = round_trips(window)?;
    // Without events the longest round trip is unknown: samples contain only the smoothed one.
    let delta = window.event_delta().filter(|delta| delta.0.rtts > 0)?;
    let max_rtt = delta.0.rtt_most.as_secs_f64();
    let in_flight = window.mean(|info| Some(info.unacked.into()))?;
    let since_last_ack = window.mean_seconds(|info| Some(info.last_ack_recv))?;
    (in_flight >= MANY
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

/// Whether the peer's window ever shrank far below its earlier size.
fn fell(window: &Window<'_>) -> bool {
    let mut widest = 0.0;
    window
        .infos()
        .filter_map(|info| info.snd_wnd)
        .any(|snd_wnd| {
            widest = f64::max(widest, snd_wnd.into());
            f64::from(snd_wnd) < widest * WINDOW_FALLS
        })
}
