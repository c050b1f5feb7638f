//! Assesses the effect of sysctls and limits on Taut. Pure: takes a snapshot.

use std::collections::BTreeMap;

use serde::Serialize;
use taut_relay::intercept::Presence;
use taut_sys::probe::Answer;

use super::severity::Severity;

mod capacity;
mod guest;
mod others;
mod pacing;
mod routing;
mod tcp;
mod window;

pub(crate) use self::guest::STOLEN;
pub(crate) use self::others::CONFLICTING;
pub(crate) use self::window::{LongPath, PathSource};

#[cfg(test)]
mod tests;

/// The assessed sysctls.
pub(crate) const SYSCTLS: &[&str] = &[
    "fs.file-max",
    "fs.nr_open",
    "fs.pipe-max-size",
    "fs.pipe-user-pages-soft",
    "net.core.default_qdisc",
    "net.core.somaxconn",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.conf.all.src_valid_mark",
    "net.ipv4.conf.default.rp_filter",
    "net.ipv4.ip_forward",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_abort_on_overflow",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_congestion_control",
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
    /// The path by which windows are judged.
    pub(crate) path: LongPath,
    /// Memory in bytes.
    pub(crate) memory: u64,
    /// Page size in bytes.
    pub(crate) page: u64,
    /// Whether this process is root, which is exempt from some limits.
    pub(crate) root: bool,
    /// The network devices with hardware, or its virtual likeness, behind them.
    pub(crate) devices: Vec<Device>,
    /// Whether the kernel has `fq`.
    pub(crate) fq: Answer,
    /// The programs of [`CONFLICTING`] that run, with their PIDs.
    pub(crate) running: Vec<(&'static str, u32)>,
    /// The BPF programs that redirect data of sockets in a sockmap, by name and ID. `None` if this
    /// process may not list programs.
    pub(crate) sockmap_programs: Option<Vec<(String, u32)>>,
    /// The CPU time that a hypervisor has taken, if it says.
    pub(crate) steal: Option<Stolen>,
    /// The state of the policy routes for IPv4 and IPv6 while a relay intercepts on this machine.
    /// `None` if no relay intercepts, or if that is unknown.
    pub(crate) intercepting: Option<[Presence; 2]>,
}

/// A network device that is up, and its root queueing discipline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) qdisc: String,
    /// The queueing disciplines below the root. Empty if there are none, or if that is unknown.
    pub(crate) below: Vec<String>,
}

/// Shares of the CPU time that a hypervisor has taken, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stolen {
    pub(crate) since_boot: f64,
    /// The share in the last second, where it matters and was measured.
    pub(crate) lately: Option<f64>,
}

// === impl Host ===

impl Host {
    /// Returns the default congestion control if it is a BBR, which paces, and which takes gaps in
    /// the CPU time for congestion.
    pub(crate) fn bbr(&self) -> Option<&str> {
        let control = self.text("net.ipv4.tcp_congestion_control")?;
        control.contains("bbr").then_some(control)
    }

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
    /// Its value.
    pub(crate) value: String,
    /// Whether the effect of this value could be told.
    pub(crate) state: State,
    /// How much this value matters.
    pub(crate) severity: Severity,
    /// The effect of this value, in one clause.
    pub(crate) why: String,
    /// The command that sets a better value until the next boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
}

/// Whether the effect of a setting could be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    Known,
    Unknown,
    NeedsRoot,
}

// === impl Finding ===

impl Finding {
    fn fine(id: &'static str, value: impl ToString, why: impl Into<String>) -> Self {
        Self {
            id,
            value: value.to_string(),
            state: State::Known,
            severity: Severity::Fine,
            why: why.into(),
            command: None,
        }
    }

    /// A setting whose effect cannot be told. It counts as fine.
    fn untold(
        id: &'static str,
        value: impl ToString,
        state: State,
        why: impl Into<String>,
    ) -> Self {
        Self {
            state,
            ..Self::fine(id, value, why)
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
            state: State::Known,
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
    findings.extend(pacing::assess(host));
    findings.extend(routing::assess(host));
    findings.extend(guest::assess(host));
    findings.extend(others::assess(host));
    findings
}
