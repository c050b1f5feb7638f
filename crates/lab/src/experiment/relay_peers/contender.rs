//! Who is compared.

/// A way from the client to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Contender {
    /// No relay: what the two ends take by themselves.
    Direct,
    /// `taut relay`.
    Taut,
    /// HAProxy, mode tcp, left to find out by itself when to splice.
    Haproxy,
    /// HAProxy told to splice: in bulk it is the faster, and bulk is all it is measured at.
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

    /// Whether bulk is all it is measured at.
    pub(super) fn is_for_bulk(self) -> bool {
        self == Self::HaproxySplice
    }

    /// Whether thousands of sessions at once are something it is made for.
    pub(super) fn holds_thousands(self) -> bool {
        !matches!(self, Self::Socat | Self::Ssh)
    }

    /// The port of the server behind it: each has its own, so that nobody's connections take
    /// ports, or slots of the kernel's tables, that another's would need.
    pub(super) fn server_port(self) -> u16 {
        9_000 + self as u16
    }
}
