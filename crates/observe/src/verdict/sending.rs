//! At the end that sends.

use std::time::Duration;

use taut_sys::tcp_info::{CaState, TcpInfo};

use super::units::{bytes, percent, rate, seconds, time};
use super::{Context, Factor, Finding, Words};
use crate::happened::Happened;
use crate::window::{Sample, Shares, Window};

/// What is so in more than this share of the looks is so for most of the time.
const OFTEN: f64 = 0.5;
/// A window that falls below this share of the widest that it was is one that a reader has left to fill.
const WINDOW_FALLS: f64 = 0.7;
/// The congestion window grows by this much at least within a window that is called slow start.
const GROWS: f64 = 1.3;
/// Loss that matters: the share of segments. Below, even Reno has windows of a hundred segments and more.
const LOSS_MATTERS: f64 = 1e-4;
/// A round trip this much longer than its least is still one without a queue.
const NO_QUEUE: f64 = 1.25;
/// Below it a difference of round trips says nothing of queues, in seconds.
const MILLISECOND: f64 = 0.001;
/// A path that is full has a queue, however short: the round trip is so many times its least, or so many seconds longer
/// (CoDel lets 5 ms stand).
const LINK_QUEUE: f64 = 1.1;
const LINK_QUEUE_SECONDS: f64 = 0.004;
/// And one that is longer by this and by [`LONG_QUEUE_SECONDS`] has a long one.
const LONG_QUEUE: f64 = 2.0;
/// What a person on a call notices, in seconds.
const LONG_QUEUE_SECONDS: f64 = 0.03;
/// As near as a rate comes to the one that it is paced at, headers being counted there and not here.
const NEAR_PACE: f64 = 0.85;
/// Of the congestion window this share is in flight when it is the window that limits.
const IN_FLIGHT: f64 = 0.7;
/// The constant of equation 2.2 of the thesis (Mathis et al. 1997), for one acknowledgement every segment.
const MATHIS: f64 = 1.22;
/// A round trip that goes with what is in flight so closely, and varies by this share of its least, is made
/// by a queue: what was lost was lost for want of room there.
const FOLLOWS: f64 = 0.5;
const QUEUE_VARIES: f64 = 0.03;
/// And what is more in flight waits there for this share of the time that it takes at the rate of all.
const OWN_RATE: f64 = 0.6;
/// Of what is not certain at one end: likely, and never sure.
const NOT_CERTAIN: f64 = 0.7;
/// A rate limiter lets the same through in each part of this length, and a sender that loses at random does not:
/// the deviation of a part from the mean.
const PART: Duration = Duration::from_millis(500);
const STEADY: f64 = 0.1;
/// And what it drops is more than this share.
const LIMITER_DROPS: f64 = 0.005;
/// So much a queue drops only where the path has room for a few segments.
const LIMITER_DROPS_MUCH: f64 = 0.02;
/// A round trip that is this many times its least, and this much longer in seconds, is not one of an empty path;
const WAITS: f64 = 2.0;
const WAITS_SECONDS: f64 = 0.002;
/// and if it deviates by this share of itself, whoever answers is there at one time and away at another. A queue
/// is long for many round trips on end.
const DEVIATES: f64 = 0.3;
/// The same is so if no acknowledgement has come for so long, in seconds and in times of what lies between two of
/// them on the average,
const SILENT_SECONDS: f64 = 0.01;
const SILENT: f64 = 10.0;
/// and so many segments are in flight: of a few each is answered late, as acknowledgements are delayed.
const MANY: f64 = 8.0;
/// Of a machine's CPUs: what a neighbour takes now and then is less.
const STOLEN: f64 = 0.05;
/// A window of fewer segments: each is answered late, as acknowledgements are delayed, and no queue is seen.
const FEW: f64 = 4.0;
/// Losses that come at the same rate each time: delivered from one signal to the next, less what the mean rate
/// would have delivered, as a share.
const EVEN: f64 = 0.06;
/// And a bucket that is empty drops several segments; at random it is one at a time.
const TOGETHER: f64 = 1.8;
/// The same, of fewer than three signals.
const TOGETHER_ALONE: f64 = 3.0;
/// Pairs of signals that are enough to see whether they come at the same rate; with fewer it is less than likely.
const ENOUGH: u32 = 4;
const NOT_LIKELY: f64 = 0.45;
const LIMITER_HELPS: &str = "ask whoever runs the path what rate was agreed; pacing at it (SO_MAX_PACING_RATE, BBR) saves the losses";
/// What is said to fit Mathis' bound is within this factor of it: Cubic does better than Reno, BBR much better.
const NEAR_MATHIS: f64 = 4.0;

