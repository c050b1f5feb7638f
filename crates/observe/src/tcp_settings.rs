//! Settings of a network namespace on which verdicts and their remedies depend.

use std::fs;

/// Settings of TCP in a network namespace. `None`: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpSettings {
    /// The largest send buffer that autotuning gives, in bytes (third value of
    /// `net.ipv4.tcp_wmem`).
    pub wmem_max: Option<u64>,
    /// The largest receive buffer that autotuning gives, in bytes (third value of
    /// `net.ipv4.tcp_rmem`).
    pub rmem_max: Option<u64>,
    /// Whether the kernel enlarges receive buffers (`net.ipv4.tcp_moderate_rcvbuf`).
    pub tunes_receive_buffers: Option<bool>,
    /// Whether connections may have windows of more than 64 KiB (`net.ipv4.tcp_window_scaling`).
    pub scales_windows: Option<bool>,
    /// Whether the kernel searches for the largest segment that gets through
    /// (`net.ipv4.tcp_mtu_probing`).
    pub probes_mtu: Option<bool>,
}

// === impl TcpSettings ===

impl TcpSettings {
    /// Reads the settings of the calling thread's namespace.
    pub fn read() -> Self {
        let is_on = |name| value(name, 0).map(|value| value != 0);
        Self {
            wmem_max: value("tcp_wmem", 2),
            rmem_max: value("tcp_rmem", 2),
            tunes_receive_buffers: is_on("tcp_moderate_rcvbuf"),
            scales_windows: is_on("tcp_window_scaling"),
            probes_mtu: is_on("tcp_mtu_probing"),
        }
    }
}

/// Returns one of the values of a setting.
fn value(name: &str, index: usize) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
    text.split_ascii_whitespace().nth(index)?.parse().ok()
}
