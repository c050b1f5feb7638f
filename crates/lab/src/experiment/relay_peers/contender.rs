//! The relays to compare.

/// A way from the client to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Contender {
    /// No relay: the cost of the two ends.
    Direct,
    /// `taut relay`.
    Taut,
    /// HAProxy in TCP mode, which decides itself when to splice.
    Haproxy,
    /// HAProxy configured to splice: the faster variant for bulk transfers, and measured for these
    /// only.
    HaproxySplice,
    /// nginx's stream module.
    Nginx,
    /// socat, a process for each connection.
    Socat,
    /// `ssh -L` through a local sshd: the only one that also encrypts.
    Ssh,
}

// === impl Contender ===

impl Contender {
    pub(super) const ALL: [Self; 7] = [
        Self::Direct,
        Self::Taut,
        Self::Haproxy,
        Self::HaproxySplice,
        Self::Nginx,
        Self::Socat,
        Self::Ssh,
    ];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Taut => "taut",
            Self::Haproxy => "haproxy",
            Self::HaproxySplice => "haproxy-splice",
            Self::Nginx => "nginx",
            Self::Socat => "socat",
            Self::Ssh => "ssh",
        }
    }

    /// Whether only bulk transfers are measured.
    pub(super) fn is_for_bulk(self) -> bool {
        self == Self::HaproxySplice
    }

    /// Whether it is designed for thousands of sessions.
    pub(super) fn holds_thousands(self) -> bool {
        !matches!(self, Self::Socat | Self::Ssh)
    }

    /// Returns the port of the server behind it. Each contender has its own, so that its
    /// connections do not use ports, or slots of the kernel's tables, that another one needs.
    pub(super) fn server_port(self) -> u16 {
        9_000 + self as u16
    }
}
