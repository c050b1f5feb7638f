//! The peer's window, and who reads there.

use super::super::units::{bytes, percent, time};
use super::super::{Factor, Finding, LIKELY, LIKELY_MOST, Words};
use super::NOT_CERTAIN;
use super::waits::{MANY, is_answered_in_bursts, round_trips};
use crate::window::{Shares, Window};

/// The share of the time for which the window of a reader that does not keep up is being filled; of others it is for less.
const FILLED: f64 = 0.15;
/// And for which it is used up: then it is the reader's rate at which it is filled again.
const USED_UP: f64 = 0.02;
/// How long an acknowledgement is delayed (Linux: `TCP_DELACK_MIN`, 40 ms), a tick of a clock of 100 Hz, and what the burst that it
/// answers took.
const DELAYED_SECONDS: f64 = 0.065;
/// From a queue one comes half of what lies between two after the look before, on the average.
const BURSTS: f64 = 2.0;
/// On the average it is so much at least; in bursts, but in time, acknowledgements also come to who fills no queue.
const LATE_SECONDS: f64 = 0.01;

/// A window that falls below this share of the widest that it was is one that a reader has left to fill.
const WINDOW_FALLS: f64 = 0.7;

pub(super) fn window(window: &Window<'_>, shares: Shares, words: Words) -> Finding {
    let share = shares.receiver;
    let held = || {
        let held = percent(share);
        format!("for {held} of the time the peer's window was full")
    };
    let figures = [("SndLimTimeRwin_share", share)];
    let range = window.range(|info| info.snd_wnd);
    let most = range.map_or(0, |(_, most)| most);
    let probes = window.range(|info| Some(info.probes)).unwrap_or_default().1;
    // A window of less than a segment is a closed one, also when it stands.
    let is_closed = range.is_some_and(|(least, _)| least < window.last().snd_mss);
    if fell(window) || probes > 0 || is_closed {
        return application(window, shares, 0.0, words);
    }
    let finding = Finding::new(words, Factor::ReceiveBuffer, share)
        .because(held, &figures)
        .because(
            || format!("it stands at {}, and does not fall", bytes(most.into())),
            &[("CurRwinRcvd", most.into())],
        );
    match window.last().window_scales {
        None => finding.helps("the peer uses no window scaling, so that 64 KiB is all that it can offer"),
        Some(_) => finding.helps(
            "at the peer: a larger receive buffer; its application may set SO_RCVBUF, or net.ipv4.tcp_rmem may be small",
        ),
    }
}

/// Whether the window was filled for much of the time, and used up: over some time no more goes through than is read.
pub(super) fn is_filled(window: &Window<'_>, shares: Shares) -> bool {
    shares.receiver > USED_UP && window.filled() > FILLED
}

/// Of the time that is left to the network as much as is likely: while the window fills it is the network that
/// limits, and what is gained by that is lost when the window is full.
pub(super) fn application(
    window: &Window<'_>,
    shares: Shares,
    network: f64,
    words: Words,
) -> Finding {
    let (least, most) = window.range(|info| info.snd_wnd).unwrap_or_default();
    let filled = window.filled();
    // The kernel's own account makes it sure, and what is concluded beside that does not.
    let at_most = match shares.receiver >= LIKELY {
        true => 1.0,
        false => LIKELY_MOST,
    };
    let weight = (shares.receiver + network * NOT_CERTAIN).min(at_most);
    Finding::new(words, Factor::ReceiverApplication, weight)
        .because(
            || {
                format!(
                    "for {} of the time the peer's window was full, and for {} it was being filled",
                    percent(shares.receiver),
                    percent(filled)
                )
            },
            &[
                ("SndLimTimeRwin_share", shares.receiver),
                ("filled_share", filled),
            ],
        )
        .because(
            || {
                format!(
                    "the window went between {} and {}: what is sent waits to be read",
                    bytes(least.into()),
                    bytes(most.into())
                )
            },
            &[
                ("CurRwinRcvd_least", least.into()),
                ("CurRwinRcvd_most", most.into()),
            ],
        )
        .helps("nothing in TCP: the application at the peer reads slowly")
}

/// A peer acknowledges at once what its application has read, and what it has not after a delay (`__tcp_ack_snd_check()`: when
/// the window would not grow). So a reader that is late makes round trips longer, and acknowledgements come together, long
/// before its buffer is full. Who is kept from a CPU is silent for longer.
pub(super) fn acknowledges_late(
    window: &Window<'_>,
    network: f64,
    words: Words,
) -> Option<Finding> {
    let (least, mean) = round_trips(window)?;
    // Without events nobody knows the longest: what looks see is smoothed.
    let delta = window.event_delta().filter(|delta| delta.0.rtts > 0)?;
    let longest = delta.0.rtt_most.as_secs_f64();
    let in_flight = window.mean(|info| Some(info.unacked.into()))?;
    let silent = window.mean(|info| Some(info.last_ack_recv.as_secs_f64()))?;
    (in_flight >= MANY
        && is_answered_in_bursts(window, BURSTS)
        && mean > least + LATE_SECONDS
        && longest < least + DELAYED_SECONDS)
        .then(|| {
            Finding::new(words, Factor::ReceiverApplication, network * NOT_CERTAIN)
                .because(
                    || {
                        format!(
                            "acknowledgements come together, the last {} before a look on the average, and the round trip is {}, {} at \
                             least and never {} more: they are delayed, as of what the application has not read",
                            time(silent),
                            time(mean),
                            time(least),
                            time(DELAYED_SECONDS)
                        )
                    },
                    &[
                        ("since_last_ack", silent),
                        ("SmoothedRTT", mean),
                        ("MinRTT", least),
                        ("MaxRTT", longest),
                    ],
                )
                .helps("at the peer: its application reads slowly, or in large parts that are far apart")
        })
}

/// Whether the peer's window was once much narrower than it had been.
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
