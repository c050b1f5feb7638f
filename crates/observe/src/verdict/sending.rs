//! At the end that sends.

mod lost;
mod receiver;
mod waits;

use taut_sys::tcp_info::CaState;

use super::units::{bytes, percent};
use super::{Context, Factor, Finding, Words};
use crate::window::{Sample, Shares, Window};

/// What is so in more than this share of the looks is so for most of the time.
const OFTEN: f64 = 0.5;
/// A round trip this much longer than its least is still one without a queue.
const NO_QUEUE: f64 = 1.25;
/// Below it a difference of round trips says nothing of queues, in seconds.
const MILLISECOND: f64 = 0.001;
/// Of what is not certain at one end: likely, and never sure.
const NOT_CERTAIN: f64 = 0.7;

/// Looks whether a factor accounts for what is left to the network.
type Rule = fn(&Window<'_>, f64, Words) -> Option<Finding>;

pub(super) fn findings(
    window: &Window<'_>,
    shares: Shares,
    context: &Context,
    words: Words,
) -> Vec<Finding> {
    let waiting = shares.network * asks(window);
    let full = shares.network * full(window);
    // What is neither the application's nor a buffer's.
    let network = shares.network - waiting - full;
    let first = |rules: &[Rule]| rules.iter().find_map(|rule| rule(window, network, words));
    // In this order each takes what fits it, and leaves the rest: what is seen for certain comes first.
    let certain = first(&[
        lost::black_hole,
        lost::timeouts,
        lost::path_mtu,
        waits::pacing,
    ]);
    let is_filled = certain.is_none() && receiver::is_filled(window, shares);
    let mut findings = vec![
        application(shares, waiting, words),
        send_buffer(window, shares, full, context, words),
    ];
    if is_filled {
        findings.push(receiver::application(window, shares, network, words));
        return findings;
    }
    let late = certain.or_else(|| first(&[receiver::acknowledges_late]));
    // The window of one that is away stands, but it is used up.
    if late.is_none()
        && let Some(away) = waits::descheduled(window, network + shares.receiver, context, words)
    {
        findings.push(away);
        return findings;
    }
    findings.push(receiver::window(window, shares, words));
    findings.extend(late.or_else(|| {
        first(&[
            waits::slow_start,
            lost::rate_limit,
            lost::loss,
            waits::queue,
            waits::link,
        ])
    }));
    findings
}

/// How often what was sent waited for an answer and there was nothing to send: neither idle nor limited by
/// anything but the round trip.
fn asks(window: &Window<'_>) -> f64 {
    window.often_of_looks(|look, info| {
        info.delivery_rate_app_limited
            && info.notsent_bytes == Some(0)
            && info.unacked < info.snd_cwnd
            && info.ca_state == CaState::Open
            && !is_full(look)
    })
}

/// How often the send buffer was full of what had been sent: nothing waited for the congestion window. The kernel begins
/// to account for that only when it sends something at a moment at which somebody waits for room: a program that
/// is woken, fills the buffer in one go and sees that it is full after that is not seen by it.
fn full(window: &Window<'_>) -> f64 {
    window.often_of_looks(|look, info| info.notsent_bytes == Some(0) && is_full(look))
}

/// Whether a program would wait for room: the kernel wakes it when a third is free (`sk_stream_is_writeable()`).
fn is_full(look: &Sample) -> bool {
    let memory = look.connection.memory;
    memory.is_some_and(|m| 3 * u64::from(m.wmem_queued) >= 2 * u64::from(m.sndbuf))
}

fn application(shares: Shares, waits: f64, words: Words) -> Finding {
    let finding = Finding::new(words, Factor::SenderApplication, shares.idle + waits).because(
        || {
            format!(
                "for {} of the time nothing was there to send",
                percent(shares.idle)
            )
        },
        &[("idle_share", shares.idle)],
    );
    if waits < 0.05 {
        return finding.helps("nothing in TCP: look at the application");
    }
    finding
        .because(
            || format!(
                "for {} all was sent, and the window was not full: it waited for the round trip",
                percent(waits)
            ),
            &[("waiting_share", waits)],
        )
        .helps("fewer round trips: several requests at a time, or a relay nearer to the peer (taut relay)")
}

fn send_buffer(
    window: &Window<'_>,
    shares: Shares,
    seen_full: f64,
    context: &Context,
    words: Words,
) -> Finding {
    let share = shares.send_buffer + seen_full;
    let finding = Finding::new(words, Factor::SendBuffer, share).because(
        || {
            format!(
                "for {} of the time the send buffer was full, and all of it on its way",
                percent(share)
            )
        },
        &[
            ("SndLimTimeSnd_share", shares.send_buffer),
            ("seen_full_share", seen_full),
        ],
    );
    let memory = window
        .samples()
        .last()
        .and_then(|sample| sample.connection.memory);
    let Some(memory) = memory else {
        return finding.helps("a larger send buffer");
    };
    let sndbuf = f64::from(memory.sndbuf);
    let finding = finding.because(
        || format!("it holds {}, overhead included", bytes(sndbuf)),
        &[("SndBuf", sndbuf)],
    );
    let inside = window.samples().last().and_then(|s| s.connection.internals);
    let locked = inside.map(|inside| inside.sndbuf_locked);
    let most = context.wmem_max;
    match (locked, most) {
        (Some(true), _) => finding.helps(
            "the application sets SO_SNDBUF, which keeps the kernel from sizing the buffer: it should not",
        ),
        (_, Some(most)) if u64::from(memory.sndbuf) >= most => finding.helps_with(|| {
            let unless = match locked {
                None => ", unless the application sets SO_SNDBUF",
                Some(_) => "",
            };
            let most = bytes(most as f64);
            format!("raise the third figure of net.ipv4.tcp_wmem, which is {most}{unless}")
        }),
        (Some(false), _) => finding.helps(
            "the kernel sizes it, and may go on; if it does not, net.ipv4.tcp_mem bounds all buffers together",
        ),
        (None, Some(most)) => finding.helps_with(|| {
            let most = bytes(most as f64);
            format!(
                "the kernel may give {most}: if the buffer stays as it is, the application sets SO_SNDBUF, which \
                 keeps the kernel from it"
            )
        }),
        (None, None) => finding.helps("a larger send buffer"),
    }
}
