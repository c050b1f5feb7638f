use proptest::prelude::*;

use super::*;
use crate::sim::any_target;

fn name(host: &str, port: u16) -> Target {
    Target::Name {
        host: host.into(),
        port,
    }
}

fn read(s: &str) -> Result<Target, TargetError> {
    s.parse()
}

proptest! {
    #[test]
    fn a_target_is_read_as_it_is_written(target in any_target()) {
        prop_assert_eq!(read(&target.to_string()), Ok(target));
    }
}

#[test]
fn a_target_is_an_address_or_a_name_with_a_port() {
    for (text, target) in [
        ("example.org:443", name("example.org", 443)),
        ("example.org.:443", name("example.org.", 443)),
        ("localhost:1", name("localhost", 1)),
        ("a.1.b-c_d:65535", name("a.1.b-c_d", 65535)),
        ("10.0.0.1:80", Target::Addr(([10, 0, 0, 1], 80).into())),
        (
            "[2001:db8::1]:80",
            Target::Addr("[2001:db8::1]:80".parse().unwrap()),
        ),
    ] {
        assert_eq!(read(text), Ok(target.clone()));
        assert_eq!(target.to_string(), text);
        assert_eq!(target.check(), Ok(()));
    }
    assert_eq!(read("[::ffff:10.0.0.1]:80"), read("10.0.0.1:80"));
}

#[test]
fn an_invalid_target_names_the_rule_that_it_breaks() {
    let long_label = "a".repeat(64);
    let long = [
        "a".repeat(63),
        "b".repeat(63),
        "c".repeat(63),
        "d".repeat(62),
    ]
    .join(".");
    assert_eq!(long.len(), 254);
    for (text, fault) in [
        (
            "example.org",
            TargetError::Port as fn(String) -> TargetError,
        ),
        ("example.org:", TargetError::Port),
        ("example.org:http", TargetError::Port),
        ("example.org:+443", TargetError::Port),
        ("example.org:65536", TargetError::Port),
        ("", TargetError::Port),
        ("example.org:0", TargetError::PortZero),
        ("10.0.0.1:0", TargetError::PortZero),
        ("2001:db8::1:80", TargetError::Brackets),
        ("[nonsense]:80", TargetError::Host),
        (":80", TargetError::Host),
        ("a b:80", TargetError::Host),
        ("a..b:80", TargetError::Host),
        (".:80", TargetError::Host),
        ("-a.b:80", TargetError::Host),
        ("a-.b:80", TargetError::Host),
        ("b\u{fc}cher.example:80", TargetError::Host),
        ("a/b:80", TargetError::Host),
        ("a\0b:80", TargetError::Host),
        (&format!("{long_label}.org:80"), TargetError::Host),
        (&format!("{long}:80"), TargetError::Host),
        // Numbers that resolvers read as addresses.
        ("127.1:80", TargetError::Host),
        ("2130706433:80", TargetError::Host),
        ("0x7f000001:80", TargetError::Host),
        ("127.0.0.0X1:80", TargetError::Host),
        ("127.0.0.1.:80", TargetError::Host),
        ("0.0.0.0:80", TargetError::Unspecified),
        ("[::]:80", TargetError::Unspecified),
        ("[fe80::1%2]:80", TargetError::Zone),
    ] {
        assert_eq!(read(text), Err(fault(text.into())), "{text}");
    }
    assert_eq!(
        Target::Addr("[::ffff:0.0.0.0]:80".parse().unwrap()).check(),
        Err(TargetError::Unspecified("[::ffff:0.0.0.0]:80".into()))
    );
    assert!(read(&format!("{}:80", &long[1..])).is_ok());
}
