//! The pairs of relays to compare.

use crate::experiment::workload::measured::Job;

/// A way from the client to the server, usually through two relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Contender {
    /// No relay. It shows the cost of the two ends.
    Direct,
    /// `taut relay`, with its pool.
    Taut,
    /// `taut relay` without a pool. Only what a pool changes is measured.
    TautNoPool,
    /// HAProxy with its default buffers of 16 KiB.
    Haproxy,
    /// HAProxy with buffers of 64 KiB. It is the faster variant for bulk transfers, and is measured
    /// for those only.
    HaproxyLarge,
    /// nginx's stream module.
    Nginx,
    /// stunnel, with a thread for each connection.
    Stunnel,
}

// === impl Contender ===

impl Contender {
    pub(super) const ALL: [Self; 7] = [
        Self::Direct,
        Self::Taut,
        Self::TautNoPool,
        Self::Haproxy,
        Self::HaproxyLarge,
        Self::Nginx,
        Self::Stunnel,
    ];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Taut => "taut",
            Self::TautNoPool => "taut-no-pool",
            Self::Haproxy => "haproxy-tls",
            Self::HaproxyLarge => "haproxy-tls-large",
            Self::Nginx => "nginx-tls",
            Self::Stunnel => "stunnel",
        }
    }

    /// Returns whether the contender does this job.
    pub(super) fn does(self, job: Job) -> bool {
        match self {
            Self::HaproxyLarge => job == Job::Bulk,
            Self::TautNoPool => job == Job::Storm,
            _ => true,
        }
    }

    /// Returns whether the memory of idle sessions is measured.
    pub(super) fn idles(self) -> bool {
        !matches!(self, Self::HaproxyLarge | Self::TautNoPool)
    }

    /// Returns the port for clients. Each contender has its own ports.
    pub(super) fn near_port(self) -> u16 {
        8_100 + self as u16
    }

    /// Returns the port at which the far relay listens for the near one.
    pub(super) fn between_port(self) -> u16 {
        8_200 + self as u16
    }

    /// Returns the port of the server behind the contender.
    pub(super) fn server_port(self) -> u16 {
        9_000 + self as u16
    }
}
