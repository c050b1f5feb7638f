//! Blocks of addresses that a relay does not connect to unless a rule names them, and blocks that
//! are not part of the public Internet.
//!
//! Sources: IANA's registries of special-purpose addresses (RFC 6890 and its updates) and, for
//! metadata services, lists that public projects keep against server-side request forgery.

use std::net::IpAddr;
use std::sync::LazyLock;

use ipnet::IpNet;

use super::verdict::DestinationVerdict;

/// Built-in denials, the narrowest first, so that the first match is the most specific.
const DENIED: [(&str, DestinationVerdict); 29] = [
    // AWS, Google Cloud, Azure, Oracle, DigitalOcean, OpenStack, Hetzner and others.
    ("169.254.169.254/32", DestinationVerdict::Metadata),
    // AWS: credentials of ECS tasks, and of EKS pods.
    ("169.254.170.2/32", DestinationVerdict::Metadata),
    ("169.254.170.23/32", DestinationVerdict::Metadata),
    // Scaleway.
    ("169.254.42.42/32", DestinationVerdict::Metadata),
    // Tencent Cloud.
    ("169.254.0.23/32", DestinationVerdict::Metadata),
    ("169.254.10.10/32", DestinationVerdict::Metadata),
    // Alibaba Cloud.
    ("100.100.100.200/32", DestinationVerdict::Metadata),
    // Oracle Cloud, Classic.
    ("192.0.0.192/32", DestinationVerdict::Metadata),
    // Azure's wire server, which is in public address space.
    ("168.63.129.16/32", DestinationVerdict::Metadata),
    // AWS over IPv6: instance metadata (::254), EKS pods (::23), DNS and time.
    ("fd00:ec2::/32", DestinationVerdict::Metadata),
    // Google Cloud over IPv6.
    ("fd20:ce::254/128", DestinationVerdict::Metadata),
    // Oracle Cloud over IPv6.
    ("fd00:c1::a9fe:a9fe/128", DestinationVerdict::Metadata),
    // Scaleway over IPv6.
    ("fd00:42::42/128", DestinationVerdict::Metadata),
    // Linode, and Alibaba Cloud, over IPv6.
    ("fd00:a9fe:a9fe::1/128", DestinationVerdict::Metadata),
    ("fd00:100::100:200/128", DestinationVerdict::Metadata),
    // OpenStack over IPv6.
    ("fe80::a9fe:a9fe/128", DestinationVerdict::Metadata),
    ("0.0.0.0/8", DestinationVerdict::Unspecified),
    ("::/128", DestinationVerdict::Unspecified),
    ("127.0.0.0/8", DestinationVerdict::Loopback),
    ("::1/128", DestinationVerdict::Loopback),
    ("169.254.0.0/16", DestinationVerdict::LinkLocal),
    ("fe80::/10", DestinationVerdict::LinkLocal),
    // Site-local: deprecated (RFC 3879), but routers and stacks still recognise it.
    ("fec0::/10", DestinationVerdict::LinkLocal),
    ("224.0.0.0/4", DestinationVerdict::Multicast),
    ("ff00::/8", DestinationVerdict::Multicast),
    ("255.255.255.255/32", DestinationVerdict::Broadcast),
    ("240.0.0.0/4", DestinationVerdict::Reserved),
    // The discard prefix (RFC 6666) and dummy prefix (RFC 9780).
    ("100::/64", DestinationVerdict::Reserved),
    ("100:0:0:1::/64", DestinationVerdict::Reserved),
];

/// Blocks that are routed, but not on the public Internet: neither `*` nor a name reaches them.
const NOT_PUBLIC: [&str; 17] = [
    // Private (RFC 1918) and behind a carrier's NAT (RFC 6598).
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    // Protocol assignments, documentation, the old 6to4 relays, benchmarks.
    "192.0.0.0/24",
    "192.0.2.0/24",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "192.88.99.0/24",
    "198.18.0.0/15",
    // Protocol assignments (Teredo is one), documentation twice, 6to4.
    "2001::/23",
    "2001:db8::/32",
    "3fff::/20",
    "2002::/16",
    // NAT64 with a network's own prefix, and IPv4-compatible and IPv4-translated addresses. IPv6
    // outside 2000::/3 is not public anyway; they are listed to show that they were considered.
    "64:ff9b:1::/48",
    "::/96",
    "::ffff:0:0:0/96",
];

/// IPv6 addresses that IANA has assigned as global unicast.
const GLOBAL_V6: &str = "2000::/3";

static DENIED_NETS: LazyLock<Vec<(IpNet, DestinationVerdict)>> =
    LazyLock::new(|| DENIED.iter().map(|&(net, v)| (parse(net), v)).collect());
static NOT_PUBLIC_NETS: LazyLock<Vec<IpNet>> =
    LazyLock::new(|| NOT_PUBLIC.iter().map(|net| parse(net)).collect());
static GLOBAL_V6_NET: LazyLock<IpNet> = LazyLock::new(|| parse(GLOBAL_V6));

/// Returns the built-in blocks that `addr` lies in.
pub(super) fn denied(addr: IpAddr) -> impl Iterator<Item = &'static (IpNet, DestinationVerdict)> {
    DENIED_NETS
        .iter()
        .filter(move |(net, _)| net.contains(&addr))
}

/// Returns whether `addr` is on the public Internet. `addr` must be the address to connect to,
/// without an embedded IPv4 address.
pub(super) fn is_public(addr: IpAddr) -> bool {
    denied(addr).next().is_none()
        && !NOT_PUBLIC_NETS.iter().any(|net| net.contains(&addr))
        && (addr.is_ipv4() || GLOBAL_V6_NET.contains(&addr))
}

fn parse(net: &str) -> IpNet {
    net.parse()
        .unwrap_or_else(|e| panic!("{net}, a constant of this file, is no prefix: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_block_of_an_address_is_the_most_specific() {
        for (addr, verdict) in [
            ("169.254.169.254", DestinationVerdict::Metadata),
            ("fe80::a9fe:a9fe", DestinationVerdict::Metadata),
            ("fd00:ec2::254", DestinationVerdict::Metadata),
            ("169.254.1.1", DestinationVerdict::LinkLocal),
            ("255.255.255.255", DestinationVerdict::Broadcast),
            ("255.255.255.254", DestinationVerdict::Reserved),
            ("0.1.2.3", DestinationVerdict::Unspecified),
            ("::1", DestinationVerdict::Loopback),
            ("ff02::1", DestinationVerdict::Multicast),
        ] {
            let first = denied(addr.parse().unwrap()).next();
            assert_eq!(first.map(|&(_, v)| v), Some(verdict), "{addr}");
        }
    }

    #[test]
    fn public_addresses_are_those_that_iana_assigned_as_such() {
        for addr in [
            "1.1.1.1",
            "168.63.129.17",
            "2606:4700::1111",
            "2a00:1450::1",
            "2001:4860::1",
        ] {
            assert!(is_public(addr.parse().unwrap()), "{addr}");
        }
        for addr in [
            "10.0.0.1",
            "172.31.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "198.19.0.1",
            "203.0.113.9",
            "168.63.129.16",
            "fd12::1",
            "2001:db8::1",
            "2002:101:101::1",
            "2001::1",
            "4000::1",
            "64:ff9b:1::101:101",
            "::1.1.1.1",
            "5f00::1",
        ] {
            assert!(!is_public(addr.parse().unwrap()), "{addr}");
        }
    }
}
