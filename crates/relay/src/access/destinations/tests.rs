use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

fn rules(texts: &[&str]) -> Vec<Rule> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn allow(texts: &[&str]) -> Destinations {
    Destinations::new(rules(texts), Vec::new()).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(d: &Destinations, addr: &str) -> DestinationVerdict {
    d.check_addr(addr.parse().unwrap(), None)
}

fn by_name(d: &Destinations, addr: &str, name: &str) -> DestinationVerdict {
    d.check_addr(addr.parse().unwrap(), Some(name))
}

#[test]
fn without_a_rule_nothing_is_allowed() {
    let d = Destinations::default();
    assert_eq!(
        d.check_name("example.org", 443),
        DestinationVerdict::NotListed
    );
    assert_eq!(at(&d, "1.1.1.1:443"), DestinationVerdict::NotListed);
    assert_eq!(at(&d, "127.0.0.1:443"), DestinationVerdict::Loopback);
}

#[test]
fn a_star_means_public_addresses_and_its_ports_only() {
    let d = allow(&["*:443"]);
    assert_eq!(
        d.check_name("example.org", 443),
        DestinationVerdict::Allowed
    );
    assert_eq!(at(&d, "1.1.1.1:443"), DestinationVerdict::Allowed);
    assert_eq!(at(&d, "[2606:4700::1111]:443"), DestinationVerdict::Allowed);
    assert_eq!(at(&d, "1.1.1.1:80"), DestinationVerdict::NotListed);
    assert_eq!(
        d.check_name("example.org", 80),
        DestinationVerdict::NotListed
    );
    assert_eq!(at(&d, "10.0.0.1:443"), DestinationVerdict::NotPublic);
    assert_eq!(at(&d, "[fd12::1]:443"), DestinationVerdict::NotPublic);
    assert_eq!(at(&d, "169.254.169.254:443"), DestinationVerdict::Metadata);
}

#[test]
fn a_name_that_changes_to_an_inner_address_is_denied() {
    let d = allow(&["example.org:443", "*.corp.example:443"]);
    assert_eq!(
        d.check_name("EXAMPLE.org.", 443),
        DestinationVerdict::Allowed
    );
    assert_eq!(
        by_name(&d, "1.1.1.1:443", "Example.org."),
        DestinationVerdict::Allowed
    );
    assert_eq!(
        by_name(&d, "127.0.0.1:443", "example.org"),
        DestinationVerdict::Loopback
    );
    assert_eq!(
        by_name(&d, "10.0.0.1:443", "example.org"),
        DestinationVerdict::NotPublic
    );
    assert_eq!(
        by_name(&d, "10.0.0.1:443", "db.corp.example"),
        DestinationVerdict::NotPublic
    );
    // The address alone was never allowed.
    assert_eq!(at(&d, "1.1.1.1:443"), DestinationVerdict::NotListed);
    assert_eq!(
        by_name(&d, "1.1.1.1:443", "corp.example"),
        DestinationVerdict::NotListed
    );
    assert_eq!(
        by_name(&d, "1.1.1.1:443", "badcorp.example"),
        DestinationVerdict::NotListed
    );
    assert_eq!(
        by_name(&d, "1.1.1.1:443", "127.1"),
        DestinationVerdict::NotAName
    );
}

#[test]
fn a_name_may_lead_into_a_prefix_that_is_allowed() {
    let d = allow(&["10.0.0.0/8:5432"]);
    assert_eq!(
        d.check_name("db.corp.example", 5432),
        DestinationVerdict::Allowed
    );
    assert_eq!(
        by_name(&d, "10.1.2.3:5432", "db.corp.example"),
        DestinationVerdict::Allowed
    );
    assert_eq!(
        by_name(&d, "11.1.2.3:5432", "db.corp.example"),
        DestinationVerdict::NotListed
    );
    assert_eq!(
        d.check_name("db.corp.example", 22),
        DestinationVerdict::NotListed
    );
}

#[test]
fn only_a_prefix_as_narrow_as_the_block_allows_it() {
    let wide = allow(&["0.0.0.0/0:*", "[::]/0:*", "*:*", "localhost:*"]);
    for (addr, verdict) in [
        ("0.0.0.0:80", DestinationVerdict::Unspecified),
        ("127.0.0.1:80", DestinationVerdict::Loopback),
        ("[::1]:80", DestinationVerdict::Loopback),
        ("[::]:80", DestinationVerdict::Unspecified),
        ("169.254.1.1:80", DestinationVerdict::LinkLocal),
        ("[fe80::1]:80", DestinationVerdict::LinkLocal),
        ("[fd00:ec2::254]:80", DestinationVerdict::Metadata),
        ("100.100.100.200:80", DestinationVerdict::Metadata),
        ("168.63.129.16:80", DestinationVerdict::Metadata),
        ("224.0.0.1:80", DestinationVerdict::Multicast),
        ("255.255.255.255:80", DestinationVerdict::Broadcast),
        ("250.0.0.1:80", DestinationVerdict::Reserved),
    ] {
        assert_eq!(at(&wide, addr), verdict, "{addr}");
        assert_eq!(by_name(&wide, addr, "localhost"), verdict, "{addr}");
    }
    // It does allow every ordinary address.
    assert_eq!(at(&wide, "10.0.0.1:80"), DestinationVerdict::Allowed);

    let narrow = allow(&["127.0.0.0/8:80", "169.254.0.0/16:80", "127.9.0.0/16:81"]);
    assert_eq!(at(&narrow, "127.0.0.1:80"), DestinationVerdict::Allowed);
    assert_eq!(at(&narrow, "127.0.0.1:81"), DestinationVerdict::Loopback);
    assert_eq!(at(&narrow, "127.9.0.1:81"), DestinationVerdict::Allowed);
    assert_eq!(at(&narrow, "169.254.1.1:80"), DestinationVerdict::Allowed);
    // The rule names link-local, but not this address.
    assert_eq!(
        at(&narrow, "169.254.169.254:80"),
        DestinationVerdict::Metadata
    );
    let explicit = allow(&["169.254.169.254:80"]);
    assert_eq!(
        at(&explicit, "169.254.169.254:80"),
        DestinationVerdict::Allowed
    );
}

#[test]
fn this_machine_and_the_mesh_are_not_reached_by_accident() {
    let mut d = allow(&[
        "0.0.0.0/0:*",
        "198.41.0.0/24:*",
        "8.8.8.8:53",
        "127.0.0.0/8:9",
    ]);
    let own = OwnAddresses::default();
    d.set_own(own.clone());
    own.replace([ip("198.41.0.4"), ip("::ffff:8.8.8.8"), ip("127.0.0.1")]);
    let mesh = MeshAddresses::default();
    d.set_mesh(mesh.clone());
    assert_eq!(at(&d, "9.9.9.9:80"), DestinationVerdict::Allowed);
    mesh.replace([ip("9.9.9.9"), ip("::ffff:7.7.7.7")]);
    assert_eq!(at(&d, "198.41.0.4:80"), DestinationVerdict::Own);
    assert_eq!(at(&d, "198.41.0.5:80"), DestinationVerdict::Allowed);
    assert_eq!(at(&d, "[64:ff9b::198.41.0.4]:80"), DestinationVerdict::Own);
    assert_eq!(at(&d, "8.8.8.8:53"), DestinationVerdict::Allowed);
    assert_eq!(at(&d, "8.8.8.8:54"), DestinationVerdict::Own);
    assert_eq!(at(&d, "9.9.9.9:80"), DestinationVerdict::MeshInternal);
    assert_eq!(at(&d, "7.7.7.7:80"), DestinationVerdict::MeshInternal);
    assert_eq!(at(&d, "127.0.0.1:9"), DestinationVerdict::Allowed);
}

#[test]
fn an_address_of_the_networks_nat64_is_checked_as_the_ipv4_address_behind_it() {
    let mut d = allow(&["*:*", "192.0.2.0/24:80"]);
    let inside = "[2001:4860:64::10.0.0.1]:80";
    assert_eq!(at(&d, inside), DestinationVerdict::Allowed, "unknown");
    d.set_nat64(&["2001:4860:64::/96".parse().unwrap()]);
    let public = "[2001:4860:64::8.8.8.8]:80";
    assert_eq!(at(&d, public), DestinationVerdict::Allowed);
    let metadata = "[2001:4860:64::169.254.169.254]:80";
    assert_ne!(at(&d, metadata), DestinationVerdict::Allowed);
    assert_ne!(at(&d, inside), DestinationVerdict::Allowed);
}

#[test]
fn a_denial_wins_over_every_permission() {
    let deny = rules(&["*:25", "1.1.1.0/24:*", "*.evil.example:*"]);
    let d = Destinations::new(rules(&["*:*", "10.0.0.0/8:*", "1.1.1.1:443"]), deny).unwrap();
    assert_eq!(at(&d, "1.1.1.1:443"), DestinationVerdict::DeniedRule);
    assert_eq!(
        at(&d, "[64:ff9b::1.1.1.1]:443"),
        DestinationVerdict::DeniedRule
    );
    assert_eq!(at(&d, "10.0.0.1:25"), DestinationVerdict::DeniedRule);
    assert_eq!(
        d.check_name("a.EVIL.example.", 80),
        DestinationVerdict::DeniedRule
    );
    assert_eq!(
        by_name(&d, "2.2.2.2:80", "a.evil.example"),
        DestinationVerdict::DeniedRule
    );
    assert_eq!(
        d.check_name("example.org", 25),
        DestinationVerdict::DeniedRule
    );
    assert_eq!(
        by_name(&d, "2.2.2.2:80", "evil.example"),
        DestinationVerdict::Allowed
    );
}

#[test]
fn an_address_in_place_of_a_name_is_checked_as_an_address() {
    let d = allow(&["*:*"]);
    assert_eq!(d.check_name("127.0.0.1", 80), DestinationVerdict::Loopback);
    assert_eq!(d.check_name("[::1]", 80), DestinationVerdict::Loopback);
    assert_eq!(
        d.check_name("::ffff:127.0.0.1", 80),
        DestinationVerdict::Loopback
    );
    assert_eq!(d.check_name("1.1.1.1", 80), DestinationVerdict::Allowed);
    for host in [
        "127.1",
        "0x7f000001",
        "2130706433",
        "127.0.0.1.",
        "[127.0.0.1]",
        "::1%lo",
        "",
    ] {
        assert_eq!(
            d.check_name(host, 80),
            DestinationVerdict::NotAName,
            "{host}"
        );
    }
    assert_eq!(
        d.check_name("example.org", 0),
        DestinationVerdict::NotListed
    );
}

#[test]
fn dns64_reaches_public_hosts_and_no_others() {
    let d = allow(&["example.org:443"]);
    let judge = |addr| by_name(&d, addr, "example.org");
    assert_eq!(judge("[64:ff9b::1.1.1.1]:443"), DestinationVerdict::Allowed);
    assert_eq!(
        judge("[64:ff9b::10.0.0.1]:443"),
        DestinationVerdict::NotPublic
    );
    assert_eq!(
        judge("[64:ff9b::127.0.0.1]:443"),
        DestinationVerdict::Loopback
    );
    // A tunnel's address is not public, whatever IPv4 address it embeds.
    assert_eq!(
        judge("[2002:101:101::1]:443"),
        DestinationVerdict::NotPublic
    );
}

#[test]
fn a_list_has_a_maximum_length() {
    let rule: Rule = "*:443".parse().unwrap();
    let most = vec![rule; super::super::MAX_RULES];
    assert!(Destinations::new(most.clone(), Vec::new()).is_ok());
    let more = [most, rules(&["*:80"])].concat();
    assert!(Destinations::new(more.clone(), Vec::new()).is_err());
    assert!(Destinations::new(Vec::new(), more).is_err());
}

/// Returns every form in which IPv6 can contain an IPv4 address.
fn spellings(v4: Ipv4Addr, noise: u64) -> Vec<IpAddr> {
    let [a, b, c, d] = v4.octets();
    let [hi, lo] = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
    let n = noise.to_be_bytes();
    let s = |i: usize| u16::from_be_bytes([n[2 * i], n[2 * i + 1]]);
    let v6 = |segments: [u16; 8]| IpAddr::V6(Ipv6Addr::from(segments));
    vec![
        v4.into(),
        v4.to_ipv6_mapped().into(),
        v6([0, 0, 0, 0, 0xffff, 0, hi, lo]),
        v6([0x64, 0xff9b, 0, 0, 0, 0, hi, lo]),
        v6([0x64, 0xff9b, 1, s(0), s(1), s(2), hi, lo]),
        v6([
            0x64,
            0xff9b,
            1,
            hi,
            u16::from(c),
            u16::from(d) << 8,
            s(0),
            s(1),
        ]),
        v6([0x2002, hi, lo, s(0), s(1), s(2), s(3), 1]),
        v6([0x2001, 0, hi, lo, s(0), s(1), s(2), s(3)]),
        v6([0x2001, 0, s(0), s(1), s(2), s(3), !hi, !lo]),
    ]
}

/// An address of a block that is denied by default.
fn inner() -> impl Strategy<Value = Ipv4Addr> {
    let blocks = prop_oneof![
        Just((0x0000_0000u32, 8u32)),
        Just((0x7f00_0000, 8)),
        Just((0xa9fe_0000, 16)),
        Just((0xe000_0000, 4)),
        Just((0xf000_0000, 4)),
        Just((0x6464_64c8, 32)),
        Just((0xa83f_8110, 32)),
        Just((0xc000_00c0, 32)),
    ];
    (blocks, any::<u32>()).prop_map(|((net, len), host)| {
        let host_bits = u32::MAX.checked_shr(len).unwrap_or(0);
        Ipv4Addr::from(net | (host & host_bits))
    })
}

#[test]
fn a_plain_list_knows_no_names_and_no_private_addresses() {
    let mut destinations = Destinations::default();
    destinations.set_nat64(&["2001:db8:64::/96".parse().unwrap()]);
    let is_in =
        |list: &[&str], addr: &str| destinations.are_in(&rules(list), addr.parse().unwrap());
    for addr in ["10.0.0.1:80", "127.0.0.1:80", "[fd00::1]:80", "8.8.8.8:80"] {
        assert!(is_in(&["*:80"], addr), "{addr}");
        assert!(!is_in(&["*:81", "example.org:*"], addr), "{addr}");
    }
    for addr in [
        "10.0.0.1:80",
        "[::ffff:10.0.0.1]:80",
        "[2001:db8:64::a00:1]:80",
    ] {
        assert!(is_in(&["10.0.0.0/8:80"], addr), "{addr}");
    }
    assert!(!is_in(&["10.0.0.0/8:80"], "[2002:a00:1::1]:80"));
}

proptest! {
    #[test]
    fn no_spelling_of_a_denied_address_passes(
        v4 in inner(), noise in any::<u64>(), port in 1u16..,
    ) {
        let d = allow(&["*:*", "0.0.0.0/0:*", "[::]/0:*", "[64:ff9b::]/32:*", "[2002::]/16:*",
                        "example.org:*", "*.org:*", "128.0.0.0/1:*", "168.0.0.0/6:*"]);
        for ip in spellings(v4, noise) {
            let addr = SocketAddr::new(ip, port);
            prop_assert!(!d.check_addr(addr, None).is_allowed(), "{}", addr);
            prop_assert!(!d.check_addr(addr, Some("example.org")).is_allowed(), "{}", addr);
            prop_assert!(!d.check_name(&ip.to_string(), port).is_allowed(), "{}", addr);
        }
    }

    #[test]
    fn no_spelling_of_an_address_that_a_rule_denies_passes(
        v4 in any::<u32>(), len in 1u8..=32, noise in any::<u64>(), port in 1u16..,
    ) {
        let v4 = Ipv4Addr::from(v4);
        let net = IpNet::new(v4.into(), len).unwrap().trunc();
        let deny = rules(&[&format!("{net}:*")]);
        let d = Destinations::new(rules(&["*:*", "0.0.0.0/0:*", "[::]/0:*", &format!("{v4}:*")]), deny).unwrap();
        for ip in spellings(v4, noise) {
            let verdict = d.check_addr(SocketAddr::new(ip, port), Some("example.org"));
            prop_assert_eq!(verdict, DestinationVerdict::DeniedRule, "{}", ip);
        }
    }

    #[test]
    fn the_mapped_spelling_of_an_address_is_judged_as_the_address(v4 in any::<u32>(), port in 1u16..) {
        let d = allow(&["*:1-1023", "10.0.0.0/8:*", "127.0.0.1:*", "64.0.0.0/2:2000-3000"]);
        let v4 = Ipv4Addr::from(v4);
        let plain = d.check_addr((v4, port).into(), None);
        prop_assert_eq!(d.check_addr((v4.to_ipv6_mapped(), port).into(), None), plain);
    }

    #[test]
    fn names_are_compared_as_dns_does(
        labels in prop::collection::vec("[a-z][a-z0-9]{0,6}", 1..4), upper in any::<bool>(), dot in any::<bool>(),
    ) {
        let parent = labels.join(".");
        let d = allow(&[&format!("{parent}:1"), &format!("*.{parent}:2")]);
        let spell = |name: &str| {
            let name = if upper { name.to_uppercase() } else { name.to_owned() };
            if dot { format!("{name}.") } else { name }
        };
        let judge = |name: &str, port| d.check_name(&spell(name), port).is_allowed();
        let (a, ab, joined, longer) =
            (format!("a.{parent}"), format!("a.b.{parent}"), format!("a{parent}"), format!("{parent}.not-it"));
        for (name, port, allowed) in [
            (&parent, 1, true), (&parent, 2, false), (&a, 1, false), (&a, 2, true), (&ab, 2, true),
            (&joined, 2, false), (&longer, 1, false), (&longer, 2, false),
        ] {
            prop_assert_eq!(judge(name, port), allowed, "{}:{}", name, port);
        }
    }

    #[test]
    fn no_host_is_a_panic(host in ".{0,60}", port in any::<u16>(), bits in any::<u128>()) {
        let d = allow(&["*:443", "example.org:*", "*.example.org:*", "10.0.0.0/8:*"]);
        d.check_name(&host, port);
        d.check_addr((Ipv6Addr::from(bits), port).into(), Some(&host));
    }
}
