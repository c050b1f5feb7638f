//! Rules about the peer's window and the application that reads there.

use super::super::{Cause, Factor, Finding, LIKELY, LIKELY_MOST};
use super::measures::{MANY, NOT_CERTAIN, is_answered_in_bursts, round_trips};
use crate::window::{Shares, Window};

/// The window of a reader that does not keep up is filling for at least this share of the time; other windows fill for less.
const FILLED: f64 = 0.15;
/// A window that is also used up for this share of the time fills at the reader's rate.
const USED_UP: f64 = 0.02;
/// The longest delay of an acknowledgement, in seconds: Linux's `TCP_DELACK_MIN` of 40 ms, a tick of a 100 Hz clock, and the
/// length of the burst that it answers.
const DELAYED_SECONDS: f64 = 0.065;
/// A queue spaces acknowledgements evenly: at a sample the last is half a gap old, on average. If it is this many gaps old,
/// they come in bursts.
const BURSTS: f64 = 2.0;
/// The least mean delay that counts as late, in seconds. A sender that fills no queue also gets acknowledgements in bursts,
/// but on time.
const LATE_SECONDS: f64 = 0.01;
/// The reader left the window to fill if it falls below this share of its widest.
const WINDOW_FALLS: f64 = 0.7;

/// Explains the time in which the peer's window was full: its buffer is small, or its application does not read.
pub(super) fn window(window: &Window<'_>, shares: Shares) -> Finding {
    let range = window.range(|info| info.snd_wnd);
    let probes = window.range(|info| Some(info.probes)).unwrap_or_default().1;
    // A window of less than a segment is closed, also when it does not change.
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

/// Whether the window was filling for much of the time, and used up: then the mean rate is the reader's.
pub(super) fn is_filled(window: &Window<'_>, shares: Shares) -> bool {
    shares.receiver > USED_UP && window.filled() > FILLED
}

/// Takes a likely share of the time left to the network: while the window fills the network limits, and what is gained by
/// that is lost when the window is full.
pub(super) fn application(window: &Window<'_>, shares: Shares, network: f64) -> Finding {
    let (narrowest, widest) = window.range(|info| info.snd_wnd).unwrap_or_default();
    // Only the kernel's own account makes the verdict sure.
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

/// Recognises a late reader by its acknowledgements. A peer acknowledges at once what its application has read, and delays the
/// acknowledgement of unread data (`__tcp_ack_snd_check()`: when the window would not grow). So a late reader makes round
/// trips longer, and acknowledgements come in bursts, long before its buffer is full. A descheduled peer is silent for
/// longer.
pub(super) fn acknowledges_late(window: &Window<'_>, network: f64) -> Option<Finding> {
    let (min_rtt, rtt) = round_trips(window)?;
    // Without events the longest round trip is unknown: the samples have a smoothed one.
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

/// Whether the peer's window was once much narrower than before.
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
