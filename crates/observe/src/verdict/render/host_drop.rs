//! Renders the packets that the kernel of this machine dropped: what dropped them, and what to do.

use std::borrow::Cow;

use super::Evidence;
use super::remedy::ALLOW_PATH_MTU;
use super::units::segments;
use crate::namespaces::OWN;
use crate::verdict::{Direction, DropPlace, HostDrop};

/// The maximum number of places that are named at which packets were dropped.
const PLACES: usize = 3;

/// Returns the evidence for drops on this machine: the sum, and the places where most were dropped.
pub(super) fn dropped_here(dropped: f64, lost: Option<f64>, drops: &[HostDrop]) -> Vec<Evidence> {
    let (sum, figures) = match lost {
        Some(lost) => (
            format!("this host dropped {}; {lost} were lost", segments(dropped)),
            vec![("dropped_here", dropped), ("lost", lost)],
        ),
        None => (
            format!("this host dropped {}", segments(dropped)),
            vec![("dropped_here", dropped)],
        ),
    };
    let mut evidence = vec![Evidence::new(sum, &figures)];
    evidence.extend(drops.iter().take(PLACES).map(|drop| Evidence {
        text: drop.sentence(),
        figures: vec![("segments", drop.segments() as f64)],
        drop: Some(drop.clone()),
    }));
    evidence
}

// === impl DropPlace ===

impl DropPlace {
    /// Returns the subject of a sentence that says what drops packets.
    fn subject(self) -> &'static str {
        match self {
            Self::Netfilter => "a rule of netfilter (nftables or iptables)",
            Self::TcIngress => "a tc ingress filter",
            Self::TcEgress => "a tc egress filter",
            Self::Qdisc => "the queueing discipline",
            Self::TapQueue => "the full queue of a tap device",
            Self::CpuBacklog => "the full backlog of a CPU",
            Self::SocketBacklog => "the full backlog of the receiving socket",
            Self::ReceiveBuffer => "the full receive buffer of the socket",
            Self::AcceptQueue => "the full accept queue of the listener",
            Self::SocketFilter => "a filter of the socket or of its cgroup",
            Self::Xdp => "an XDP program",
            Self::ReversePath => "the reverse path filter",
            Self::Route | Self::Neighbour | Self::Mtu | Self::Checksum | Self::Other => {
                "the kernel"
            }
        }
    }

    /// Returns what is wrong with the packets, if that says more than what drops them.
    fn defect(self) -> Option<&'static str> {
        match self {
            Self::Route => Some("had no route"),
            Self::Neighbour => Some("had no link address (ARP, NDP) of the next hop"),
            Self::Mtu => Some("exceed the MTU"),
            Self::Checksum => Some("had a wrong checksum"),
            _ => None,
        }
    }
}

// === impl HostDrop ===

impl HostDrop {
    fn sentence(&self) -> String {
        let device = self.device.as_ref();
        let device = device.map_or(String::new(), |device| format!(" on {device}"));
        let netns = self.netns.as_ref();
        let netns = match netns.map(|netns| &**netns) {
            None => String::new(),
            Some(OWN) => " in the namespace of this command".to_owned(),
            Some(netns) => format!(" in namespace {netns}"),
        };
        let function = self.function.as_ref();
        let function = function.map_or(String::new(), |function| format!(" in {function}"));
        let end = match self.direction {
            Direction::Sent => "this end",
            Direction::Received => "the peer",
        };
        let segments = format!("{} that {end} sent", segments(self.segments() as f64));
        let what = match self.place.defect() {
            Some(defect) => format!("{segments} {defect}{device}{netns}"),
            None => format!("{}{device}{netns} dropped {segments}", self.place.subject()),
        };
        format!("{what} ({}{function})", self.reason)
    }

