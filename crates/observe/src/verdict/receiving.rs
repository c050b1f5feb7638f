//! Rules for the receiving end. That end sees its own window and its own application, but none of
//! the sender's other limits.

use taut_sys::sock_diag::{Connection, State};

use super::{Cause, Context, Factor, Finding, LIKELY_MOST, NEAR_SCALE, Sizing, widest_window};
use crate::window::{SampleRef, Window, receiver_rtt};

/// A receive buffer counts as nearly full above this share, overhead included: the window cannot
/// fill much more of it.
const FULL: f64 = 0.4;
/// A buffer that is full for less than this share of the time may be so for another reason: its
/// reader paused, or data was missing.
const OFTEN_FULL: f64 = 0.15;
/// A sender that uses this share of the window in each round trip is limited by the window.
const WINDOW_USED: f64 = 0.7;
/// Data that waits this long to be read, in seconds, is acknowledged late. Fewer than
/// [`LATE_BYTES`] may be part of a message whose rest is still missing (a TLS record, or a block
/// that a program asked for).
const LATE_SECONDS: f64 = 0.008;
const LATE_BYTES: f64 = 8192.0;
/// The weight of late acknowledgements. Below `sure`, because this end does not see the round trips
/// that late acknowledgements lengthen.
const NOT_CERTAIN: f64 = 0.7;

pub(super) fn findings(window: &Window<'_>, context: &Context) -> Vec<Finding> {
    let full = full(window);
    let mut findings = Vec::new();
    let mut read_late = 0.0;
    if full > 0.0 {
        let weight = match fills_again(window, full) {
            true => full + (1.0 - full) * NOT_CERTAIN,
            false => full,
        };
        // Nothing shows what limits the sender while the buffer has room.
        let at_most = f64::max(full, LIKELY_MOST);
        read_late = weight.min(at_most);
        findings.push(application(window, full, read_late));
    }
    let used = used(window);
    if let Some(used) = used {
        findings.push(buffer(window, context, used * (1.0 - read_late)));
    }
    if full == 0.0
        && used.is_none()
        && let Some(late) = late(window)
    {
        findings.push(late);
    }
    let rest = 1.0 - findings.iter().map(|finding| finding.weight).sum::<f64>();
    // The other end is only inferred by elimination, so this finding is never sure.
    let cause = Cause::NotHere {
        rate: window.received_rate(),
    };
    findings.push(Finding::new(Factor::Peer, rest.min(LIKELY_MOST), cause));
    findings
}

/// Detects unread data while no data is sent or received.
pub(super) fn unread(window: &Window<'_>) -> Option<Finding> {
    let queued = unread_bytes(window.samples().last()?.connection);
    let cause = Cause::Unread {
        queued: queued.into(),
    };
    (queued > 0).then(|| Finding::new(Factor::ReceiverApplication, 1.0, cause))
}

/// Detects a reader that has room in its buffer but does not keep up. Unread data is acknowledged
/// after a delay, and the sender waits for that acknowledgement.
fn late(window: &Window<'_>) -> Option<Finding> {
    let samples = window.samples();
    let queues = || samples.iter().map(|sample| unread_bytes(sample.connection));
    let segment = window.last().rcv_mss;
    let often = queues().filter(|queue| *queue > segment).count() * 2 > samples.len();
    let queued = queues().map(f64::from).sum::<f64>() / samples.len().max(1) as f64;
    // Little's law: the length of a queue over the rate through it.
    let wait = queued / window.received_rate();
    (often && queued > LATE_BYTES && wait > LATE_SECONDS).then(|| {
        let cause = Cause::ReadsLate { queued, wait };
        Finding::new(Factor::ReceiverApplication, NOT_CERTAIN, cause)
    })
}

fn unread_bytes(connection: &Connection) -> u32 {
    // The peer's FIN counts as a byte of the queue.
    let ends = matches!(
        connection.state,
        State::CloseWait | State::LastAck | State::Closing
    );
    connection.recv_queue.saturating_sub(u32::from(ends))
}

/// Returns the share of the samples in which the receive buffer was nearly full of unread data.
fn full(window: &Window<'_>) -> f64 {
    let samples = window.samples();
    let full = samples.iter().filter(|sample| is_full(sample)).count();
    full as f64 / samples.len().max(1) as f64
}

fn is_full(sample: &SampleRef<'_>) -> bool {
    let connection = sample.connection;
    let taken = connection
        .memory
        .is_some_and(|m| f64::from(m.rmem_alloc) > f64::from(m.rcvbuf) * FULL);
    // Out-of-order data also takes room, but cannot be read yet, so the receive queue must be
    // large, too.
    let offered = sample.info().and_then(|info| info.rcv_wnd);
    taken && connection.recv_queue > offered.unwrap_or(0)
}

/// Whether the buffer, full for this share of the time, fills again and again. Then the reader is
/// slower than the sender, and what arrives while there is room only fills it sooner.
fn fills_again(window: &Window<'_>, full: f64) -> bool {
    let samples = window.samples();
    let pairs = samples.iter().zip(samples.iter().skip(1));
    let fills = pairs.filter(|(before, after)| !is_full(before) && is_full(after));
    full > OFTEN_FULL && fills.count() > 1
}

fn application(window: &Window<'_>, share: f64, weight: f64) -> Finding {
    let last = window.samples().last();
    let queued = last.map_or(0, |sample| sample.connection.recv_queue);
    let cause = Cause::ReadsSlowly {
        share,
        queued: queued.into(),
    };
    Finding::new(Factor::ReceiverApplication, weight, cause)
}

/// Returns the share of the window that is used in a round trip, if it is large enough that the
/// window must limit the sender.
fn used(window: &Window<'_>) -> Option<f64> {
    let rtt = window.mean_seconds(receiver_rtt)?;
    let offered = offered(window)?;
    let used = window.received_rate() * rtt / offered.max(1.0);
    (used >= WINDOW_USED).then_some(used.min(1.0))
}

/// Returns the mean window that this end offers. The kernel's figure is what it would like to offer, and
/// the window scale may not allow as much.
fn offered(window: &Window<'_>) -> Option<f64> {
    let offered = window.mean(|info| info.rcv_wnd.map(f64::from))?;
    Some(offered.min(own_bound(window)))
}

/// Returns the widest window that this end can offer for the life of the connection.
fn own_bound(window: &Window<'_>) -> f64 {
    widest_window(window.last().window_scales.map(|(_, own)| own))
}

fn buffer(window: &Window<'_>, context: &Context, weight: f64) -> Finding {
    let last = window.samples().last().map(|sample| sample.connection);
    let rcvbuf = last.and_then(|c| c.memory).map(|m| u64::from(m.rcvbuf));
    let internals = last.and_then(|connection| connection.internals);
    let is_locked = internals.map(|internals| internals.rcvbuf_locked);
    let offered = offered(window).unwrap_or_default();
    let bound = own_bound(window);
    let cause = Cause::WindowUsed {
        window: offered,
        rtt: window.mean_seconds(receiver_rtt).unwrap_or_default(),
        rate: window.received_rate(),
        has_scaling: window.last().window_scales.is_some(),
        scale_bound: (offered >= bound * NEAR_SCALE).then_some(bound),
        sizing: Sizing::of(is_locked, rcvbuf, context.settings.rmem_max),
    };
    Finding::new(Factor::ReceiveBuffer, weight, cause)
}
