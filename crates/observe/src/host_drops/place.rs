//! Where the kernel drops packets, by the reasons that it gives (`enum skb_drop_reason`).

use serde::Serialize;

/// A part of the kernel that drops packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DropPlace {
    /// A rule of nftables or iptables.
    Netfilter,
    /// A filter, policer or BPF program of tc where packets come in.
    TcIngress,
    /// The same where packets go out.
    TcEgress,
    /// A queueing discipline: its queue is full, or it drops to shorten its queue.
    Qdisc,
    /// The queue of a tun or tap device, which a program or guest reads.
    TapQueue,
    /// The queue of received packets of a CPU.
    CpuBacklog,
    /// The queue of a socket that its application uses at that moment.
    SocketBacklog,
    /// The receive buffer of a socket.
    ReceiveBuffer,
    /// The accept queue of a listener.
    AcceptQueue,
    /// The filter of a socket, or of its cgroup.
    SocketFilter,
    /// An XDP program.
    Xdp,
    /// The reverse path filter.
    ReversePath,
    /// No route, or none that is allowed.
    Route,
    /// The neighbour (ARP, NDP) is unknown.
    Neighbour,
    /// The packet is larger than the MTU.
    Mtu,
    /// The checksum is wrong.
    Checksum,
    /// Another part of the kernel.
    Other,
}

/// The direction of a packet, as an end of its connection sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// This end sent it.
    Sent,
    /// The peer sent it.
    Received,
}

/// Packets of a connection that the kernel of this machine dropped in one direction, at one place and
/// for one reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostDrop {
    /// Where they were dropped.
    pub place: DropPlace,
    /// The kernel's reason, without its prefix.
    pub reason: Box<str>,
    /// The kernel's function, if its symbols are known.
    pub function: Option<Box<str>>,
    /// The device, safe for a terminal; `None` if the packets were at none.
    pub device: Option<Box<str>>,
    /// The network namespace, if it is not that of the connection.
    pub netns: Option<Box<str>>,
    /// Whether the packets certainly belong to this end's socket. Of others only the addresses and
    /// ports are known, which a guest, a container or another host can forge.
    pub is_own: bool,
    /// The command that runs another one in that namespace; `None` if it is the caller's.
    #[serde(skip)]
    pub enter: Option<Box<str>>,
    /// Whether this end sent the packets, or its peer.
    pub direction: Direction,
    /// Segments with data.
    pub data_segments: u64,
    /// Segments without: acknowledgements, SYN, FIN.
    pub other_segments: u64,
}

/// The reason of functions that give none.
pub(crate) const NO_REASON: &str = "NOT_SPECIFIED";
/// The prefix of the kernel's names.
const PREFIX: &str = "SKB_DROP_REASON_";

/// The reasons for which TCP is done with a packet, or which are no loss of this connection: the
/// packet is a duplicate, or for another host, or its socket is closed, or it probes a closed window.
const NO_LOSS: [&str; 28] = [
    "SKB_NOT_DROPPED_YET",
    "SKB_CONSUMED",
    "NO_SOCKET",
    "SOCKET_CLOSE",
    "OTHERHOST",
    "UNICAST_IN_L2_MULTICAST",
    "QUEUE_PURGE",
    "PACKET_SOCK_ERROR",
    "TCP_ABORT_ON_DATA",
    "TCP_ACK_UNSENT_DATA",
    "TCP_CLOSE",
    "TCP_FASTOPEN",
    "TCP_FLAGS",
    "TCP_INVALID_ACK_SEQUENCE",
    "TCP_INVALID_END_SEQUENCE",
    "TCP_INVALID_SEQUENCE",
    "TCP_INVALID_SYN",
    "TCP_OFOMERGE",
    "TCP_OFO_DROP",
    "TCP_OLD_ACK",
    "TCP_OLD_DATA",
    "TCP_OLD_SEQUENCE",
    "TCP_RESET",
    "TCP_RFC7323_PAWS",
    "TCP_RFC7323_PAWS_ACK",
    "TCP_RFC7323_TSECR",
    "TCP_TOO_OLD_ACK",
    "TCP_ZEROWINDOW",
];

/// Functions that free copies of packets for packet sockets (tcpdump).
const COPIES: [&str; 2] = ["packet_rcv", "tpacket_rcv"];

