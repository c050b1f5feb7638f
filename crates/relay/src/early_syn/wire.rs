//! What the program and the relay say to one another, byte by byte (`early_syn.h`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{EarlySynError, SynEvent};

/// The length of a `struct early_syn_watch`.
const WATCH_BYTES: usize = 20;

/// The key under which the program looks for a listener at `addr`.
pub(super) fn watch_key(addr: SocketAddr) -> [u8; WATCH_BYTES] {
    let mut key = [0; WATCH_BYTES];
    let version: u16 = match addr.ip().to_canonical() {
        IpAddr::V4(ip) => {
            key[..4].copy_from_slice(&ip.octets());
            4
        }
        IpAddr::V6(ip) => {
            key[..16].copy_from_slice(&ip.octets());
            6
        }
    };
    key[16..18].copy_from_slice(&addr.port().to_be_bytes());
    key[18..].copy_from_slice(&version.to_ne_bytes());
    key
}

/// Reads a `struct early_syn_event`; `None` when it is none.
pub(super) fn event(bytes: &[u8]) -> Option<SynEvent> {
    let version = u32::from_ne_bytes(field(bytes, 44)?);
    let addr = |ip: usize, port: usize| {
        let ip = match version {
            4 => Ipv4Addr::from(field::<4>(bytes, ip)?).into(),
            6 => Ipv6Addr::from(field::<16>(bytes, ip)?).into(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes(field(bytes, port)?)))
    };
    Some(SynEvent {
        client: addr(8, 40)?,
        listener_addr: addr(24, 42)?,
        listener: u32::from_ne_bytes(field(bytes, 48)?),
    })
}

/// A counter of one CPU.
pub(super) fn counter(bytes: &[u8]) -> u64 {
    field(bytes, 0).map_or(0, u64::from_ne_bytes)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

macro_rules! exits {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What has become of the packets that the program has looked at, since it was loaded.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Exits {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Exits {
            /// Reads each by its number, which is its place in `enum early_syn_exit`.
            pub(super) fn read(
                mut of: impl FnMut(u32) -> Result<u64, EarlySynError>,
            ) -> Result<Self, EarlySynError> {
                let mut number = 0..;
                Ok(Self { $($name: of(number.next().unwrap_or(u32::MAX))?,)* })
            }

            /// Each with its name.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

exits! {
    /// SYNs to a watched listener that were reported.
    emitted,
    /// Not sent to this machine's own MAC: broadcast, or a neighbour's in promiscuous mode.
    other_host,
    /// Neither TCP over IPv4 nor over IPv6.
    not_tcp,
    /// Fragments, which no SYN of an honest client is.
    fragment,
    /// Too short for their headers, or with lengths that cannot be.
    malformed,
    /// TCP, but not the first segment of a connection.
    not_syn,
    /// SYNs to where no listener is watched.
    not_watched,
    /// SYNs to the port of a listener on every address, that go to another machine.
    not_local,
    /// SYNs to a watched listener past the ceiling on events per second.
    over_ceiling,
    /// SYNs to a watched listener for which the ring had no room.
    ring_full,
}

#[cfg(test)]
mod tests {
    use libbpf_rs::btf::types::{Composite, Enum};
    use libbpf_rs::btf::{Btf, HasSize};

    use super::*;

    fn layout(btf: &Btf<'_>, name: &str) -> (usize, Vec<(String, u32)>) {
        let found = btf
            .type_by_name::<Composite<'_>>(name)
            .expect("the program has this struct");
        let offset = |m: &libbpf_rs::btf::types::CompositeMember<'_>| match m.attr {
            libbpf_rs::btf::types::MemberAttr::Normal { offset } => offset / 8,
            libbpf_rs::btf::types::MemberAttr::BitField { .. } => panic!("no bit fields"),
        };
        let members = found
            .iter()
            .map(|m| {
                (
                    m.name.expect("named").to_string_lossy().into_owned(),
                    offset(&m),
                )
            })
            .collect();
        (found.size(), members)
    }

    #[test]
    fn the_structs_are_laid_out_as_the_relay_reads_them() {
        let btf = Btf::from_path(concat!(env!("OUT_DIR"), "/early_syn.bpf.o")).expect("BTF");
        let at = |fields: &[(&str, u32)]| -> Vec<_> {
            fields.iter().map(|(n, o)| ((*n).to_owned(), *o)).collect()
        };
        let (size, members) = layout(&btf, "early_syn_watch");
        assert_eq!(size, WATCH_BYTES);
        assert_eq!(members, at(&[("addr", 0), ("port", 16), ("version", 18)]));
        let (_, members) = layout(&btf, "early_syn_event");
        let expected = [
            ("seen_ns", 0),
            ("saddr", 8),
            ("daddr", 24),
            ("sport", 40),
            ("dport", 42),
            ("version", 44),
            ("listener", 48),
            ("ifindex", 52),
        ];
        assert_eq!(members, at(&expected));

        let exits = btf
            .type_by_name::<Enum<'_>>("early_syn_exit")
            .expect("the program has this enum");
        let names: Vec<_> = exits
            .iter()
            .map(|v| {
                let name = v.name.expect("named").to_string_lossy().to_lowercase();
                name.replace("early_syn_", "")
            })
            .collect();
        let ours = Exits::default().each().map(|(name, _)| name.to_owned());
        let expected: Vec<_> = ours.chain(["exits".to_owned()]).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn an_event_that_is_cut_short_or_of_another_version_is_none() {
        assert_eq!(event(&[]), None);
        let mut bytes = [0; 56];
        assert_eq!(event(&bytes), None);
        bytes[44..48].copy_from_slice(&4u32.to_ne_bytes());
        assert!(event(&bytes).is_some());
        assert_eq!(event(&bytes[..50]), None);
    }
}
