//! Assesses the effect of sysctls and limits on Taut. Pure: takes a snapshot.

use std::collections::BTreeMap;

use serde::Serialize;
use taut_relay::intercept::Presence;

use super::severity::Severity;

mod capacity;
mod routing;
mod tcp;
mod window;

#[cfg(test)]
mod tests;

/// The assessed sysctls.
pub(crate) const SYSCTLS: &[&str] = &[
    "fs.file-max",
    "fs.nr_open",
    "fs.pipe-max-size",
    "fs.pipe-user-pages-soft",
    "net.core.somaxconn",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.conf.all.src_valid_mark",
    "net.ipv4.conf.default.rp_filter",
    "net.ipv4.ip_forward",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_abort_on_overflow",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_no_ssthresh_metrics_save",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
    "net.ipv6.conf.all.forwarding",
];

/// A snapshot of a machine's settings.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// Values by dotted name, without sysctls that the kernel lacks.
    pub(crate) sysctls: BTreeMap<String, String>,
    /// Hard limit of open descriptors per process.
    pub(crate) open_files: u64,
    /// Page size in bytes.
    pub(crate) page: u64,
    /// Whether this process is root, which is exempt from some limits.
    pub(crate) root: bool,
    /// The state of the policy routes for IPv4 and IPv6 while a relay intercepts on this machine.
    /// `None` if no relay intercepts, or if that is unknown.
    pub(crate) intercepting: Option<[Presence; 2]>,
}

// === impl Host ===

impl Host {
    fn text(&self, name: &str) -> Option<&str> {
        self.sysctls.get(name).map(String::as_str)
    }

    /// Returns number `field`, counted from 0, of a sysctl with one or more numbers.
    fn number(&self, name: &str, field: usize) -> Option<u64> {
        self.text(name)?.split(' ').nth(field)?.parse().ok()
    }
}

/// The result for one setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The sysctl, or the name of the limit.
    pub(crate) id: &'static str,
    pub(crate) value: String,
    pub(crate) severity: Severity,
    /// The effect of this value, in one clause.
    pub(crate) why: String,
    /// The command that sets a better value until the next boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
}

// === impl Finding ===

impl Finding {
    fn fine(id: &'static str, value: impl ToString, why: impl Into<String>) -> Self {
        Self {
            id,
            value: value.to_string(),
            severity: Severity::Fine,
            why: why.into(),
            command: None,
        }
    }

    fn slows(
        id: &'static str,
        value: impl ToString,
        why: impl Into<String>,
        command: String,
    ) -> Self {
        Self {
            id,
            value: value.to_string(),
            severity: Severity::Slows,
            why: why.into(),
            command: Some(command),
        }
    }
}

/// Returns the command that sets a sysctl until the next boot.
fn set(name: &str, value: impl std::fmt::Display) -> String {
    let value = value.to_string();
    match value.contains(' ') {
        true => format!("sysctl -w {name}='{value}'"),
        false => format!("sysctl -w {name}={value}"),
    }
}

/// Assesses every setting, ordered by topic.
pub(crate) fn assess(host: &Host) -> Vec<Finding> {
    let mut findings = capacity::assess(host);
    findings.extend(window::assess(host));
    findings.extend(tcp::assess(host));
    findings.extend(routing::assess(host));
    findings
}
