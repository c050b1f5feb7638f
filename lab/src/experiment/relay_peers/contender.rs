//! The relays to compare.

use strum::IntoStaticStr;

/// A way from the client to the server, usually through a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum Contender {
    /// No relay. It shows the cost of the two ends.
    Direct,
    /// `taut relay`.
    Taut,
    /// HAProxy in TCP mode, which decides itself when to splice.
    Haproxy,
    /// HAProxy configured to splice. It is the faster variant for bulk transfers, and is measured
    /// for those only.
    HaproxySplice,
    /// nginx's stream module.
    Nginx,
    /// socat, with a process for each connection.
    Socat,
    /// `ssh -L` through a local sshd, the only contender that also encrypts.
    Ssh,
    /// `taut relay --no-sandbox`. It shows the cost of the sandbox.
    TautNoSandbox,
}

// === impl Contender ===

impl Contender {
    pub(super) const ALL: [Self; 8] = [
        Self::Direct,
        Self::Taut,
        Self::Haproxy,
        Self::HaproxySplice,
        Self::Nginx,
        Self::Socat,
        Self::Ssh,
        Self::TautNoSandbox,
    ];

    pub(super) fn label(self) -> &'static str {
        self.into()
    }

    /// Returns whether only bulk transfers are measured.
    pub(super) fn is_for_bulk(self) -> bool {
        self == Self::HaproxySplice
    }

    /// Returns whether the contender is designed for thousands of sessions.
    pub(super) fn holds_thousands(self) -> bool {
        !matches!(self, Self::Socat | Self::Ssh)
    }

    /// Returns the port of the server behind the contender. Each contender has its own server port,
    /// so that its connections do not use up ports, or slots of the kernel's tables, that another
    /// contender needs.
    pub(super) fn server_port(self) -> u16 {
        9_000 + self as u16
    }
}
