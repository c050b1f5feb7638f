//! At the end that receives, which sees its own windows and its own application, and not what holds the sender
//! back otherwise.

use taut_sys::sock_diag::{Connection, State};

use super::units::{bytes, percent, rate, seconds, time};
use super::{Confidence, Context, Factor, Finding, LIKELY_MOST, Verdict, Words};
use crate::window::{Sample, Window};

/// A buffer of which this share is taken, overhead included, is nearly all that a window can fill.
const FULL: f64 = 0.4;
/// A sender that uses this share of the window in each round trip is held by it.
const WINDOW_USED: f64 = 0.7;
/// What waits to be read for so long, in seconds, is acknowledged late; of fewer bytes some wait for the others (a record of TLS, what a
/// program has asked for in one part).
const LATE_SECONDS: f64 = 0.008;
const LATE_BYTES: f64 = 8192.0;
/// And makes round trips longer by what nobody sees here.
const NOT_CERTAIN: f64 = 0.7;

pub(super) fn findings(window: &Window<'_>, context: &Context, words: Words) -> Vec<Finding> {
    let waits = waits(window);
    let mut findings = Vec::new();
    if waits > 0.0 {
        findings.push(application(window, waits, words));
    }
    let used = used(window);
    if let Some(used) = used {
        findings.push(buffer(window, context, used * (1.0 - waits), words));
    }
    if waits == 0.0
        && used.is_none()
        && let Some(late) = late(window, words)
    {
        findings.push(late);
    }
    let rest = 1.0 - findings.iter().map(|finding| finding.weight).sum::<f64>();
    // That it is the other end is what is left, and never sure.
    findings.push(
        Finding::new(words, Factor::Peer, rest.min(LIKELY_MOST))
            .because(
                || {
                    format!(
                        "{} came, and neither the window nor its reader held it",
                        rate(window.received_rate())
                    )
                },
                &[("rate", window.received_rate())],
            )
            .helps("ask at the other end: taut why there"),
    );
    findings
}

/// What waits to be read while nothing goes either way; `None`: nothing does.
pub(super) fn unread(window: &Window<'_>, words: Words) -> Option<Verdict> {
    let connection = &window.samples().last()?.connection;
    let waits = unread_bytes(connection);
    (waits > 0).then(|| {
        Finding::new(words, Factor::ReceiverApplication, 1.0)
            .because(
                || {
                    format!(
                        "{} wait to be read, and nothing was read",
                        bytes(waits.into())
                    )
                },
                &[("CurAppRQueue", waits.into())],
            )
            .helps("nothing in TCP: the application at this end does not read")
            .told(Confidence::Sure)
    })
}

/// A reader that has room, but does not keep up: what it has not read is acknowledged after a delay, and the sender waits for that.
fn late(window: &Window<'_>, words: Words) -> Option<Finding> {
    let samples = window.samples();
    let queues = || {
        samples
            .iter()
            .map(|sample| unread_bytes(&sample.connection))
    };
    let segment = window.last().rcv_mss;
    let often = queues().filter(|queue| *queue > segment).count() * 2 > samples.len();
    let unread = queues().map(f64::from).sum::<f64>() / samples.len().max(1) as f64;
    // What is in a queue, over what goes through it (Little).
    let waits = unread / window.received_rate();
    (often && unread > LATE_BYTES && waits > LATE_SECONDS).then(|| {
        Finding::new(words, Factor::ReceiverApplication, NOT_CERTAIN)
            .because(
                || {
                    format!(
                        "{} wait to be read on the average, for {} each, and are acknowledged late",
                        bytes(unread),
                        time(waits)
                    )
                },
                &[("CurAppRQueue_mean", unread), ("unread_time", waits)],
            )
            .helps("nothing in TCP: the application at this end reads late, or in large parts that are far apart")
    })
}

/// What waits to be read.
fn unread_bytes(connection: &Connection) -> u32 {
    // The peer's FIN takes a place in the queue.
    let ends = matches!(
        connection.state,
        State::CloseWait | State::LastAck | State::Closing
    );
    connection.recv_queue.saturating_sub(u32::from(ends))
}

