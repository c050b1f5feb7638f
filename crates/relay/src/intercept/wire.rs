//! What the program and the relay say to one another, byte by byte (`intercept.h`).

use std::net::{IpAddr, SocketAddr};

use super::rules::Rule;

/// The length of a `struct intercept_rule`, and of a `struct intercept_listener`.
const RULE_BYTES: usize = 28;
const LISTENER_BYTES: usize = 20;
/// `INTERCEPT_EXACT_BITS`.
const EXACT_BITS: u32 = 64;

/// A rule as a key of the program's table.
pub(super) fn rule(rule: &Rule) -> [u8; RULE_BYTES] {
    let mut key = [0; RULE_BYTES];
    let bits = EXACT_BITS + u32::from(rule.destination.prefix_len());
    let version = put_ip(&mut key[12..], rule.destination.network());
    key[..4].copy_from_slice(&bits.to_ne_bytes());
    key[4..8].copy_from_slice(&rule.ifindex.to_ne_bytes());
    key[8..10].copy_from_slice(&rule.port.to_be_bytes());
    key[10..12].copy_from_slice(&version.to_ne_bytes());
    key
}

/// A listener as a value of the program's table.
pub(super) fn listener(addr: SocketAddr) -> [u8; LISTENER_BYTES] {
    let mut value = [0; LISTENER_BYTES];
    put_ip(&mut value, addr.ip());
    value[16..18].copy_from_slice(&addr.port().to_be_bytes());
    value
}

/// Writes an address, and returns its version.
fn put_ip(to: &mut [u8], ip: IpAddr) -> u16 {
    match ip {
        IpAddr::V4(ip) => {
            to[..4].copy_from_slice(&ip.octets());
            4
        }
        IpAddr::V6(ip) => {
            to[..16].copy_from_slice(&ip.octets());
            6
        }
    }
}

/// The program's configuration, `mark` and `borrows`.
pub(super) fn configuration(mark: u32, borrows: bool) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&mark.to_ne_bytes());
    bytes[4..].copy_from_slice(&u32::from(borrows).to_ne_bytes());
    bytes
}

macro_rules! exits {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What has become of the packets that the program has looked at, since it was loaded.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Exits {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Exits {
            /// Reads each by its number, which is its place in `enum intercept_exit`.
            pub(super) fn read<E>(mut of: impl FnMut(u32) -> Result<u64, E>) -> Result<Self, E> {
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
    /// First segments of connections, given to a listener.
    new,
    /// Last parts of handshakes that a SYN cookie was sent for, given to a listener.
    cookie,
    /// Given to the socket of their connection.
    known,
    /// Not sent to this machine's own MAC: broadcast, or a neighbour's in promiscuous mode.
    other_host,
    /// Neither TCP over IPv4 nor over IPv6.
    not_tcp,
    /// Fragments; TCP sends none.
    fragment,
    /// Too short for their headers, or with lengths that cannot be.
    malformed,
    /// To where no forward takes connections.
    no_rule,
    /// To this machine itself, whose services stay what they are, or there is no way to it.
    local,
    /// The device does not forward (`ip_forward`), so that nothing passes through.
    not_routing,
    /// Of connections that began without the relay.
    foreign,
    /// First segments while the relay takes no more.
    no_listener,
    /// The kernel would not give the socket.
    not_given,
}

#[cfg(test)]
mod tests {
    use libbpf_rs::btf::types::{Composite, Enum, MemberAttr};
    use libbpf_rs::btf::{Btf, HasSize};

    use super::*;

    #[test]
    fn the_structs_are_laid_out_as_the_relay_writes_them() {
        let btf = Btf::from_path(concat!(env!("OUT_DIR"), "/intercept.bpf.o")).expect("BTF");
        for (name, size, members) in [
            (
                "intercept_rule",
                RULE_BYTES,
                &[
                    ("prefix_bits", 0),
                    ("ifindex", 4),
                    ("port", 8),
                    ("version", 10),
                    ("addr", 12),
                ][..],
            ),
            (
                "intercept_listener",
                LISTENER_BYTES,
                &[("addr", 0), ("port", 16), ("unused", 18)],
            ),
        ] {
            let found = btf.type_by_name::<Composite<'_>>(name).expect(name);
            assert_eq!(found.size(), size, "{name}");
            let found: Vec<_> = found
                .iter()
                .map(|m| {
                    let MemberAttr::Normal { offset } = m.attr else {
                        panic!("no bit fields");
                    };
                    (
                        m.name.expect("named").to_string_lossy().into_owned(),
                        offset / 8,
                    )
                })
                .collect();
            let expected: Vec<_> = members.iter().map(|(n, o)| ((*n).to_owned(), *o)).collect();
            assert_eq!(found, expected, "{name}");
        }
        let exits = btf
            .type_by_name::<Enum<'_>>("intercept_exit")
            .expect("the program has this enum");
        let names: Vec<_> = exits
            .iter()
            .map(|v| {
                let name = v.name.expect("named").to_string_lossy().to_lowercase();
                name.replace("intercept_", "")
            })
            .collect();
        let ours = Exits::default().each().map(|(name, _)| name.to_owned());
        assert_eq!(names, ours.chain(["exits".to_owned()]).collect::<Vec<_>>());
    }
}
