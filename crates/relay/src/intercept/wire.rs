//! Types shared with the BPF program: the structs of `intercept.h`.

use std::net::{IpAddr, SocketAddr};

use super::rules::Rule;

taut_bpf::bindings!(pub(super) mod raw from "intercept");

use self::raw::{InterceptConfig, InterceptListener, InterceptRule};

pub use self::raw::InterceptExit as Exit;
/// A key of a program's table of rules.
pub(crate) use self::raw::InterceptRule as Key;

/// Counters of the packets that the program examined since it was loaded, by exit.
pub type Exits = taut_bpf::Counters<Exit>;

/// Converts a rule to a key of the program's table.
pub(crate) fn rule(rule: &Rule) -> InterceptRule {
    let (addr, version) = ip(rule.destination.network());
    InterceptRule {
        prefix_bits: raw::INTERCEPT_EXACT_BITS + u32::from(rule.destination.prefix_len()),
        ifindex: rule.ifindex,
        port: rule.port.into(),
        version,
        addr,
    }
}

/// Converts a listener to a value of the program's table.
pub(super) fn listener(listener: SocketAddr) -> InterceptListener {
    InterceptListener {
        addr: ip(listener.ip()).0,
        port: listener.port().into(),
        ..InterceptListener::default()
    }
}

/// Returns an address and its IP version. An IPv4 address is in the first four bytes.
fn ip(ip: IpAddr) -> ([u8; 16], u16) {
    let mut addr = [0; 16];
    match ip {
        IpAddr::V4(ip) => {
            addr[..4].copy_from_slice(&ip.octets());
            (addr, 4)
        }
        IpAddr::V6(ip) => (ip.octets(), 6),
    }
}

/// Returns the configuration of the program.
pub(super) fn configuration(mark: u32, borrows: bool) -> InterceptConfig {
    InterceptConfig {
        mark,
        borrows: borrows.into(),
    }
}
