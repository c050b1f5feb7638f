//! Routing settings that an intercepting relay needs.
//!
//! On a machine without such a relay every value is fine, so that doctor does not advise anyone to
//! turn the machine into a router.

use taut_relay::intercept::{MARK, PRIORITY, Presence, TABLE};

use super::{Finding, Host, set};

pub(super) fn assess(host: &Host) -> Vec<Finding> {
    let mut findings = Vec::new();
    for id in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        findings.extend(forwarding(host, id));
    }
    if let Some(presence) = host.intercepting {
        findings.extend(src_valid_mark(host));
        findings.extend(policy_route(presence));
    }
    findings
}

fn forwarding(host: &Host, id: &'static str) -> Option<Finding> {
    let value = host.number(id, 0)?;
    Some(match (value, host.intercepting) {
        (0, Some(_)) => {
            let why = "this machine forwards no packets, so the relay cannot intercept any";
            Finding::slows(id, value, why, set(id, 1))
        }
        (0, None) => Finding::fine(id, value, "off; only transparent forwards need it"),
        _ => Finding::fine(id, value, "on"),
    })
}

/// Checks `src_valid_mark`. With it and `rp_filter`, the kernel looks up a packet's source with the
/// packet's mark. For the relay's mark every address is local, and the kernel drops packets from a
/// local source.
fn src_valid_mark(host: &Host) -> Option<Finding> {
    const ID: &str = "net.ipv4.conf.all.src_valid_mark";
    let value = host.number(ID, 0)?;
    let filter = |of| host.number(&format!("net.ipv4.conf.{of}.rp_filter"), 0);
    let filters = filter("all") > Some(0) || filter("default") > Some(0);
    Some(match value {
        0 => Finding::fine(ID, value, "off"),
        _ if !filters => Finding::fine(ID, value, "on, but rp_filter is off"),
        _ => {
            let why = "with rp_filter the kernel drops every intercepted packet and counts none";
            Finding::slows(ID, value, why, set(ID, 0))
        }
    })
}

/// Checks the relay's policy route, which a network manager may have removed.
fn policy_route(presence: [Presence; 2]) -> [Finding; 2] {
    let family = |i: usize| if i == 0 { "" } else { "-6 " };
    let lacks = |has: fn(&Presence) -> bool| presence.iter().position(|p| !has(p));
    let rule = match lacks(|p| p.rule) {
        None => Finding::fine(
            "ip rule 74",
            "present",
            "marked packets are delivered locally",
        ),
        Some(i) => Finding::slows(
            "ip rule 74",
            "missing",
            "intercepted packets are dropped; a network manager may have removed the rule",
            format!(
                "ip {}rule add priority {PRIORITY} fwmark {MARK:#x} lookup {TABLE}",
                family(i)
            ),
        ),
    };
    let route = match lacks(|p| p.route) {
        None => Finding::fine(
            "ip route table 29793",
            "present",
            "every address is local in this table",
        ),
        Some(i) => Finding::slows(
            "ip route table 29793",
            "missing",
            "intercepted packets are dropped; a network manager may have removed the route",
            format!(
                "ip {}route add local default dev lo table {TABLE}",
                family(i)
            ),
        ),
    };
    [rule, route]
}