    pub(super) fn remedy(&self) -> Cow<'static, str> {
        let device = self.device.as_deref();
        let device = device
            .filter(|name| is_safe_in_command(name))
            .unwrap_or("DEVICE");
        let enter = self.enter.as_ref();
        let enter = enter.map_or(String::new(), |enter| format!("{enter} "));
        let text = match self.place {
            DropPlace::Netfilter => {
                return format!(
                    "find the rule that drops them: `{enter}nft list ruleset` or `{enter}iptables-save -c`; a rule may have a `limit`"
                )
                .into();
            }
            DropPlace::TcIngress => {
                return format!(
                    "`{enter}tc -s filter show dev {device} ingress` shows the filter: raise its rate, or remove it"
                )
                .into();
            }
            DropPlace::TcEgress => {
                return format!(
                    "`{enter}tc -s filter show dev {device} egress` shows the filter: raise its rate, or remove it"
                )
                .into();
            }
            DropPlace::Qdisc => {
                return format!(
                    "`{enter}tc -s qdisc show dev {device}` shows its rate and limit: raise them, or use fq_codel or CAKE"
                )
                .into();
            }
            DropPlace::TapQueue => {
                return format!(
                    "the guest or program behind {device} reads too slowly: give it more CPU, or more queues; `{enter}ip link set \
                     {device} txqueuelen 10000` lengthens the queue"
                )
                .into();
            }
            DropPlace::CpuBacklog => {
                "raise net.core.netdev_max_backlog, or spread the packets over more CPUs (RPS)"
            }
            DropPlace::SocketBacklog | DropPlace::ReceiveBuffer => {
                "give the receiving socket a larger buffer (SO_RCVBUF, net.ipv4.tcp_rmem), or have its application read sooner; \
                 net.ipv4.tcp_mem limits all buffers together"
            }
            DropPlace::AcceptQueue => {
                "have the listener accept sooner, or lengthen its queue (the backlog of listen(), net.core.somaxconn)"
            }
            DropPlace::SocketFilter => {
                "look for BPF programs of the socket or the cgroup: `bpftool cgroup tree`"
            }
            DropPlace::Xdp => {
                return format!(
                    "look for the XDP program: `{enter}ip -details link show dev {device}`"
                )
                .into();
            }
            DropPlace::ReversePath => {
                return format!(
                    "add the route back to the sender, or set net.ipv4.conf.{device}.rp_filter=2"
                )
                .into();
            }
            DropPlace::Route => {
                return format!("`{enter}ip route get ADDRESS` shows which route is missing")
                    .into();
            }
            DropPlace::Neighbour => {
                return format!(
                    "check that the next hop is up: `{enter}ip neigh show dev {device}`"
                )
                .into();
            }
            DropPlace::Mtu => ALLOW_PATH_MTU,
            DropPlace::Checksum => {
                return format!(
                    "find what damages packets; checksum offload may be broken: `{enter}ethtool -K {device} rx off tx off`"
                )
                .into();
            }
            DropPlace::Other => "look up the kernel's function and reason in the evidence",
        };
        text.into()
    }
}

/// Returns the command that runs another one in a network namespace, given the namespace's name as
/// it is reported; `None` if it is the caller's.
pub(crate) fn enter(netns: &str) -> Option<Box<str>> {
    if netns == OWN {
        return None;
    }
    let pid = netns.strip_prefix("pid:");
    let pid = pid.filter(|pid| pid.parse::<u32>().is_ok());
    let command = match pid {
        Some(pid) => format!("nsenter -t {pid} -n"),
        None if is_safe_in_command(netns) => format!("ip netns exec {netns}"),
        // Without a name, or with one that a shell would not take as one word.
        None => "nsenter -t PID -n".to_owned(),
    };
    Some(command.into())
}

/// Whether a name can be pasted into a shell as one word. Whoever owns a container or a guest names
/// its devices.
fn is_safe_in_command(name: &str) -> bool {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"_.@-".contains(&byte);
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(is_safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_entered_by_its_name_or_by_a_process_in_it() {
        for (netns, command) in [
            ("-", None),
            ("far", Some("ip netns exec far")),
            ("pid:812", Some("nsenter -t 812 -n")),
            ("pid:$(reboot)", Some("nsenter -t PID -n")),
            ("net:[4026531840]", Some("nsenter -t PID -n")),
            ("a b", Some("nsenter -t PID -n")),
        ] {
            assert_eq!(enter(netns).as_deref(), command, "{netns}");
        }
    }
}
