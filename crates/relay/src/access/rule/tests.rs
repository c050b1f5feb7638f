use proptest::prelude::*;

use super::*;

#[test]
fn a_rule_is_parsed_in_every_form_and_printed_in_one() {
    for (text, written) in [
        ("10.0.0.0/8:80", "10.0.0.0/8:80"),
        ("10.0.0.0/8:80-90", "10.0.0.0/8:80-90"),
        ("10.0.0.0/8:*", "10.0.0.0/8:*"),
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("10.0.0.1/32:80-80", "10.0.0.1:80"),
        ("0.0.0.0/0:1-65535", "0.0.0.0/0:*"),
        ("[2001:db8::]/32:443", "[2001:db8::]/32:443"),
        ("[2001:db8::/32]:443", "[2001:db8::]/32:443"),
        ("2001:db8::/32:443", "[2001:db8::]/32:443"),
        ("2001:db8:0::1/128:443", "[2001:db8::1]:443"),
        ("[2001:db8::1]:443", "[2001:db8::1]:443"),
        ("[::]/0:*", "[::]/0:*"),
        ("Example.ORG.:443", "example.org:443"),
        ("*.Example.org:443", "*.example.org:443"),
        ("*:443", "*:443"),
        ("*:*", "*:*"),
    ] {
        let rule: Rule = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(rule.to_string(), written, "{text}");
    }
}

#[test]
fn a_mistake_is_reported_in_one_sentence() {
    for (text, sentence) in [
        (
            "10.0.0.0/8",
            "`10.0.0.0/8` does not end in ports: write 10.0.0.0/8:443",
        ),
        ("[2001:db8::]/32", "`[2001:db8::]/32` does not end in ports"),
        ("[2001:db8::1]", "`[2001:db8::1]` does not end in ports"),
        ("example.org", "`example.org` does not end in ports"),
        (
            "2001:db8::1:443",
            "looks like an IPv6 address: put it in brackets",
        ),
        ("example.org:0", "`0` is not a port"),
        ("example.org:90-80", "`90-80` is not a port"),
        ("example.org:+80", "`+80` is not a port"),
        ("example.org:80,443", "`80,443` is not a port"),
        ("example.org:65536", "`65536` is not a port"),
        ("example.org:", "`` is not a port"),
        ("10.0.0.0/33:80", "`10.0.0.0/33` is not an address prefix"),
        ("[10.0.0.0]/8:80", "`[10.0.0.0]/8` is not an address prefix"),
        ("[2001:db8::/32]/32:80", "is not an address prefix"),
        ("[2001:db8::]x/32:80", "is not an address prefix"),
        (
            "example.org/8:80",
            "`example.org/8` is not an address prefix",
        ),
        (
            "10.1.2.3/8:80",
            "`10.1.2.3/8` has bits set beyond its prefix: did you mean 10.0.0.0/8?",
        ),
        (
            "[::ffff:10.0.0.0]/104:80",
            "`::ffff:10.0.0.0/104` is IPv4 written as IPv6",
        ),
        ("127.1:80", "`127.1` is not an address, a name"),
        (
            "*example.org:80",
            "`*example.org` is not an address, a name",
        ),
        ("a.*.org:80", "`a.*.org` is not an address, a name"),
        ("*.:80", "`*.` is not an address, a name"),
        ("bücher.example:80", "xn--"),
        (":80", "`` is not an address, a name"),
    ] {
        let error = text.parse::<Rule>().unwrap_err().to_string();
        assert!(error.contains(sentence), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(text in "[\\[\\]*./:a-f0-9-]{1,24}") {
        if let Ok(rule) = text.parse::<Rule>() {
            prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
        }
    }

    #[test]
    fn no_text_is_a_panic(text in ".{0,40}") {
        let _ = text.parse::<Rule>();
    }

    #[test]
    fn every_prefix_survives_the_round_trip(
        bits in any::<u128>(), len in 0u8..=128, v6 in any::<bool>(), port in 1u16..,
    ) {
        let net: IpNet = if v6 {
            ipnet::Ipv6Net::new(bits.into(), len).unwrap().trunc().into()
        } else {
            #[expect(clippy::cast_possible_truncation, reason = "any 32 bits will do")]
            let addr = (bits as u32).into();
            ipnet::Ipv4Net::new(addr, len % 33).unwrap().trunc().into()
        };
        let rule = Rule { pattern: Pattern::Prefix(net), ports: port.to_string().parse().unwrap() };
        let mapped = matches!(net, IpNet::V6(n) if n.prefix_len() >= 96 && n.addr().to_ipv4_mapped().is_some());
        if !mapped {
            prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
        }
    }
}
