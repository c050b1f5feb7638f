//! The sentences that support a cause, with their figures.

use super::units::{bytes, percent, rate, time};
use super::{Evidence, host_drop};
use crate::verdict::finding::Cause;

impl Cause {
    pub(super) fn evidence(&self) -> Vec<Evidence> {
        match *self {
            Self::NoData { elapsed } => vec![Evidence::new(
                format!("no data was sent or received for {elapsed:.1} s, and none is queued"),
                &[("elapsed", elapsed)],
            )],
            Self::HandshakeUnanswered { retransmits } => vec![Evidence::new(
                format!("the handshake was retransmitted {retransmits} times without an answer"),
                &[("CurTimeoutCount", retransmits)],
            )],
            Self::MachineDescheduled { share, .. } => vec![Evidence::new(
                format!(
                    "this machine was descheduled for {} of the time: sleeping threads woke late although no other task \
                     was runnable",
                    percent(share)
                ),
                &[("descheduled_share", share)],
            )],
            Self::QuotaUsedUp {
                stopped,
                cpus,
                ref file,
            } => vec![Evidence::new(
                format!(
                    "the application at this end was stopped for {} of the time, because its cgroup had used up its quota of \
                     {cpus:.2} CPUs ({})",
                    percent(stopped),
                    crate::sanitize::text(file.as_os_str().as_encoded_bytes())
                ),
                &[("stopped_share", stopped), ("quota_cpus", cpus)],
            )],
            Self::DroppedHere {
                dropped,
                lost,
                ref drops,
            } => host_drop::dropped_here(dropped, lost, drops),
            Self::NothingToSend { idle, waiting } => {
                let mut evidence = vec![Evidence::new(
                    format!(
                        "there was nothing to send for {} of the time",
                        percent(idle)
                    ),
                    &[("idle_share", idle)],
                )];
                evidence.extend(waiting.map(|waiting| {
                    Evidence::new(
                        format!(
                            "for {} of the time less than a segment was left to send, with room in the congestion window: the \
                             application gave no more data, or waited for an answer",
                            percent(waiting)
                        ),
                        &[("waiting_share", waiting)],
                    )
                }));
                evidence
            }
            Self::SendBufferFull {
                limited,
                seen,
                size,
                ..
            } => {
                let mut evidence = vec![Evidence::new(
                    format!(
                        "the send buffer was full for {} of the time, and all of its data was in flight",
                        percent(limited + seen)
                    ),
                    &[("SndLimTimeSnd_share", limited), ("seen_full_share", seen)],
                )];
                if let Some(size) = size {
                    evidence.push(Evidence::new(
                        format!("the send buffer holds {}, overhead included", bytes(size)),
                        &[("SndBuf", size)],
                    ));
                }
                evidence
            }
            Self::PeerWindowSmall {
                limited, window, ..
            } => vec![
                Evidence::new(
                    format!(
                        "the peer's window was full for {} of the time",
                        percent(limited)
                    ),
                    &[("SndLimTimeRwin_share", limited)],
                ),
                Evidence::new(
                    format!("the window stays at {}", bytes(window)),
                    &[("CurRwinRcvd", window)],
                ),
            ],
            Self::PeerReadsSlowly {
                limited,
                filling,
                narrowest,
                widest,
            } => vec![
                Evidence::new(
                    format!(
                        "the peer's window was full for {} of the time, and filling for {}",
                        percent(limited),
                        percent(filling)
                    ),
                    &[("SndLimTimeRwin_share", limited), ("filled_share", filling)],
                ),
                Evidence::new(
                    format!(
                        "the window varied between {} and {}: data waits at the peer to be read",
                        bytes(narrowest),
                        bytes(widest)
                    ),
                    &[
                        ("CurRwinRcvd_least", narrowest),
                        ("CurRwinRcvd_most", widest),
                    ],
                ),
            ],
            Self::PeerAcknowledgesLate {
                since_last_ack,
                rtt,
                min_rtt,
                max_rtt,
                delay_bound,
            } => vec![Evidence::new(
                format!(
                    "acknowledgements come in bursts, the last one {} before a sample on average; the round trip is {}, at least {} \
                     and never {} above that: the peer delays acknowledgements, as it does for unread data",
                    time(since_last_ack),
                    time(rtt),
                    time(min_rtt),
                    time(delay_bound)
                ),
                &[
                    ("since_last_ack", since_last_ack),
                    ("SmoothedRTT", rtt),
                    ("MinRTT", min_rtt),
                    ("MaxRTT", max_rtt),
                ],
            )],
            Self::FullSegmentsUnanswered {
                mss,
                acked,
                received,
            } => vec![Evidence::new(
                format!(
                    "no segment of {mss} bytes was ever acknowledged, although the connection was established and {received} \
                     bytes were received"
                ),
                &[("CurMSS", mss), ("HCThruOctetsAcked", acked)],
            )],
            Self::Unanswered {
                share,
                since_last_ack,
            } => vec![
                Evidence::new(
                    format!(
                        "in {} of the samples a retransmitted segment was still unanswered",
                        percent(share)
                    ),
                    &[("CurTimeoutCount_share", share)],
                ),
                Evidence::new(
                    format!("the last acknowledgement came {} ago", time(since_last_ack)),
                    &[("since_last_ack", since_last_ack)],
                ),
            ],
            Self::SegmentsShrank {
                before,
                now,
                retransmits,
            } => vec![Evidence::new(
                format!(
                    "the segment size fell from {before} to {now} bytes after {retransmits} retransmissions"
                ),
                &[("CurMSS_before", before), ("CurMSS", now)],
            )],
            Self::SteadyRate {
                rate: sent,
                deviation,
                loss,
                ..
            } => vec![Evidence::new(
                format!(
                    "the rate was {} in each half second, within {}, while {} of the segments were dropped and no queue was there",
                    rate(sent),
                    percent(deviation),
                    percent(loss)
                ),
                &[
                    ("rate", sent),
                    ("rate_deviation", deviation),
                    ("loss", loss),
                ],
            )],
            Self::EvenSignals {
                signals,
                lost_per_signal,
                rtt,
                interval,
            } => {
                let mut evidence = vec![Evidence::new(
                    format!(
                        "the congestion window was reduced {signals} times; on average {lost_per_signal:.1} segments were \
                         dropped each time, after a round trip of {}",
                        time(rtt)
                    ),
                    &[
                        ("CongSignals", signals),
                        ("lost_per_signal", lost_per_signal),
                        ("rtt_at_signals", rtt),
                    ],
                )];
                evidence.extend(interval.map(|interval| {
                    Evidence::new(
                        format!(
                            "between two reductions {:.0} segments were delivered on average, which is {} within {:.1} segments",
                            interval.segments,
                            rate(interval.rate),
                            interval.unevenness
                        ),
                        &[
                            ("signal_interval", interval.segments),
                            ("rate", interval.rate),
                            ("signal_unevenness", interval.unevenness),
                        ],
                    )
                }));
                evidence
            }
            Self::LossWithoutQueue {
                loss,
                rtt,
                min_rtt,
                has_small_window,
                mathis_bound,
                rate: sent,
                ..
            } => {
                let (lost, mean, least) = (percent(loss), time(rtt), time(min_rtt));
                let text = match has_small_window {
                    true => format!(
                        "{lost} of the segments were lost; with windows of a few segments the round trip of {mean} (at least \
                         {least}) tells nothing about queues"
                    ),
                    false => format!(
                        "{lost} of the segments were lost although the round trip of {mean} (at least {least}) shows no queue"
                    ),
                };
                vec![
                    Evidence::new(
                        text,
                        &[("loss", loss), ("SmoothedRTT", rtt), ("MinRTT", min_rtt)],
                    ),
                    Evidence::new(
                        format!(
                            "with that loss Reno reaches {} (Mathis); this connection sends {}",
                            rate(mathis_bound),
                            rate(sent)
                        ),
                        &[("mathis_bound", mathis_bound), ("rate", sent)],
                    ),
                ]
            }
            Self::Paced {
                rate: sent,
                max_rate,
            } => vec![Evidence::new(
                format!(
                    "while it has data it sends {}; its pacing rate is limited to {}",
                    rate(sent),
                    rate(max_rate)
                ),
                &[("rate", sent), ("max_pacing_rate", max_rate)],
            )],
            Self::WindowGrows { first, last, rtt } => vec![
                Evidence::new(
                    format!(
                        "the congestion window grew from {first} to {last} segments, and nothing was lost"
                    ),
                    &[("CurCwnd_first", first), ("CurCwnd_last", last)],
                ),
                Evidence::new(
                    format!("each step takes a round trip of {}", time(rtt)),
                    &[("SmoothedRTT", rtt)],
                ),
            ],
            Self::RoundTripVaries {
                min_rtt,
                rtt,
                deviation,
                steal,
            } => {
                let mut evidence = vec![Evidence::new(
                    format!(
                        "the round trip is {} at best, {} on average, and deviates by {}: with a queue it would be steadier",
                        time(min_rtt),
                        time(rtt),
                        time(deviation)
                    ),
                    &[
                        ("MinRTT", min_rtt),
                        ("SmoothedRTT", rtt),
                        ("RTTVar", deviation),
                    ],
                )];
                evidence.extend(steal.map(|steal| {
                    Evidence::new(
                        format!(
                            "the hypervisor took {} of this machine's CPU time",
                            percent(steal)
                        ),
                        &[("steal", steal)],
                    )
                }));
                evidence
            }
            Self::StandingQueue {
                rtt,
                min_rtt,
                rate: sent,
                ..
            } => vec![
                Evidence::new(
                    format!(
                        "the round trip is {}; without a queue it is {}",
                        time(rtt),
                        time(min_rtt)
                    ),
                    &[("SmoothedRTT", rtt), ("MinRTT", min_rtt)],
                ),
                Evidence::new(
                    format!("it sends {} into the queue", rate(sent)),
                    &[("rate", sent)],
                ),
            ],
            Self::PathMarks {
                share,
                rate: sent,
                rtt,
                min_rtt,
            } => vec![Evidence::new(
                format!(
                    "queues on the path marked {} of the segments (ECN), which slowed the sender to {}; the round trip is {} on \
                     average, {} at best",
                    percent(share),
                    rate(sent),
                    time(rtt),
                    time(min_rtt)
                ),
                &[
                    ("marked", share),
                    ("rate", sent),
                    ("SmoothedRTT", rtt),
                    ("MinRTT", min_rtt),
                ],
            )],
            Self::BandwidthReached {
                rate: sent,
                bandwidth,
                rtt,
                min_rtt,
                has_bbr,
            } => vec![Evidence::new(
                format!(
                    "while it has data it sends {}, and {} {}; the round trip is {} on average, {} at best",
                    rate(sent),
                    match has_bbr {
                        true => "BBR has measured the bandwidth of the path as",
                        false => "taut_pipe paces at",
                    },
                    rate(bandwidth),
                    time(rtt),
                    time(min_rtt)
                ),
                &[
                    ("rate", sent),
                    ("bandwidth", bandwidth),
                    ("SmoothedRTT", rtt),
                    ("MinRTT", min_rtt),
                ],
            )],
            Self::PathFull {
                rate: sent,
                rtt,
                min_rtt,
            } => vec![Evidence::new(
                format!(
                    "it sends {} steadily; data waits in the path for {} on average, in a round trip of {}",
                    rate(sent),
                    time(rtt - min_rtt),
                    time(rtt)
                ),
                &[("rate", sent), ("SmoothedRTT", rtt), ("MinRTT", min_rtt)],
            )],
            Self::Unread { queued } => vec![Evidence::new(
                format!(
                    "{} wait to be read, and the application read nothing",
                    bytes(queued)
                ),
                &[("CurAppRQueue", queued)],
            )],
            Self::ReadsSlowly { share, queued } => vec![Evidence::new(
                format!(
                    "in {} of the samples more data waited to be read than the window had room for; in the last one {}",
                    percent(share),
                    bytes(queued)
                ),
                &[("full_share", share), ("CurAppRQueue", queued)],
            )],
            Self::ReadsLate { queued, wait } => vec![Evidence::new(
                format!(
                    "on average {} wait to be read, for {} each, and are acknowledged late",
                    bytes(queued),
                    time(wait)
                ),
                &[("CurAppRQueue_mean", queued), ("unread_time", wait)],
            )],
            Self::WindowUsed {
                window,
                rtt,
                rate: received,
                ..
            } => vec![Evidence::new(
                format!(
                    "no more than a window of {} arrives in each round trip of {}: {}",
                    bytes(window),
                    time(rtt),
                    rate(received)
                ),
                &[
                    ("CurRwinSent", window),
                    ("rcv_rtt", rtt),
                    ("rate", received),
                ],
            )],
            Self::NotHere { rate: received } => vec![Evidence::new(
                format!(
                    "{} arrived, and neither the window nor its reader limited that",
                    rate(received)
                ),
                &[("rate", received)],
            )],
        }
    }
}
