use super::*;

const GOOD: &str = r#"
[mesh.dns]
zone = "steer.example.org"
listen = ":5353"
ttl = "20s"
rtt_file = "/etc/taut/rtt.txt"

[[mesh.dns.name_server]]
name = "ns1"
addresses = ["192.0.2.53"]

[[mesh.dns.name_server]]
name = "ns.example.net."

[[mesh.dns.relay]]
name = "fra1"
addresses = ["192.0.2.1", "2001:db8::1"]
probe = "http://192.0.2.1:9464/readyz"

[[mesh.dns.relay]]
name = "nyc1"
addresses = ["198.51.100.1"]
probe = "198.51.100.1:443"

[[mesh.dns.name]]
name = "www"

[[mesh.dns.name]]
name = "@"
relays = ["nyc1"]

[relay]
anything = true
"#;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("taut.toml")).map_err(|e| e.to_string())
}

#[test]
fn a_prefix_of_ipv4_mapped_addresses_is_that_of_ipv4() {
    let unlimited = r#"unlimited = ["::ffff:10.0.0.0/104", "2001:db8::/32", "::/0"]"#;
    let config = parse(&GOOD.replace("ttl = ", &format!("{unlimited}\nttl = "))).unwrap();
    let written = config.unlimited.iter().map(ToString::to_string);
    assert_eq!(
        written.collect::<Vec<_>>(),
        ["10.0.0.0/8", "2001:db8::/32", "::/0"]
    );
}

#[test]
fn a_section_is_read_with_its_defaults() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.listen, [Listen::All(5353)]);
    assert_eq!(config.contact.to_string(), "hostmaster.steer.example.org.");
    assert_eq!(config.ttl, 20);
    assert_eq!(config.rate_limit, Some(1000.0));
    assert_eq!(config.names[1].1, [1]);
    assert_eq!(config.names[1].0, config.zone);
    assert_eq!(
        config.relays[0].probe,
        Some(Probe::Http {
            address: "192.0.2.1:9464".parse().unwrap(),
            path: "/readyz".into()
        })
    );
    assert_eq!(
        config.relays[1].probe,
        Some(Probe::Connect("198.51.100.1:443".parse().unwrap()))
    );
    assert_eq!(config.relay("nyc1"), Some(1));
    assert_eq!(config.relay("lon1"), None);
}

#[test]
fn a_mistake_is_reported_with_its_line_and_field() {
    for (from, to, line, said) in [
        (
            "zone = \"steer.example.org\"",
            "zone = \"a..b\"",
            3,
            "mesh.dns.zone: `a..b` is not a domain name",
        ),
        (
            "\":5353\"",
            "\"53\"",
            4,
            "mesh.dns.listen: `53` is not an address to listen on",
        ),
        (
            "\"20s\"",
            "\"2h\"",
            5,
            "mesh.dns.ttl: write a duration from 1s to 1h",
        ),
        (
            "\"192.0.2.53\"",
            "",
            9,
            "ns1.steer.example.org. is in the zone: write its `addresses`",
        ),
        (
            "\"2001:db8::1\"",
            "\"192.0.2.9\"",
            17,
            "write one address of IPv4, one of IPv6",
        ),
        (
            "http://192.0.2.1:9464/readyz",
            "http://fra1/readyz",
            18,
            "names are not looked up",
        ),
        (
            "name = \"nyc1\"",
            "name = \"fra1\"",
            21,
            "`fra1` is listed twice",
        ),
        ("[\"nyc1\"]", "[\"lon1\"]", 30, "there is no relay `lon1`"),
        (
            "name = \"@\"",
            "name = \"www\"",
            3,
            "`www.steer.example.org.` is listed twice",
        ),
        (
            "name = \"@\"",
            "name = \"www.example.org.\"",
            3,
            "is not in the zone",
        ),
        ("ttl =", "tttl =", 5, "unknown field `tttl`"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let error = parse(&GOOD.replacen(from, to, 1)).expect_err(to);
        assert!(error.starts_with(&format!("taut.toml:{line}: ")), "{error}");
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_file_without_the_section_says_so() {
    let error = parse("[relay]\nx = 1\n").expect_err("no section");
    assert!(error.contains("no [mesh.dns]"), "{error}");
}

#[test]
fn the_mail_address_of_the_operator_becomes_a_name() {
    let contact = "zone = \"steer.example.org\"\ncontact = \"dns.admin@example.org\"";
    let config = parse(&GOOD.replace("zone = \"steer.example.org\"", contact)).unwrap();
    assert_eq!(config.contact.iter().next(), Some(&b"dns.admin"[..]));
}
