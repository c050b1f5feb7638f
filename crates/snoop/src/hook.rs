//! Hooks of a tap that others use.

/// A hook at which others see or change the packets of a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignHook {
    /// BPF programs or tc filters at egress, before or after snoop.
    Egress,
    /// BPF programs or tc filters at ingress, after snoop.
    Ingress,
    /// An XDP program, before snoop.
    Xdp,
    /// Chains of nftables at ingress or egress.
    Nftables,
}

// === impl ForeignHook ===

impl ForeignHook {
    /// Returns what this device has, why early ACKs are not safe with it, and what to do, in sentences
    /// without the last full stop.
    pub(crate) fn sentence(self, name: &str) -> String {
        match self {
            Self::Egress => format!(
                "{name} has other BPF programs or tc filters at its egress, which see each segment twice and may drop one after it was \
                 acknowledged. Move them to the bridge's other ports, or leave {name} out; `tc filter show dev {name} egress` and \
                 `bpftool net show dev {name}` list them"
            ),
            Self::Ingress => format!(
                "{name} has other BPF programs or tc filters at its ingress, which may change or drop what the guest says after snoop has \
                 relied on it. Move them to the bridge's other ports, or leave {name} out; `tc filter show dev {name} ingress` and \
                 `bpftool net show dev {name}` list them"
            ),
            Self::Xdp => format!(
                "{name} has an XDP program, which may take the guest's frames before snoop sees them. Remove it, or leave {name} out: \
                 `ip link set dev {name} xdp off` (`xdpgeneric off` if `ip link show dev {name}` says xdpgeneric)"
            ),
            Self::Nftables => format!(
                "{name} has chains of nftables at its ingress or egress, which may drop what the guest says or is sent, unseen by snoop. \
                 Move them to the bridge's other ports, or leave {name} out; `nft list ruleset` lists them"
            ),
        }
    }
}
