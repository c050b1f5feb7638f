//! Switches of the kernel's TCP.

use super::{Finding, Host, set};

/// A switch with one right position.
struct Switch {
    name: &'static str,
    /// On is any number but 0.
    on: bool,
    /// What the wrong position does.
    wrong: &'static str,
}

const SWITCHES: &[Switch] = &[
    Switch {
        name: "net.ipv4.tcp_window_scaling",
        on: true,
        wrong: "no window above 64 KiB: 1.9 Mbit/s at 274 ms",
    },
    Switch {
        name: "net.ipv4.tcp_sack",
        on: true,
        wrong: "several losses in one window cost a round trip each",
    },
    Switch {
        name: "net.ipv4.tcp_timestamps",
        on: true,
        wrong: "fewer RTT samples, and needless retransmissions go unnoticed",
    },
    Switch {
        name: "net.ipv4.tcp_moderate_rcvbuf",
        on: true,
        wrong: "receive windows do not grow with the path",
    },
    Switch {
        name: "net.ipv4.tcp_abort_on_overflow",
        on: false,
        wrong: "a burst of connections is reset, not asked to wait",
    },
];

pub(super) fn judge(host: &Host) -> Vec<Finding> {
    let mut findings = SWITCHES
        .iter()
        .filter_map(|s| switch(host, s))
        .collect::<Vec<_>>();
    findings.extend(remembered_losses(host));
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

/// What a connection learnt is kept for the next one to the same place. Kernels since 5.6 leave out
/// the slow-start threshold; before, or where that is set otherwise, one loss slows all that follow.
fn remembered_losses(host: &Host) -> Option<Finding> {
    const ID: &str = "net.ipv4.tcp_no_metrics_save";
    let nothing_kept = host.number(ID, 0)?;
    let threshold_left_out = host
        .number("net.ipv4.tcp_no_ssthresh_metrics_save", 0)
        .unwrap_or(0);
    Some(match (nothing_kept, threshold_left_out) {
        (0, 0) => {
            let why = "a loss ends slow start early for every later connection to that place";
            Finding::slows(ID, nothing_kept, why, set(ID, 1))
        }
        _ => Finding::fine(
            ID,
            nothing_kept,
            "no loss is held against later connections",
        ),
    })
}

/// Off is the kernel's default and right unless a path is broken, so it is never a fault.
fn mtu_probing(host: &Host) -> Option<Finding> {
    const ID: &str = "net.ipv4.tcp_mtu_probing";
    let value = host.number(ID, 0)?;
    Some(match value {
        0 => Finding::fine(
            ID,
            value,
            "off; set 1 if a path hangs because it drops ICMP",
        ),
        _ => Finding::fine(ID, value, "on"),
    })
}

/// The stricter of the two filters counts (ip-sysctl: the maximum of all and the interface).
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
            let why = "strict: drops replies that come by another way than they would go";
            // Loose wins over strict, as the kernel takes the larger number.
            Finding::slows(id, value, why, set("net.ipv4.conf.all.rp_filter", 2))
        }
        STRICT => Finding::fine(id, value, "strict, but minds the mark (src_valid_mark)"),
        _ => Finding::fine(id, value, "not strict"),
    })
}
