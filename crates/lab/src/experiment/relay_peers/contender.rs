//! Who is compared.

/// A way from the client to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Contender {
    /// No relay: what the two ends take by themselves.
    Direct,
    /// `taut relay`.
    Taut,
    /// HAProxy, mode tcp.
    Haproxy,
    /// nginx's stream module.
    Nginx,
    /// socat, a process for each connection.
    Socat,
    /// `ssh -L` through a local sshd: the only one that also encrypts.
    Ssh,
}

// === impl Contender ===

impl Contender {
    pub(super) const ALL: [Self; 6] = [
        Self::Direct,
        Self::Taut,
        Self::Haproxy,
        Self::Nginx,
        Self::Socat,
        Self::Ssh,
    ];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Taut => "taut",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Socat => "socat",
            Self::Ssh => "ssh",
        }
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
