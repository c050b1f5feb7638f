//! Renders a verdict in English and in JSON.

mod host_drop;

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::{SerializeStruct as _, Serializer};

use super::finding::{Cause, Sizing};
use super::{Confidence, Factor, Gain, HostDrop, Verdict};
use crate::tcp_settings::TcpSettings;
pub(crate) use host_drop::enter;

const ALLOW_PATH_MTU: &str = "allow ICMP \"fragmentation needed\", set the MTU of the tunnel, or set net.ipv4.tcp_mtu_probing=1";
const ALLOW_PATH_MTU_PROBED: &str =
    "allow ICMP \"fragmentation needed\", or set the MTU of the tunnel";
/// The setting without which the kernel enlarges no receive buffer.
const TUNE: &str = "net.ipv4.tcp_moderate_rcvbuf";
const SCALE_WINDOWS: &str =
    "set net.ipv4.tcp_window_scaling=1: it is 0, so a window of a connection holds 64 KiB at most";
const ASK_FOR_RATE: &str = "ask the operator of the path for the agreed rate; pacing at that rate (SO_MAX_PACING_RATE, BBR) avoids the losses";
const ASK_FOR_RATE_OF_BBR: &str = "ask the operator of the path for the agreed rate; SO_MAX_PACING_RATE at that rate avoids the losses";

/// A sentence that supports a verdict, with its figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// The sentence, without a full stop.
    pub text: String,
    /// The figures by name, after RFC 4898 where it defines the figure. In bytes, seconds,
    /// segments, or shares from 0 to 1.
    pub figures: Vec<(&'static str, f64)>,
    /// The packets that the sentence says were dropped on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop: Option<HostDrop>,
}

// === impl Verdict ===

impl Verdict {
    /// Returns the sentences that support the verdict.
    pub fn evidence(&self) -> Vec<Evidence> {
        self.causes.iter().flat_map(Cause::evidence).collect()
    }

    /// Returns a remedy, or `None` if there is nothing to do.
    pub fn remedy(&self) -> Option<Cow<'static, str>> {
        match (self.factor, self.causes.first()) {
            (Factor::Unclear, _) => Some("watch it for longer, or at the other end".into()),
            (_, cause) => cause?.remedy(&self.settings),
        }
    }
}

/// Serialises the share of each factor by the factor's name.
struct Shares<'a>(&'a [(Factor, f64)]);

impl Serialize for Shares<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(factor, share)| (factor.name(), share)))
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Verdict", 7)?;
        object.serialize_field("factor", &self.factor)?;
        object.serialize_field("confidence", &self.confidence)?;
        object.serialize_field("weight", &self.weight)?;
        object.serialize_field("shares", &Shares(&self.shares))?;
        object.serialize_field("evidence", &self.evidence())?;
        object.serialize_field("remedy", &self.remedy())?;
        object.serialize_field("gain", &self.gain)?;
        object.end()
    }
}

// === impl Confidence ===

impl Confidence {
    /// Returns the suffix of a sentence that is not sure.
    pub fn doubt(self) -> &'static str {
        match self {
            Self::Sure => "",
            Self::Likely => " (likely)",
            Self::Unclear => " (not clear)",
        }
    }
}

// === impl Factor ===

impl Factor {
    /// Returns the predicate of a sentence whose subject is the connection.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Idle => "is idle",
            Self::SenderApplication => "is limited by the sending application",
            Self::SendBuffer => "is limited by the send buffer",
            Self::ReceiverApplication => {
                "is limited by the receiving application, which reads slowly"
            }
            Self::ReceiveBuffer => "is limited by the receive buffer",
            Self::SlowStart => "is limited by slow start: its congestion window is still growing",
            Self::Loss => "is limited by loss on the path",
            Self::Queue => "fills the path, and a long queue stands in it",
            Self::Pacing => "is limited by its configured pacing rate",
            Self::RateLimit => {
                "is limited by a policer on the path, which drops what exceeds its rate"
            }
            Self::Descheduled => "waits for a machine that is repeatedly descheduled",
            Self::CpuQuota => "is limited by the CPU quota of its application",
            Self::HostDrops => "is limited by packets that the kernel drops on this host",
            Self::PathMtu => "is limited by the path MTU: full segments do not get through",
            Self::Timeouts => "is limited by time-outs: nothing is answered",
            Self::Link => "uses all that the path can carry: there is nothing to repair",
            Self::Peer => "is limited at its other end, where the cause can be seen",
            Self::Unclear => "has no limit that is recognised",
        }
    }

    /// Returns subject and verb of a sentence whose object is the connection.
    fn limits(self) -> &'static str {
        match self {
            Self::SenderApplication => "the sending application limits",
            Self::SendBuffer => "the send buffer limits",
            Self::ReceiveBuffer => "the peer's window limits",
            Self::Loss => "loss on the path limits",
            Self::Pacing => "its configured pacing rate limits",
            Self::Link => "the link limits",
            _ => "another factor limits",
        }
    }
}