/// Looks whether a factor accounts for what is left to the network.
type Rule = fn(&Window<'_>, f64, Words) -> Option<Finding>;

pub(super) fn findings(
    window: &Window<'_>,
    shares: Shares,
    context: &Context,
    words: Words,
) -> Vec<Finding> {
    let (waiting, full) = (
        shares.network * waits(window),
        shares.network * full(window),
    );
    // What is neither the application's nor a buffer's.
    let network = shares.network - waiting - full;
    let mut findings = vec![
        application(shares, waiting, words),
        send_buffer(window, shares, full, context, words),
    ];
    let first = |rules: &[Rule]| rules.iter().find_map(|rule| rule(window, network, words));
    // In this order each takes what fits it, and leaves the rest: what is seen for certain comes first.
    let certain = first(&[black_hole, timeouts, path_mtu, pacing]);
    // The window of one that is away fills, too.
    if certain.is_none()
        && let Some(away) = descheduled(window, network + shares.receiver, context, words)
    {
        findings.push(away);
        return findings;
    }
    findings.push(receiver(window, shares, words));
    findings.extend(certain.or_else(|| first(&[slow_start, rate_limit, loss, queue, link])));
    findings
}

/// How often what was sent waited for an answer and there was nothing to send: neither idle nor limited by
/// anything but the round trip.
fn waits(window: &Window<'_>) -> f64 {
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
    let inside = window.samples().last().and_then(|s| s.connection.inside);
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

fn receiver(window: &Window<'_>, shares: Shares, words: Words) -> Finding {
    let share = shares.receiver;
    let held = || {
        let held = percent(share);
        format!("for {held} of the time the peer's window was full")
    };
    let figures = [("SndLimTimeRwin_share", share)];
    let (least, most) = window.range(|info| info.snd_wnd).unwrap_or_default();
    let probes = window.range(|info| Some(info.probes)).unwrap_or_default().1;
    // A window of less than a segment is a closed one, also when it stands.
    if fell(window) || probes > 0 || least < window.last().snd_mss {
        return Finding::new(words, Factor::ReceiverApplication, share)
            .because(held, &figures)
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
            .helps("nothing in TCP: the application at the peer reads slowly");
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

/// How often a segment had been sent again and was not answered.
fn unanswered(window: &Window<'_>) -> f64 {
    window.often(|info| info.retransmits > 0 || info.backoff > 0)
}

/// The handshake went through, and what is shorter than a segment, and none that is full: a link on the way
/// takes no such packets, and the router that says so is not heard (RFC 2923 2.1).
fn black_hole(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
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

fn timeouts(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
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

fn path_mtu(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
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

fn pacing(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let most = window.last().max_pacing_rate? as f64;
    let sent = window.sent_rate();
    (sent >= most * NEAR_PACE).then(|| {
        Finding::new(words, Factor::Pacing, network)
            .because(
                || format!("it sends {}, and may send {}", rate(sent), rate(most)),
                &[("rate", sent), ("max_pacing_rate", most)],
            )
            .helps("the application, or its manager, sets SO_MAX_PACING_RATE")
    })
}

fn slow_start(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let in_it = |info: &TcpInfo| {
        info.snd_ssthresh
            .is_none_or(|ssthresh| info.snd_cwnd < ssthresh)
    };
    let often = window.often(in_it);
    let (first, last) = (window.first().snd_cwnd, window.last().snd_cwnd);
    let lost = window.more_wrapping(|info| Some(info.total_retrans));
    let grew = f64::from(last) >= f64::from(first) * GROWS;
    (often > OFTEN && grew && lost == 0).then(|| {
        let rtt = window.mean(|info| seconds(info.rtt)).unwrap_or_default();
        Finding::new(words, Factor::SlowStart, network * often)
            .because(
                || format!("the congestion window grew from {first} to {last} segments, and nothing was lost"),
                &[("CurCwnd_first", first.into()), ("CurCwnd_last", last.into())],
            )
            .because(
                || format!("each step takes a round trip of {}", time(rtt)),
                &[("SmoothedRTT", rtt)],
            )
            .helps("keep connections open, or put a relay on the way (taut relay)")
    })
}

/// How long a round trip is without a queue, and on the average.
fn round_trips(window: &Window<'_>) -> Option<(f64, f64)> {
    let least = window.range(|info| info.min_rtt)?.0.as_secs_f64();
    let mean = window.mean(|info| seconds(info.rtt))?;
    (least > 0.0).then_some((least, mean))
}

/// A round trip that is now that of an empty path, and now much longer.
fn descheduled(
    window: &Window<'_>,
    weight: f64,
    context: &Context,
    words: Words,
) -> Option<Finding> {
    let (least, mean) = round_trips(window)?;
    let deviates = window.mean(|info| seconds(info.rttvar))?;
    let waits = mean > least * WAITS && mean > least + WAITS_SECONDS;
    let in_flight = window.mean(|info| Some(info.unacked.into()))?;
    let comes_and_goes = deviates > mean * DEVIATES || is_answered_in_bursts(window);
    (waits && in_flight >= MANY && comes_and_goes && unanswered(window) < OFTEN).then(|| {
        Finding::new(words, Factor::Descheduled, weight)
            .because(
                || format!(
                    "the round trip is {} at times, {} on the average, and deviates from that by {}: a queue would be steadier",
                    time(least),
                    time(mean),
                    time(deviates)
                ),
                &[("MinRTT", least), ("SmoothedRTT", mean), ("RTTVar", deviates)],
            )
    })
    .map(|finding| match context.steal {
        Some(steal) if steal > STOLEN => finding
            .because(
                || format!("from this machine {} of its CPUs' time was taken", percent(steal)),
                &[("steal", steal)],
            )
            .helps("a larger share of CPU for this machine; on it, if it is the sender: taut guest"),
        _ => finding.helps(
            "on the host of the guest that receives: taut snoop; or a larger share of CPU for whoever waits for it",
        ),
    })
}

/// Whether acknowledgements come together, and none for long: from a queue they come one by one.
fn is_answered_in_bursts(window: &Window<'_>) -> bool {
    let silent = window.mean(|info| Some(info.last_ack_recv.as_secs_f64()));
    // Between two of a receiver that acknowledges every second segment.
    let apart = 2.0 * f64::from(window.last().snd_mss) / window.sent_rate();
    silent.is_some_and(|silent| silent > SILENT_SECONDS && silent > apart * SILENT)
}

/// Loss for which no queue is the cause, and that comes when a bucket of tokens is empty, which it is at the same
/// rate each time, and not at random.
fn rate_limit(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let lost = window.loss();
    let (least, mean) = round_trips(window)?;
    if lost < LOSS_MATTERS || is_lost_at_a_queue(window, least) {
        return None;
    }
    if let Some(happened) = window.happened() {
        return limiter_by_signals(window, &happened, network, words);
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
    happened: &Happened,
    network: f64,
    words: Words,
) -> Option<Finding> {
    let at_signals = happened.round_trip_at_signals()?;
    let signals = f64::from(happened.0.signals);
    let together = f64::from(window.repeated()) / signals;
    let unevenness = happened.unevenness();
    let is_limiter = match unevenness {
        Some(unevenness) => together > TOGETHER && unevenness < EVEN,
        None => together > TOGETHER_ALONE,
    };
    if !is_limiter {
        return None;
    }
    // Few may come at the same rate by chance.
    let certain = match happened.0.between {
        ENOUGH.. => NOT_CERTAIN,
        _ => NOT_LIKELY,
    };
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
    let finding = match unevenness {
        None => finding,
        Some(unevenness) => {
            let carried = happened.rate() * f64::from(window.last().snd_mss);
            finding.because(
                || {
                    format!(
                        "from one time to the next {} were carried, within {}",
                        rate(carried),
                        percent(unevenness)
                    )
                },
                &[("rate", carried), ("signal_unevenness", unevenness)],
            )
        }
    };
    Some(finding.helps(LIMITER_HELPS))
}

/// Whether what was lost was lost for want of room in a queue: the round trip before it was longer.
fn is_lost_at_a_queue(window: &Window<'_>, least: f64) -> bool {
    let happened = window.happened();
    let of_few = happened
        .and_then(|happened| happened.windows())
        .is_some_and(|windows| windows.mean < FEW && window.loss() > LIMITER_DROPS_MUCH);
    match happened.and_then(|happened| happened.round_trip_at_signals()) {
        Some(_) if of_few => false,
        Some(at) => at > least * NO_QUEUE + MILLISECOND,
        None => fills_a_queue(window, least),
    }
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

fn loss(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let lost = window.loss();
    let (least, mean) = round_trips(window)?;
    if lost < LOSS_MATTERS
        || mean > least * NO_QUEUE + MILLISECOND
        || is_lost_at_a_queue(window, least)
    {
        return None;
    }
    let mss = f64::from(window.last().snd_mss);
    let bound = mss * MATHIS / (mean * lost.sqrt());
    let sent = window.sent_rate();
    let near = sent <= bound * NEAR_MATHIS;
    Some(
        Finding::new(words, Factor::Loss, network * if near { 1.0 } else { 0.6 })
            .because(
                || format!(
                    "{} of the segments were lost, while the round trip of {} was that of an empty path ({})",
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

fn queue(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let (least, mean) = round_trips(window)?;
    (mean > least * LONG_QUEUE && mean > least + LONG_QUEUE_SECONDS).then(|| {
        Finding::new(words, Factor::Queue, network)
            .because(
                || format!("the round trip is {}, and {} without a queue", time(mean), time(least)),
                &[("SmoothedRTT", mean), ("MinRTT", least)],
            )
            .because(
                || format!("it sends {} into it", rate(window.sent_rate())),
                &[("rate", window.sent_rate())],
            )
            .helps("a short queue where it stands (fq_codel, CAKE), or BBR at this end; the rate will be the same")
    })
}

fn link(window: &Window<'_>, network: f64, words: Words) -> Option<Finding> {
    let (least, mean) = round_trips(window)?;
    let full = window.often(|info| f64::from(info.unacked) >= f64::from(info.snd_cwnd) * IN_FLIGHT);
    // Where no queue is seen there is room, and the congestion window may only not have grown into it yet.
    (mean > least * LINK_QUEUE || mean > least + LINK_QUEUE_SECONDS).then(|| {
        Finding::new(words, Factor::Link, network * full).because(
            || {
                format!(
                    "it sends {} steadily; the round trip of {} is not far from the least, {}",
                    rate(window.sent_rate()),
                    time(mean),
                    time(least)
                )
            },
            &[
                ("rate", window.sent_rate()),
                ("SmoothedRTT", mean),
                ("MinRTT", least),
            ],
        )
    })
}