/// Returns the kernel's name of a reason without its prefix.
pub(super) fn short(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

/// Whether nothing is lost if a packet is dropped for this reason.
pub(super) fn is_no_loss(reason: &str) -> bool {
    NO_LOSS.contains(&reason)
}

/// Whether this function drops only copies, as far as is known: a function without a name may, if it
/// gives no reason.
pub(super) fn drops_copies(function: Option<&str>, reason: &str) -> bool {
    match function {
        Some(function) => COPIES.contains(&function),
        None => reason == NO_REASON,
    }
}

// === impl DropPlace ===

impl DropPlace {
    /// Returns the place of a reason, or of a function that gives none.
    pub(super) fn of(reason: &str, function: Option<&str>) -> Self {
        match reason {
            // CoDel has reasons only in newer kernels.
            NO_REASON => match function {
                Some("drop_func") => Self::Qdisc,
                Some(name) if name.starts_with("codel_") || name.starts_with("fq_codel_") => {
                    Self::Qdisc
                }
                _ => Self::Other,
            },
            "NETFILTER_DROP" => Self::Netfilter,
            "TC_INGRESS" => Self::TcIngress,
            "TC_EGRESS" => Self::TcEgress,
            "TC_CHAIN_NOTFOUND" | "TC_COOKIE_ERROR" | "TC_RECLASSIFY_LOOP" => Self::TcIngress,
            "CAKE_FLOOD" | "DUALPI2_STEP_DROP" => Self::Qdisc,
            reason if reason.starts_with("QDISC_") || reason.starts_with("FQ_") => Self::Qdisc,
            "FULL_RING" => Self::TapQueue,
            "CPU_BACKLOG" => Self::CpuBacklog,
            "SOCKET_BACKLOG" => Self::SocketBacklog,
            "SOCKET_RCVBUFF" | "PROTO_MEM" | "TCP_OFO_QUEUE_PRUNE" => Self::ReceiveBuffer,
            "TCP_LISTEN_OVERFLOW" => Self::AcceptQueue,
            "SOCKET_FILTER" | "BPF_CGROUP_EGRESS" => Self::SocketFilter,
            "XDP" => Self::Xdp,
            "IP_RPFILTER" => Self::ReversePath,
            "IP_OUTNOROUTES" | "IP_INNOROUTES" | "IP_INADDRERRORS" | "IP_LOCAL_SOURCE"
            | "IP_INVALID_SOURCE" | "IP_INVALID_DEST" | "IP_LOCALNET" | "IPV6DISABLED" => {
                Self::Route
            }
            reason if reason.starts_with("NEIGH_") => Self::Neighbour,
            "PKT_TOO_BIG" => Self::Mtu,
            "TCP_CSUM" | "IP_CSUM" | "SKB_CSUM" => Self::Checksum,
            _ => Self::Other,
        }
    }
}

// === impl HostDrop ===

impl HostDrop {
    /// Returns the number of segments.
    pub fn segments(&self) -> u64 {
        self.data_segments.saturating_add(self.other_segments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_the_receiver_has_already_is_no_loss() {
        for reason in ["TCP_OFO_DROP", "TCP_OLD_DATA", "TCP_RFC7323_PAWS"] {
            assert!(is_no_loss(reason), "{reason}");
        }
        assert!(!is_no_loss("SOCKET_RCVBUFF"));
        assert!(!is_no_loss(NO_REASON));
    }

    #[test]
    fn copies_for_packet_sockets_are_no_loss_and_may_be_freed_by_a_function_without_a_name() {
        assert!(drops_copies(Some("tpacket_rcv"), "PACKET_SOCK_ERROR"));
        assert!(drops_copies(None, NO_REASON));
        assert!(!drops_copies(None, "NETFILTER_DROP"));
        assert!(!drops_copies(Some("tun_net_xmit"), NO_REASON));
    }

    #[test]
    fn a_function_without_a_reason_has_a_place_if_it_is_of_codel() {
        let of = |function| DropPlace::of(NO_REASON, Some(function));
        assert_eq!(of("fq_codel_enqueue"), DropPlace::Qdisc);
        assert_eq!(of("drop_func"), DropPlace::Qdisc);
        assert_eq!(of("nf_hook_slow"), DropPlace::Other);
        assert_eq!(
            DropPlace::of("NETFILTER_DROP", Some("drop_func")),
            DropPlace::Netfilter
        );
        assert_eq!(DropPlace::of("TAP_FILTER", None), DropPlace::Other);
    }
}