// === impl Cause ===

impl Cause {
    fn evidence(&self) -> Vec<Evidence> {
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

    fn remedy(&self, settings: &TcpSettings) -> Option<Cow<'static, str>> {
        let text = match *self {
            Self::NoData { .. }
            | Self::PathFull { .. }
            | Self::PathMarks { .. }
            | Self::BandwidthReached { .. } => return None,
            Self::SendBufferFull { sizing, .. } => {
                return Some(sizing.remedy("send", "SO_SNDBUF", "net.ipv4.tcp_wmem", true));
            }
            Self::WindowUsed {
                has_scaling: true,
                scale_bound: Some(bound),
                ..
            }
            | Self::PeerWindowSmall {
                has_scaling: true,
                scale_bound: Some(bound),
                ..
            } => return Some(scale_remedy(bound)),
            Self::WindowUsed {
                has_scaling: true,
                sizing,
                ..
            } => {
                let is_tuned = settings.tunes_receive_buffers.unwrap_or(true);
                return Some(sizing.remedy("receive", "SO_RCVBUF", "net.ipv4.tcp_rmem", is_tuned));
            }
            Self::WindowUsed { .. }
            | Self::PeerWindowSmall {
                has_scaling: false, ..
            } if settings.scales_windows == Some(false) => SCALE_WINDOWS,
            Self::WindowUsed { .. } if settings.scales_windows == Some(true) => {
                "the peer, or a firewall on the path, refuses window scaling: without it a window holds 64 KiB at most"
            }
            Self::WindowUsed { .. } => {
                "enable window scaling: without it a window holds 64 KiB at most"
            }
            Self::HandshakeUnanswered { .. } => {
                "check that the peer is up, and what drops its packets (firewall, route)"
            }
            Self::MachineDescheduled { sends: true, .. } => {
                "give this machine a larger share of CPU; inside it, run taut guest"
            }
            Self::MachineDescheduled { .. } => {
                "give this machine a larger share of CPU; on its host, run taut snoop"
            }
            Self::QuotaUsedUp { .. } => {
                "raise the quota in that file (systemd: CPUQuota=; Kubernetes: the CPU limit of the container), or remove it"
            }
            Self::DroppedHere { ref drops, .. } => return Some(drops.first()?.remedy()),
            Self::NothingToSend {
                waiting: Some(_), ..
            } => {
                "save round trips: send several requests at a time, or put a relay nearer to the peer (taut relay; taut mesh plan --for FILTER --rtt FILE says which)"
            }
            Self::NothingToSend { .. } => "nothing in TCP: look at the application",
            Self::PeerWindowSmall {
                has_scaling: false, ..
            } => "the peer uses no window scaling, so it can offer 64 KiB at most",
            Self::PeerWindowSmall { .. } => {
                "at the peer: a larger receive buffer; its application may set SO_RCVBUF, net.ipv4.tcp_rmem may be small, or net.ipv4.tcp_moderate_rcvbuf may be 0"
            }
            Self::PeerReadsSlowly { .. } => {
                "nothing in TCP: the application at the peer reads slowly"
            }
            Self::PeerAcknowledgesLate { .. } => {
                "at the peer: its application reads slowly, or in large parts that are far apart"
            }
            Self::FullSegmentsUnanswered { .. } | Self::SegmentsShrank { .. } => {
                match settings.probes_mtu {
                    Some(true) => ALLOW_PATH_MTU_PROBED,
                    _ => ALLOW_PATH_MTU,
                }
            }
            Self::Unanswered { .. } => {
                "check that the peer is up, and what drops packets on the path (firewall, conntrack, route)"
            }
            Self::SteadyRate { has_bbr: true, .. } => ASK_FOR_RATE_OF_BBR,
            Self::SteadyRate { .. } | Self::EvenSignals { .. } => ASK_FOR_RATE,
            Self::LossWithoutQueue { has_bbr: true, .. } => {
                "repair what loses packets; or put a relay before the lossy part (taut relay; taut mesh plan --for FILTER --rtt FILE says which)"
            }
            Self::LossWithoutQueue { .. } => {
                "repair what loses packets; or use BBR, which loss slows less; or put a relay before the lossy part (taut relay; taut mesh plan --for FILTER --rtt FILE says which)"
            }
            Self::Paced { .. } => "the application, or its manager, sets SO_MAX_PACING_RATE",
            Self::WindowGrows { .. } => {
                "keep connections open, or put a relay on the path (taut relay; taut mesh plan --for FILTER --rtt FILE says which)"
            }
            Self::RoundTripVaries { steal: Some(_), .. } => {
                "give this machine a larger share of CPU; inside it, if it is the sender, run taut guest"
            }
            Self::RoundTripVaries { .. } => {
                "on the host of the guest that receives, run taut snoop; or give the waiting machine a larger share of CPU"
            }
            Self::StandingQueue { has_bbr: true, .. } => {
                "shorten the queue where it stands (fq_codel, CAKE); the rate will be the same"
            }
            Self::StandingQueue { .. } => {
                "shorten the queue where it stands (fq_codel, CAKE), or use BBR at this end; the rate will be the same"
            }
            Self::Unread { .. } => "nothing in TCP: the application at this end does not read",
            Self::ReadsSlowly { .. } => "nothing in TCP: the application at this end reads slowly",
            Self::ReadsLate { .. } => {
                "nothing in TCP: the application at this end reads late, or in large parts that are far apart"
            }
            Self::NotHere { .. } => "run taut why at the other end",
        };
        Some(text.into())
    }
}

