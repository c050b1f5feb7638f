//! Types shared with the BPF program: the structs of `early_syn.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use taut_bpf::read_prefix;

use super::SynEvent;

taut_bpf::bindings!(pub(super) mod raw from "early_syn");

use self::raw::{EarlySynEvent, EarlySynWatch};

pub use self::raw::EarlySynExit as Exit;

/// Counters of the packets that the program examined since it was loaded, by exit.
pub type Exits = taut_bpf::Counters<Exit>;

/// Returns the key under which the program looks up a listener at `addr`.
pub(super) fn watch_key(listener: SocketAddr) -> EarlySynWatch {
    let mut addr = [0; 16];
    let version = match listener.ip().to_canonical() {
        IpAddr::V4(ip) => {
            addr[..4].copy_from_slice(&ip.octets());
            4
        }
        IpAddr::V6(ip) => {
            addr = ip.octets();
            6
        }
    };
    EarlySynWatch {
        addr,
        port: listener.port().into(),
        version,
    }
}

/// Reads a record of the ring buffer. Returns `None` if the record is not an event.
pub(super) fn event(record: &[u8]) -> Option<SynEvent> {
    let (event, _) = read_prefix::<EarlySynEvent>(record)?;
    let ip = match event.version {
        4 => |[a, b, c, d, ..]: [u8; 16]| IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        6 => |octets: [u8; 16]| IpAddr::V6(Ipv6Addr::from(octets)),
        _ => return None,
    };
    Some(SynEvent {
        client: SocketAddr::new(ip(event.saddr), event.sport.get()),
        listener_addr: SocketAddr::new(ip(event.daddr), event.dport.get()),
        listener: event.listener,
    })
}

#[cfg(test)]
mod tests {
    use taut_bpf::zerocopy::IntoBytes as _;

    use super::*;

    #[test]
    fn a_truncated_event_or_one_of_another_version_is_ignored() {
        assert_eq!(event(&[]), None);
        let mut record = EarlySynEvent::default();
        assert_eq!(event(record.as_bytes()), None);
        record.version = 4;
        assert!(event(record.as_bytes()).is_some());
        assert_eq!(event(&record.as_bytes()[..50]), None);
    }
}
