//! Rules for the sending end.

pub(super) mod control;
mod lost;
mod measures;
mod receiver;
pub(super) mod response;
mod waits;

use taut_sys::sock_diag::State;
use taut_sys::tcp_info::TcpInfo;

use super::{Cause, Context, Factor, Finding, Sizing};
use crate::window::{SampleRef, Shares, Window};

/// Decides whether a factor accounts for the given share of the time, which is attributed to the
/// network.
type Rule = fn(&Window<'_>, f64) -> Option<Finding>;

/// The minimum share of the time spent waiting for answers that is worth a remedy.
const WAITS_MUCH: f64 = 0.05;

pub(super) fn findings(window: &Window<'_>, shares: Shares, context: &Context) -> Vec<Finding> {
    let waiting = shares.network * asks(window);
    let full = shares.network * full(window);
    // The time that neither the application nor a buffer accounts for.
    let network = shares.network - waiting - full;
    let first = |rules: &[Rule]| rules.iter().find_map(|rule| rule(window, network));
    // The first rule that matches wins, so the most certain rules come first.
    let certain = first(&[
        lost::black_hole,
        lost::timeouts,
        lost::path_mtu,
        waits::pacing,
    ]);
    let is_filled = certain.is_none() && receiver::is_filled(window, shares);
    let mut findings = vec![
        application(shares, waiting),
        send_buffer(window, shares, full, context),
    ];
    if is_filled {
        findings.push(receiver::application(window, shares, network));
        return findings;
    }
    let is_certain = certain.is_some();
    let late = certain.or_else(|| receiver::acknowledges_late(window, shares, network));
    // A descheduled peer does not update its window, so the window is used up and the time counts
    // as the receiver's.
    if late.is_none()
        && let Some(descheduled) = waits::descheduled(window, network + shares.receiver, context)
    {
        findings.push(descheduled);
        return findings;
    }
    if !is_certain && receiver::is_unread(window, shares) {
        findings.push(receiver::application(window, shares, network));
        return findings;
    }
    let paced = match late {
        Some(_) => 0.0,
        None => receiver::paced_by_window(window, shares, network),
    };
    findings.push(receiver::window(window, shares, paced));
    if paced > 0.0 {
        return findings;
    }
    findings.extend(late.or_else(|| {
        first(&[
            waits::slow_start,
            waits::marks,
            lost::rate_limit,
            lost::loss,
            waits::queue,
            waits::link,
        ])
    }));
    findings
}

/// Returns the share of the samples in which the application gave the sender no more data.
fn asks(window: &Window<'_>) -> f64 {
    window.often_of_samples(|sample, info| {
        let has_room = in_flight(info) < info.snd_cwnd && info.lost <= info.retrans;
        has_room && !is_full(sample) && !has_unsent(sample, info)
    })
}

/// Whether data waits to be sent: a segment or more, as in `tcp_rate_check_app_limited()`; the
/// Nagle algorithm may hold back less. The kernel's own flag is not enough, because an earlier
/// sample at a higher rate keeps it clear. But while it is set, the application has limited all
/// samples since. So it decides for a sender that paces, which spreads the application's last write
/// over some time and may have more than a segment of it unsent.
fn has_unsent(sample: &SampleRef<'_>, info: &TcpInfo) -> bool {
    if info.delivery_rate_app_limited && control::has_model(sample) {
        return false;
    }
    match info.notsent_bytes {
        Some(bytes) => bytes >= info.snd_mss.max(1),
        None => !info.delivery_rate_app_limited,
    }
}

/// Returns the number of segments on the path, as `tcp_packets_in_flight()` does.
fn in_flight(info: &TcpInfo) -> u32 {
    let left = info.sacked.saturating_add(info.lost);
    info.unacked
        .saturating_sub(left)
        .saturating_add(info.retrans)
}

/// Returns the share of the samples in which the send buffer was full of data in flight: no data
/// waited for the congestion window. The kernel starts to account for this only when it sends a
/// segment while a thread waits for room. It misses a program that wakes up, fills the buffer in
/// one go and only then finds the buffer full.
fn full(window: &Window<'_>) -> f64 {
    window.often_of_samples(|sample, info| info.notsent_bytes == Some(0) && is_full(sample))
}

/// Whether a program would wait for room: the kernel wakes the program when a third of the buffer
/// is free (`sk_stream_is_writeable()`). A program that has closed its end does not wait. A buffer
/// whose size the application has fixed counts as full from half on, because the program writes
/// only some time after it was woken.
fn is_full(sample: &SampleRef<'_>) -> bool {
    let connection = sample.connection;
    let may_write = matches!(connection.state, State::Established | State::CloseWait);
    let memory = connection.memory.filter(|_| may_write);
    let is_fixed = connection.internals.is_some_and(|i| i.sndbuf_locked);
    memory.is_some_and(|m| {
        let (queued, size) = (u64::from(m.wmem_queued), u64::from(m.sndbuf));
        3 * queued >= 2 * size || is_fixed && 2 * queued >= size
    })
}

fn application(shares: Shares, waiting: f64) -> Finding {
    let cause = Cause::NothingToSend {
        idle: shares.idle,
        waiting: (waiting >= WAITS_MUCH).then_some(waiting),
    };
    Finding::new(Factor::SenderApplication, shares.idle + waiting, cause)
}

fn send_buffer(window: &Window<'_>, shares: Shares, seen: f64, context: &Context) -> Finding {
    let last = window.samples().last().map(|sample| sample.connection);
    let memory = last.and_then(|connection| connection.memory);
    let internals = last.and_then(|connection| connection.internals);
    let sizing = memory.map_or(Sizing::Unknown, |memory| {
        let is_locked = internals.map(|internals| internals.sndbuf_locked);
        Sizing::of(
            is_locked,
            Some(memory.sndbuf.into()),
            context.settings.wmem_max,
        )
    });
    let cause = Cause::SendBufferFull {
        limited: shares.send_buffer,
        seen,
        size: memory.map(|memory| memory.sndbuf.into()),
        sizing,
    };
    Finding::new(Factor::SendBuffer, shares.send_buffer + seen, cause)
}