/// Returns the remedy for a window that is as wide as the connection's window scale allows.
fn scale_remedy(bound: f64) -> Cow<'static, str> {
    let bound = bytes(bound);
    format!(
        "only a new connection can have a wider window than {bound}: the handshake fixes the window scale by the receive buffer at \
         that time (SO_RCVBUF, net.ipv4.tcp_rmem)"
    )
    .into()
}

// === impl Gain ===

impl Gain {
    /// Returns the prediction as a sentence about the connection, without a full stop.
    pub fn sentence(&self) -> String {
        let rate = rate(self.rate);
        match self.next {
            Some(next) => format!(
                "without that it would carry about {rate}, and then {} it",
                next.limits()
            ),
            None => format!("without that it would carry at least {rate}"),
        }
    }
}

// === impl Evidence ===

impl Evidence {
    fn new(text: String, figures: &[(&'static str, f64)]) -> Self {
        Self {
            text,
            figures: figures.to_vec(),
            drop: None,
        }
    }
}

// === impl Sizing ===

impl Sizing {
    /// Returns a remedy for a small buffer. `direction` is "send" or "receive"; `option` and
    /// `sysctl` name that buffer's settings. `is_tuned`: the kernel enlarges such buffers.
    fn remedy(
        self,
        direction: &str,
        option: &str,
        sysctl: &str,
        is_tuned: bool,
    ) -> Cow<'static, str> {
        let text = match self {
            Self::Application if !is_tuned => format!(
                "the application sets {option}, and {TUNE} is 0: either keeps the kernel from sizing the buffer. Set a larger {option}, \
                 or none and {TUNE}=1"
            ),
            Self::Sysctl { max, .. } if !is_tuned => format!(
                "set {TUNE}=1 and raise the third value of {sysctl}, which is {}: the kernel enlarges no {direction} buffer while {TUNE} \
                 is 0",
                bytes(max as f64)
            ),
            _ if !is_tuned => {
                format!("set {TUNE}=1: it is 0, so the kernel enlarges no {direction} buffer")
            }
            Self::Application => format!(
                "the application sets {option}, which keeps the kernel from sizing the buffer: it should not"
            ),
            Self::Sysctl { max, is_automatic } => {
                let unless = match is_automatic {
                    false => format!(", unless the application sets {option}"),
                    true => String::new(),
                };
                let max = bytes(max as f64);
                format!("raise the third value of {sysctl}, which is {max}{unless}")
            }
            Self::Automatic => {
                return "the kernel sizes it and may still grow it; if it does not, net.ipv4.tcp_mem limits all buffers together"
                    .into();
            }
            Self::Undetermined { size, max } => {
                let (size, max) = (bytes(size as f64), bytes(max as f64));
                format!(
                    "the buffer is {size}, and the kernel may grow it to {max}: if it stays so, the application sets {option}, which \
                     keeps the kernel from that"
                )
            }
            Self::Unknown => format!("a larger {direction} buffer"),
        };
        text.into()
    }
}

/// Formats a rate, given in bytes a second, in bits a second.
fn rate(bytes: f64) -> String {
    let bits = bytes * 8.0;
    match bits {
        bits if bits >= 1e9 => format!("{:.2} Gbit/s", bits / 1e9),
        bits if bits >= 1e6 => format!("{:.1} Mbit/s", bits / 1e6),
        bits => format!("{:.1} kbit/s", bits / 1e3),
    }
}

fn segments(count: f64) -> String {
    match count {
        1.0 => "a segment".to_owned(),
        count => format!("{count} segments"),
    }
}

fn bytes(bytes: f64) -> String {
    match bytes {
        bytes if bytes >= 1048576.0 => format!("{:.1} MiB", bytes / 1048576.0),
        bytes if bytes >= 1024.0 => format!("{:.0} KiB", bytes / 1024.0),
        bytes => format!("{bytes:.0} B"),
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 0.001 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.0} us", seconds * 1e6),
    }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        percent if percent >= 10.0 => format!("{percent:.0} %"),
        percent => format!("{percent:.2} %"),
    }
}
