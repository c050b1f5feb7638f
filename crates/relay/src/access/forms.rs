//! The ways in which an IPv6 address can contain an IPv4 address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::nat64::Nat64Prefix;

/// An address and the IPv4 addresses embedded in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forms {
    /// The address to connect to. Never IPv4-mapped, because Linux connects those over IPv4.
    pub(super) addr: IpAddr,
    /// The IPv4 host that a NAT64 translates `addr` to, if its prefix is well known or configured: the
    /// same destination in another form (RFC 6052 2.1).
    pub(super) translated: Option<Ipv4Addr>,
    /// IPv4 addresses that a tunnel or translator on the path may derive from `addr`. A rule that
    /// denies one of them denies `addr`; a rule that allows one does not allow `addr`, because many
    /// IPv6 hosts share it.
    embedded: [Option<Ipv4Addr>; 2],
}

// === impl Forms ===

impl Forms {
    /// Returns the forms of `addr`. `nat64` are the prefixes of this network's NAT64, besides the well-known
    /// one.
    pub(super) fn of(addr: IpAddr, nat64: &[Nat64Prefix]) -> Self {
        let addr = addr.to_canonical();
        let translated = |v6| {
            let mut prefixes = nat64.iter().chain(&[Nat64Prefix::WELL_KNOWN]);
            prefixes.find_map(|prefix| prefix.translate(v6))
        };
        let (translated, embedded) = match addr {
            IpAddr::V4(_) => (None, [None; 2]),
            IpAddr::V6(v6) => (translated(v6), embedded(v6)),
        };
        Self {
            addr,
            translated,
            embedded,
        }
    }

    /// Returns the address of the host itself, behind a NAT64 if `addr` leads to one.
    pub(super) fn host(self) -> IpAddr {
        self.translated.map_or(self.addr, IpAddr::V4)
    }

    /// Returns the forms that lead to the same host. A rule that allows one of them allows `addr`.
    pub(super) fn alike(self) -> impl Iterator<Item = IpAddr> {
        std::iter::once(self.addr).chain(self.translated.map(IpAddr::V4))
    }

    /// Returns all forms. A rule that denies one of them denies `addr`.
    pub(super) fn all(self) -> impl Iterator<Item = IpAddr> {
        self.alike()
            .chain(self.embedded.into_iter().flatten().map(IpAddr::V4))
    }
}

fn embedded(v6: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let s = v6.segments();
    let o = v6.octets();
    match s {
        // 6to4 (RFC 3056 2).
        [0x2002, ..] => [Some(Ipv4Addr::new(o[2], o[3], o[4], o[5])), None],
        // Teredo: the server, and the client's address inverted (RFC 4380 4).
        [0x2001, 0, ..] => [
            Some(Ipv4Addr::new(o[4], o[5], o[6], o[7])),
            Some(Ipv4Addr::from(!u32::from(last_32(v6)))),
        ],
        // NAT64 with a network's own prefix (RFC 8215), if it is not configured, of 48 or 96 bits (RFC 6052 2.2).
        [0x64, 0xff9b, 1, ..] => [
            Some(Ipv4Addr::new(o[6], o[7], o[9], o[10])),
            Some(last_32(v6)),
        ],
        // These two embed no IPv4 address.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => [None; 2],
        // IPv4-compatible (RFC 4291 2.5.5.1) and IPv4-translated (RFC 7915).
        [0, 0, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => [Some(last_32(v6)), None],
        _ => [None; 2],
    }
}

fn last_32(v6: Ipv6Addr) -> Ipv4Addr {
    let o = v6.octets();
    Ipv4Addr::new(o[12], o[13], o[14], o[15])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_shows_its_ipv4_address() {
        let v4: IpAddr = "169.254.1.2".parse().unwrap();
        for text in [
            "169.254.1.2",
            "::ffff:169.254.1.2",
            "::169.254.1.2",
            "::ffff:0:169.254.1.2",
            "64:ff9b::169.254.1.2",
            "64:ff9b:1::169.254.1.2",
            "64:ff9b:1:a9fe:1:200::",
            "2002:a9fe:102::1",
            "2001:0:a9fe:102::1",
            "2001:0:1:2:3:4:5601:fefd",
        ] {
            let forms = Forms::of(text.parse().unwrap(), &[]);
            assert!(forms.all().any(|form| form == v4), "{text}: {forms:?}");
        }
        for text in ["::", "::1", "2001:db8::a9fe:102"] {
            let addr = text.parse().unwrap();
            assert_eq!(Forms::of(addr, &[]).all().collect::<Vec<_>>(), [addr]);
        }
    }
}
