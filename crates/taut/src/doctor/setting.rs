//! What sysctls and limits mean for Taut: pure, from a snapshot of them.

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

/// The sysctls that are judged.
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

/// The settings of a machine, as they were read.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// Values by dotted name, without those that the kernel does not have.
    pub(crate) sysctls: BTreeMap<String, String>,
    /// The hard limit of open descriptors of a process.
    pub(crate) open_files: u64,
    /// Bytes in a page.
    pub(crate) page: u64,
    /// Root is exempt from some limits.
    pub(crate) root: bool,
    /// What there is of the policy route of a relay that intercepts here now, for IPv4 and IPv6.
    /// `None`: none does, or it cannot be told.
    pub(crate) intercepting: Option<[Presence; 2]>,
}

// === impl Host ===

impl Host {
    fn text(&self, name: &str) -> Option<&str> {
        self.sysctls.get(name).map(String::as_str)
    }

    /// The number in place `field` of a sysctl that holds one or several.
    fn number(&self, name: &str, field: usize) -> Option<u64> {
        self.text(name)?.split(' ').nth(field)?.parse().ok()
    }
}

/// A setting as it was found here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The sysctl, or the name of the limit.
    pub(crate) id: &'static str,
    pub(crate) value: String,
    pub(crate) severity: Severity,
    /// In one clause: what this value does.
    pub(crate) why: String,
    /// Sets it right until the next boot.
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

/// The command that sets a sysctl until the next boot.
fn set(name: &str, value: impl std::fmt::Display) -> String {
    let value = value.to_string();
    match value.contains(' ') {
        true => format!("sysctl -w {name}='{value}'"),
        false => format!("sysctl -w {name}={value}"),
    }
}

/// Judges every setting, in the order of what it is about.
pub(crate) fn judge(host: &Host) -> Vec<Finding> {
    let mut findings = capacity::judge(host);
    findings.extend(window::judge(host));
    findings.extend(tcp::judge(host));
    findings.extend(routing::judge(host));
    findings
}
