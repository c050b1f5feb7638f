//! What removes a cause.

use std::borrow::Cow;
use std::net::SocketAddr;

use super::units::bytes;
use crate::tcp_settings::TcpSettings;
use crate::verdict::finding::{Cause, Sizing};

pub(super) const ALLOW_PATH_MTU: &str = "allow ICMP \"fragmentation needed\", set the MTU of the tunnel, or set net.ipv4.tcp_mtu_probing=1";
const ALLOW_PATH_MTU_PROBED: &str =
    "allow ICMP \"fragmentation needed\", or set the MTU of the tunnel";
/// The setting without which the kernel enlarges no receive buffer.
const TUNE: &str = "net.ipv4.tcp_moderate_rcvbuf";
const SCALE_WINDOWS: &str =
    "set net.ipv4.tcp_window_scaling=1: it is 0, so a window of a connection holds 64 KiB at most";
const ASK_FOR_RATE: &str = "ask the operator of the path for the agreed rate; pacing at that rate (SO_MAX_PACING_RATE, BBR) avoids the losses";
const ASK_FOR_RATE_OF_BBR: &str = "ask the operator of the path for the agreed rate; SO_MAX_PACING_RATE at that rate avoids the losses";

impl Cause {
    /// Returns a remedy. `ends`: address and port of this end and of the peer, for commands.
    pub(super) fn remedy(
        &self,
        settings: &TcpSettings,
        ends: Option<(SocketAddr, SocketAddr)>,
    ) -> Option<Cow<'static, str>> {
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
                return Some(relay(
                    "save round trips: send several requests at a time, or put a relay nearer to the peer",
                    ends,
                ));
            }
            Self::NothingToSend { .. } => "nothing in TCP: look at the application",
            Self::PeerWindowSmall {
                has_scaling: false, ..
            } => "the peer uses no window scaling, so it can offer 64 KiB at most",
            Self::PeerWindowSmall { .. } => {
                "at the peer: `taut tune --apply` enlarges its receive buffer. To keep it: its application may set SO_RCVBUF, net.ipv4.tcp_rmem may be small, or net.ipv4.tcp_moderate_rcvbuf may be 0"
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
                return Some(relay(
                    "repair what loses packets, or put a relay before the lossy part",
                    ends,
                ));
            }
            Self::LossWithoutQueue { .. } => {
                return Some(relay(
                    "repair what loses packets, or use BBR, which loss slows less, or put a relay before the lossy part",
                    ends,
                ));
            }
            Self::Paced { .. } => "the application, or its manager, sets SO_MAX_PACING_RATE",
            Self::WindowGrows { .. } => {
                return Some(relay(
                    "keep connections open; or begin faster, `taut tune --apply --initcwnd 20`; or put a relay on the path",
                    ends,
                ));
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
            Self::NotHere { .. } => {
                return Some(ends.map_or("run `taut why` at the other end".into(), ask_other_end));
            }
        };
        Some(text.into())
    }
}

/// Returns a remedy with a relay, and the commands that choose one of a mesh.
fn relay(remedy: &str, ends: Option<(SocketAddr, SocketAddr)>) -> Cow<'static, str> {
    let filter = ends.map_or("FILTER".to_owned(), filter);
    format!(
        "{remedy} (`taut relay`); to choose one of your mesh: `taut mesh rtt --table > rtt.txt`, then `taut mesh plan --for '{filter}' --rtt rtt.txt`"
    )
    .into()
}

/// Returns the command that observes both ends of a connection.
fn ask_other_end(ends: (SocketAddr, SocketAddr)) -> Cow<'static, str> {
    let ip = ends.1.ip().to_canonical();
    let filter = filter(ends);
    format!("observe the sender, too: `taut why {filter} --with root@{ip}`").into()
}

/// Returns a filter for this connection and those like it: of the two ports the server's, which is
/// usually the lower one.
fn filter((local, remote): (SocketAddr, SocketAddr)) -> String {
    let (port, number) = match local.port() < remote.port() {
        true => ("sport", local.port()),
        false => ("dport", remote.port()),
    };
    let ip = remote.ip().to_canonical();
    format!("dst {ip} and {port} {number}")
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
                "`taut tune --apply` enlarges it. To keep it: the application should not set {option}, which keeps the kernel from sizing the \
                 buffer"
            ),
            Self::Sysctl { max, is_automatic } => {
                let unless = match is_automatic {
                    false => format!(", unless the application sets {option}"),
                    true => String::new(),
                };
                let max = bytes(max as f64);
                format!(
                    "`taut tune --apply` enlarges it. To keep it: raise the third value of {sysctl}, which is {max}{unless}"
                )
            }
            Self::Automatic => {
                return "the kernel sizes it and may still grow it; if it does not, net.ipv4.tcp_mem limits all buffers together"
                    .into();
            }
            Self::Undetermined { size, max } => {
                let (size, max) = (bytes(size as f64), bytes(max as f64));
                format!(
                    "the buffer is {size}, and the kernel may grow it to {max}: if it stays so, the application sets {option}, which \
                     keeps the kernel from that, and `taut tune --apply` enlarges it"
                )
            }
            Self::Unknown => format!("a larger {direction} buffer: `taut tune --apply`"),
        };
        text.into()
    }
}
