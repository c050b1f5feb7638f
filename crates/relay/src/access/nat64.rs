//! The prefixes with which a NAT64 in this network represents IPv4 addresses.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::Ipv6Net;

/// A prefix of a NAT64, of one of the lengths that RFC 6052 2.2 permits: an IPv6 address in it is a
/// destination with an IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nat64Prefix(Ipv6Net);

/// An error in a prefix of a NAT64.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Nat64Error {
    /// The text is not an IPv6 prefix.
    #[error("{0:?} is not an IPv6 prefix; write it like \"64:ff9b::/96\"")]
    NotAPrefix(String),
    /// The prefix has a length with which no IPv4 address is embedded.
    #[error(
        "a NAT64 has a prefix of 32, 40, 48, 56, 64 or 96 bits (RFC 6052 section 2.2), not of {0}"
    )]
    Length(u8),
}

// === impl Nat64Prefix ===

impl Nat64Prefix {
    /// The prefix that every NAT64 may use (RFC 6052 2.1).
    pub(super) const WELL_KNOWN: Self = Self(Ipv6Net::new_assert(
        Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0),
        96,
    ));

    /// Returns the IPv4 address that `addr` represents, if it is in the prefix (RFC 6052 2.2).
    pub(super) fn translate(self, addr: Ipv6Addr) -> Option<Ipv4Addr> {
        if !self.0.contains(&addr) {
            return None;
        }
        // The IPv4 address follows the prefix. Octet 8 is not part of it.
        let begin = usize::from(self.0.prefix_len() / 8);
        let octets = addr.octets();
        let mut after = (begin..octets.len()).filter(|&i| i != 8 || begin > 8);
        let v4: [usize; 4] = std::array::from_fn(|_| after.next().unwrap_or_default());
        Some(Ipv4Addr::from(v4.map(|i| octets[i])))
    }
}

impl FromStr for Nat64Prefix {
    type Err = Nat64Error;

    fn from_str(text: &str) -> Result<Self, Nat64Error> {
        let net: Ipv6Net = text
            .parse()
            .map_err(|_| Nat64Error::NotAPrefix(text.to_owned()))?;
        match net.prefix_len() {
            32 | 40 | 48 | 56 | 64 | 96 => Ok(Self(net.trunc())),
            length => Err(Nat64Error::Length(length)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_of_a_prefix_has_the_ipv4_address_in_its_place() {
        // The table of RFC 6052 2.4.
        for (prefix, addr) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ] {
            let prefix: Nat64Prefix = prefix.parse().unwrap();
            let v4 = prefix.translate(addr.parse().unwrap());
            assert_eq!(v4, Some(Ipv4Addr::new(192, 0, 2, 33)), "{addr}");
            assert_eq!(prefix.translate("2001:db9::1".parse().unwrap()), None);
        }
    }

    #[test]
    fn other_texts_and_lengths_are_refused() {
        let parse = |text: &str| text.parse::<Nat64Prefix>();
        assert_eq!(parse("64:ff9b::/97"), Err(Nat64Error::Length(97)));
        for text in ["", "64:ff9b::", "10.0.0.0/8", "64:ff9b::/129"] {
            assert_eq!(parse(text), Err(Nat64Error::NotAPrefix(text.to_owned())));
        }
    }
}
