//! Switches of the kernel's TCP (ip-sysctl).

use super::{Finding, Host, set};

/// A switch with one recommended position.
struct Switch {
    name: &'static str,
    /// The recommended position; any number but 0 is on.
    on: bool,
    /// The effect of the other position.
    wrong: &'static str,
}

const SWITCHES: &[Switch] = &[
    Switch {
        name: "net.ipv4.tcp_sack",
        on: true,
        wrong: "each further loss in a window costs a round trip",
    },
    Switch {
        name: "net.ipv4.tcp_timestamps",
        on: true,
        wrong: "fewer RTT samples, and spurious retransmissions are not detected",
    },
    Switch {
        name: "net.ipv4.tcp_moderate_rcvbuf",
        on: true,
        wrong: "receive windows do not grow to fit the path",
    },
    Switch {
        name: "net.ipv4.tcp_abort_on_overflow",
        on: false,
        wrong: "connections in a burst are reset instead of delayed",
    },
];

pub(super) fn assess(host: &Host) -> Vec<Finding> {
    let mut findings = SWITCHES
        .iter()
        .filter_map(|s| switch(host, s))
        .collect::<Vec<_>>();
    findings.extend(window_scaling(host));
    findings.extend(metrics_cache(host));
    findings.extend(mtu_probing(host));
    findings.extend(reverse_path(host));
    findings
}

fn switch(host: &Host, switch: &Switch) -> Option<Finding> {
    let value = host.number(switch.name, 0)?;
    Some(match (value != 0) == switch.on {
        true => Finding::fine(switch.name, value, if switch.on { "on" } else { "off" }),
        false => Finding::slows(
            switch.name,
            value,
            switch.wrong,
            set(switch.name, u8::from(switch.on)),
        ),
    })
}

fn window_scaling(host: &Host) -> Option<Finding> {
    const ID: &str = "net.ipv4.tcp_window_scaling";
    const WIDEST: u64 = 65_535;
    let value = host.number(ID, 0)?;
    Some(match value {
        0 => {
            let mbit = host.path.mbit(WIDEST);
            let why = format!(
                "windows are limited to 64 KiB: {mbit:.1} Mbit/s at {}",
                host.path
            );
            Finding::slows(ID, value, why, set(ID, 1))
        }
        _ => Finding::fine(ID, value, "on"),
    })
}

/// Checks the metrics cache. The kernel caches metrics of a connection for later connections to the
/// same host. Since Linux 5.6 it omits the slow-start threshold; with it, one loss slows all later
/// connections.
fn metrics_cache(host: &Host) -> Option<Finding> {
    const ID: &str = "net.ipv4.tcp_no_metrics_save";
    let no_metrics = host.number(ID, 0)?;
    let no_ssthresh = host
        .number("net.ipv4.tcp_no_ssthresh_metrics_save", 0)
        .unwrap_or(0);
    Some(match (no_metrics, no_ssthresh) {
        (0, 0) => {
            let why = "after a loss, later connections to the same host leave slow start early";
            Finding::slows(ID, no_metrics, why, set(ID, 1))
        }
        _ => Finding::fine(ID, no_metrics, "a loss does not affect later connections"),
    })
}

/// Reports MTU probing. Off is the kernel's default and right unless a path is broken, so both
/// values are fine.
fn mtu_probing(host: &Host) -> Option<Finding> {
    const ID: &str = "net.ipv4.tcp_mtu_probing";
    let value = host.number(ID, 0)?;
    Some(match value {
        0 => Finding::fine(
            ID,
            value,
            "off; set it to 1 if connections hang on a path that drops ICMP",
        ),
        _ => Finding::fine(ID, value, "on"),
    })
}

/// Checks the reverse path filter. The effective value is the maximum of `all` and the interface's
/// own (ip-sysctl).
fn reverse_path(host: &Host) -> Option<Finding> {
    const STRICT: u64 = 1;
    let by_mark = host.number("net.ipv4.conf.all.src_valid_mark", 0) == Some(1);
    let filter = |id| Some((id, host.number(id, 0)?));
    let all = filter("net.ipv4.conf.all.rp_filter")?;
    let worst = match filter("net.ipv4.conf.default.rp_filter") {
        Some(default) if all.1 == 0 => default,
        _ => all,
    };
    let (id, value) = worst;
    Some(match value {
        STRICT if !by_mark => {
            let why =
                "strict: the kernel drops replies that arrive on another path than the reverse";
            // Loose overrides strict, because the kernel uses the larger number.
            Finding::slows(id, value, why, set("net.ipv4.conf.all.rp_filter", 2))
        }
        STRICT => Finding::fine(id, value, "strict, but includes the mark (src_valid_mark)"),
        _ => Finding::fine(id, value, "not strict"),
    })
}
