//! What a relay that intercepts connections needs of the machine's routing.
//!
//! Most machines have no such relay, and are not told to become routers for it: without one these
//! settings are fine whatever they are.

use taut_relay::intercept::{MARK, PRIORITY, Presence, TABLE};

use super::{Finding, Host, set};

pub(super) fn judge(host: &Host) -> Vec<Finding> {
    let mut findings = Vec::new();
    for id in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        findings.extend(forwarding(host, id));
    }
    if let Some(there) = host.intercepting {
        findings.extend(by_mark(host));
        findings.extend(policy(there));
    }
    findings
}

/// A machine that does not forward has nothing passing through.
fn forwarding(host: &Host, id: &'static str) -> Option<Finding> {
    let value = host.number(id, 0)?;
    Some(match (value, host.intercepting) {
        (0, Some(_)) => {
            let why = "nothing passes through this machine, so nothing is intercepted";
            Finding::slows(id, value, why, set(id, 1))
        }
        (0, None) => Finding::fine(id, value, "off; a relay's transparent forwards need it"),
        _ => Finding::fine(id, value, "on"),
    })
}

/// With both, the source of a packet is looked up with the packet's mark; for the relay's mark
/// every address is this machine's own, and a packet from oneself is a forgery.
fn by_mark(host: &Host) -> Option<Finding> {
    const ID: &str = "net.ipv4.conf.all.src_valid_mark";
    let value = host.number(ID, 0)?;
    let filter = |of| host.number(&format!("net.ipv4.conf.{of}.rp_filter"), 0);
    let filters = filter("all") > Some(0) || filter("default") > Some(0);
    Some(match value {
        0 => Finding::fine(ID, value, "off"),
        _ if !filters => Finding::fine(ID, value, "on, but rp_filter is off"),
        _ => {
            let why = "with rp_filter it drops every packet that is intercepted, and counts none";
            Finding::slows(ID, value, why, set(ID, 0))
        }
    })
}

/// A network manager may take away rules that it does not know.
fn policy(there: [Presence; 2]) -> [Finding; 2] {
    let family = |i: usize| if i == 0 { "" } else { "-6 " };
    let lacks = |has: fn(&Presence) -> bool| there.iter().position(|p| !has(p));
    let rule = match lacks(|p| p.rule) {
        None => Finding::fine("ip rule 74", "there", "what is marked is delivered here"),
        Some(i) => Finding::slows(
            "ip rule 74",
            "missing",
            "what the relay intercepts is dropped; has a network manager removed it?",
            format!(
                "ip {}rule add priority {PRIORITY} fwmark {MARK:#x} lookup {TABLE}",
                family(i)
            ),
        ),
    };
    let route = match lacks(|p| p.route) {
        None => Finding::fine(
            "ip route table 29793",
            "there",
            "every address is local in it",
        ),
        Some(i) => Finding::slows(
            "ip route table 29793",
            "missing",
            "what the relay intercepts is dropped; has a network manager removed it?",
            format!(
                "ip {}route add local default dev lo table {TABLE}",
                family(i)
            ),
        ),
    };
    [rule, route]
}
