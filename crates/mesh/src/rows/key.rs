//! Short identifiers of the members, prefixes and destinations in a row.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sha2::{Digest, Sha256};

use crate::hello::Target;
use crate::name::MemberName;

/// A member in a row: the first four bytes of the SHA-256 of its name. Two members of one list
/// whose IDs are the same have no rows; of 1,000 members that happens once in 9,000 lists, and
/// another name ends it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub(super) [u8; 4]);

/// Something outside the mesh that a relay has measured the path to: a prefix, IPv4 /24 or IPv6
/// /48, or a destination that a relay has asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 7]);

const DESTINATION: u8 = 0;
const V4: u8 = 4;
const V6: u8 = 6;

// === impl MemberId ===

impl MemberId {
    /// Returns the ID of a member.
    pub fn of(name: &MemberName) -> Self {
        let [a, b, c, d, ..] = hash(&[name.as_str().as_bytes()]);
        Self([a, b, c, d])
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemberId({:08x})", u32::from_be_bytes(self.0))
    }
}

// === impl Key ===

impl Key {
    pub(super) const LEN: usize = 7;

    /// Returns the prefix of an address: /24 of IPv4, /48 of IPv6.
    pub fn prefix(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let [a, b, c, _] = ip.octets();
                Self([V4, a, b, c, 0, 0, 0])
            }
            IpAddr::V6(ip) => {
                let [a, b, c, d, e, f, ..] = ip.octets();
                Self([V6, a, b, c, d, e, f])
            }
        }
    }

    /// Returns the destination `target` as this member may reach it, or, with `None`, as all
    /// members may.
    pub fn destination(target: &Target, of: Option<&MemberName>) -> Self {
        let of = of.map_or("", MemberName::as_str);
        let hash = hash(&[target.to_string().as_bytes(), b" ", of.as_bytes()]);
        let [a, b, c, d, e, f, ..] = hash;
        Self([DESTINATION, a, b, c, d, e, f])
    }

    /// Returns the prefix that the key stands for; `None` for a destination.
    pub fn network(self) -> Option<IpNet> {
        let [kind, a, b, c, d, e, f] = self.0;
        match kind {
            V4 => Ipv4Net::new(Ipv4Addr::new(a, b, c, 0), 24)
                .ok()
                .map(Into::into),
            V6 => {
                let mut octets = [0; 16];
                octets[..6].copy_from_slice(&[a, b, c, d, e, f]);
                Ipv6Net::new(Ipv6Addr::from(octets), 48)
                    .ok()
                    .map(Into::into)
            }
            _ => None,
        }
    }

    pub(super) fn bytes(self) -> [u8; Self::LEN] {
        self.0
    }

    /// Decodes a key. Returns `None` if there is no such key.
    pub(super) fn decode(bytes: [u8; Self::LEN]) -> Option<Self> {
        match bytes {
            [V4, _, _, _, 0, 0, 0] | [V6 | DESTINATION, ..] => Some(Self(bytes)),
            _ => None,
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network() {
            Some(network) => write!(f, "Key({network})"),
            None => write!(f, "Key(destination {:x?})", &self.0[1..]),
        }
    }
}

/// Returns a number that depends on both names and their order.
pub(super) fn pair_hash(a: &MemberName, b: &MemberName) -> [u8; 32] {
    hash(&[a.as_str().as_bytes(), b" ", b.as_str().as_bytes()])
}

fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_covers_the_addresses_that_it_was_made_from() {
        for ip in ["192.0.2.77", "2001:db8:1:2::3", "::ffff:192.0.2.1"] {
            let ip: IpAddr = ip.parse().unwrap();
            let key = Key::prefix(ip);
            assert!(key.network().unwrap().contains(&ip.to_canonical()));
            assert_eq!(Key::decode(key.bytes()), Some(key));
        }
    }

    #[test]
    fn destinations_differ_by_address_port_and_member() {
        let target = |text: &str| text.parse::<Target>().unwrap();
        let name: MemberName = "fra1".parse().unwrap();
        let keys = [
            Key::destination(&target("192.0.2.1:80"), None),
            Key::destination(&target("192.0.2.1:81"), None),
            Key::destination(&target("192.0.2.1:80"), Some(&name)),
            Key::prefix("192.0.2.1".parse().unwrap()),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(keys.iter().filter(|k| *k == key).count(), 1, "{i}");
            assert_eq!(key.network().is_none(), i < 3);
        }
    }
}