/// How often the receive buffer was nearly full of what nobody had read.
fn waits(window: &Window<'_>) -> f64 {
    let full = |sample: &&&Sample| {
        let connection = &sample.connection;
        let taken = connection
            .memory
            .is_some_and(|m| f64::from(m.rmem_alloc) > f64::from(m.rcvbuf) * FULL);
        // What is out of order takes room too, and nobody can read it.
        let offered = sample.info().and_then(|info| info.rcv_wnd);
        taken && connection.recv_queue > offered.unwrap_or(0)
    };
    let samples = window.samples();
    samples.iter().filter(full).count() as f64 / samples.len().max(1) as f64
}

fn application(window: &Window<'_>, waits: f64, words: Words) -> Finding {
    let queue = window
        .samples()
        .last()
        .map_or(0, |sample| sample.connection.recv_queue);
    Finding::new(words, Factor::ReceiverApplication, waits)
        .because(
            || format!(
                "in {} of the looks more waited to be read than the window had room for; at the last {}",
                percent(waits),
                bytes(queue.into())
            ),
            &[("full_share", waits), ("CurAppRQueue", queue.into())],
        )
        .helps("nothing in TCP: the application at this end reads slowly")
}

/// How much of the window a round trip uses, when it is so much that the window must be what holds the sender
/// back.
fn used(window: &Window<'_>) -> Option<f64> {
    let rtt = window.mean(|info| seconds(info.rcv_rtt))?;
    let offered = window.mean(|info| info.rcv_wnd.map(f64::from))?;
    let used = window.received_rate() * rtt / offered.max(1.0);
    (used >= WINDOW_USED).then_some(used.min(1.0))
}

fn buffer(window: &Window<'_>, context: &Context, weight: f64, words: Words) -> Finding {
    let rtt = window
        .mean(|info| seconds(info.rcv_rtt))
        .unwrap_or_default();
    let offered = window
        .mean(|info| info.rcv_wnd.map(f64::from))
        .unwrap_or_default();
    let finding = Finding::new(words, Factor::ReceiveBuffer, weight).because(
        || {
            format!(
                "a window of {} in each round trip of {} is all that comes: {}",
                bytes(offered),
                time(rtt),
                rate(window.received_rate())
            )
        },
        &[
            ("CurRwinSent", offered),
            ("rcv_rtt", rtt),
            ("rate", window.received_rate()),
        ],
    );
    let last = window.samples().last().map(|sample| &sample.connection);
    let rcvbuf = last.and_then(|c| c.memory).map(|m| u64::from(m.rcvbuf));
    let locked = last
        .and_then(|c| c.internals)
        .map(|inside| inside.rcvbuf_locked);
    if window.last().window_scales.is_none() {
        return finding.helps("no window scaling, so that 64 KiB is all that can be offered");
    }
    match (locked, rcvbuf, context.rmem_max) {
        (Some(true), ..) => finding.helps(
            "the application sets SO_RCVBUF, which keeps the kernel from sizing the buffer: it should not",
        ),
        (_, Some(rcvbuf), Some(most)) if rcvbuf >= most => finding.helps_with(|| {
            let unless = match locked {
                None => ", unless the application sets SO_RCVBUF",
                Some(_) => "",
            };
            let most = bytes(most as f64);
            format!("raise the third figure of net.ipv4.tcp_rmem, which is {most}{unless}")
        }),
        (Some(false), ..) => finding.helps(
            "the kernel sizes it, and may go on; if it does not, net.ipv4.tcp_mem bounds all buffers together",
        ),
        (None, Some(rcvbuf), Some(most)) => finding.helps_with(|| {
            let (rcvbuf, most) = (bytes(rcvbuf as f64), bytes(most as f64));
            format!(
                "the buffer is {rcvbuf}, and the kernel may give {most}: if it stays so, the application sets \
                 SO_RCVBUF, which keeps the kernel from it"
            )
        }),
        _ => finding.helps("a larger receive buffer"),
    }
}
