use std::fmt::Write;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::identity::PrivateKey;
use crate::sim::{any_name, key, name};

fn parse(text: &str) -> Result<Members, MembersError> {
    Members::parse(text)
}

fn fault(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

/// Returns the text of a member with these keys and further lines.
fn entry(text: &str, keys: &[u8], more: &str) -> String {
    let keys: Vec<_> = keys
        .iter()
        .map(|number| format!("\"{}\"", key(*number).public()))
        .collect();
    format!(
        "[[member]]\nname = \"{text}\"\nkeys = [{}]\n{more}\n",
        keys.join(", ")
    )
}

#[test]
fn a_list_has_members_with_keys_addresses_and_labels() {
    let labels = "addresses = [\"fra1.example:7440\", \"[2001:db8::1]:7440\"]\nsite = \"fra\"\ncloud = \"x\"";
    let list = parse(&[entry("fra1", &[1], labels), entry("nyc1", &[2, 3], "")].concat()).unwrap();
    let all: Vec<_> = list.iter().map(|member| member.name.as_str()).collect();
    assert_eq!(all, ["fra1", "nyc1"]);
    let fra = list.by_name("fra1").unwrap();
    let addresses: Vec<_> = fra.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["fra1.example:7440", "[2001:db8::1]:7440"]);
    assert_eq!(
        (fra.site.as_deref(), fra.cloud.as_deref()),
        (Some("fra"), Some("x"))
    );
    let nyc = list.by_name("nyc1").unwrap();
    assert!(nyc.addresses.is_empty() && nyc.site.is_none() && nyc.cloud.is_none());
    for (number, expected) in [(1, "fra1"), (2, "nyc1"), (3, "nyc1")] {
        let member = list.by_key(&key(number).public()).unwrap();
        assert_eq!(member.name.as_str(), expected);
    }
    assert!(list.by_key(&key(4).public()).is_none() && list.by_name("fra").is_none());
    // Names are case-sensitive.
    assert!(list.by_name("FRA1").is_none());
    assert_eq!(parse("").unwrap(), Members::default());
}

#[test]
fn a_fault_names_the_member_and_the_rule() {
    let a = entry("a", &[1], "");
    let address = |text: &str| entry("b", &[2], &format!("addresses = [\"{text}\"]"));
    for (text, expected) in [
        (
            [&a[..], &entry("a", &[2], "")].concat(),
            "member a: another member has the same name",
        ),
        (
            [&a[..], &entry("b", &[1], "")].concat(),
            "member b: member a has the same key",
        ),
        (
            [&a[..], &entry("b", &[2, 1], "")].concat(),
            "member b: member a has the same key",
        ),
        (
            entry("b", &[2, 2], ""),
            "member b: it has the same key twice",
        ),
        (entry("b", &[], ""), "member b: it has 0 keys"),
        (entry("b", &[2, 3, 4], ""), "member b: it has 3 keys"),
        (
            "[[member]]\nname = \"b\"\nkeys = [\"x\"]".to_owned(),
            "member b: keys: `x` is not a public key",
        ),
        (
            format!("[[member]]\nname = \"b\"\nkeys = [\"{}=\"]", "A".repeat(43)),
            "member b: keys: `AAAAAAAA…` is a public key that no private key",
        ),
        (
            address("fra1"),
            "member b: addresses: `fra1` does not end in a port",
        ),
        (
            address("0.0.0.0:1"),
            "member b: addresses: `0.0.0.0:1` is the unspecified",
        ),
        (
            address("fra1:0"),
            "member b: addresses: `fra1:0` has port 0",
        ),
    ] {
        let message = fault(&text);
        assert!(message.starts_with(expected), "{message}");
    }
    for (text, expected) in [
        (entry("", &[1], ""), "`` is not a name of a member"),
        (entry("a b", &[1], ""), "`a b` is not a name of a member"),
        (entry("a > b", &[1], ""), "is not a name of a member"),
        (entry("a", &[1], "port = 1"), "unknown field `port`"),
        (entry("a", &[1], "site = 1"), "invalid type"),
        (
            "[[member]]\nname = \"a\"".to_owned(),
            "missing field `keys`",
        ),
        (a.replace("name = \"a\"", ""), "missing field `name`"),
        (a.replace("member", "members"), "unknown field `members`"),
        ("[[member".to_owned(), "TOML parse error at line 1"),
    ] {
        let message = fault(&text);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn every_list_has_its_bounds() {
    let addresses = |count: usize| {
        let all = vec!["\"a:1\""; count].join(", ");
        parse(&entry("a", &[1], &format!("addresses = [{all}]")))
    };
    assert!(addresses(MAX_ADDRESSES).is_ok());
    let message = addresses(MAX_ADDRESSES + 1).unwrap_err().to_string();
    assert!(message.starts_with("member a: it has 9 addresses; at most 8"));

    let long = "n".repeat(MAX_NAME);
    assert!(parse(&entry(&long, &[1], "")).is_ok());
    assert!(parse(&entry(&format!("{long}n"), &[1], "")).is_err());

    let many = |count: usize| {
        let mut text = String::new();
        for number in 0..count {
            let mut bytes = [9; 32];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            let key = PublicKey::new(bytes);
            writeln!(text, "[[member]]\nname = \"m{number}\"\nkeys = [\"{key}\"]").unwrap();
        }
        assert!((text.len() as u64) < MAX_FILE);
        parse(&text)
    };
    assert_eq!(many(MAX_MEMBERS).unwrap().iter().len(), MAX_MEMBERS);
    let message = many(MAX_MEMBERS + 1).unwrap_err().to_string();
    assert_eq!(message, "4097 members; at most 4096 are allowed");
}

#[test]
fn a_long_name_is_repeated_in_part() {
    let error = "x y".repeat(1 << 16).parse::<MemberName>().unwrap_err();
    assert!(error.to_string().len() < 250);
    let error = "\u{1f600}".repeat(100).parse::<MemberName>().unwrap_err();
    assert!(error.to_string().len() < 500);
}

proptest! {
    #[test]
    fn any_name_is_its_own_text(name in any_name()) {
        prop_assert_eq!(name.as_str().parse::<MemberName>(), Ok(name.clone()));
        prop_assert_eq!(name.to_string(), name.as_str());
    }

    #[test]
    fn a_list_is_found_by_every_name_and_key_or_has_a_fault(
        members in vec((0_u8..6, vec(0_u8..12, 0..4)), 0..6),
    ) {
        let text: String = members
            .iter()
            .map(|(number, keys)| entry(&format!("m{number}"), keys, ""))
            .collect();
        let names: Vec<_> = members.iter().map(|(number, _)| *number).collect();
        let keys: Vec<_> = members.iter().flat_map(|(_, keys)| keys.clone()).collect();
        let unique = |all: &[u8]| {
            all.iter().collect::<std::collections::BTreeSet<_>>().len() == all.len()
        };
        let valid = unique(&names)
            && unique(&keys)
            && members.iter().all(|(_, keys)| (1..=2).contains(&keys.len()));
        let list = parse(&text);
        prop_assert_eq!(list.is_ok(), valid);
        if let Ok(list) = list {
            for (number, keys) in members {
                let member = list.by_name(&format!("m{number}")).unwrap();
                prop_assert_eq!(&member.name, &name(&format!("m{number}")));
                for number in keys {
                    prop_assert_eq!(list.by_key(&key(number).public()), Some(member));
                }
            }
        }
    }
}

#[test]
fn a_member_may_have_a_price() {
    let member = |price: &str| {
        let key = PrivateKey::from_seed(&[7; 32]).public();
        Members::parse(&format!(
            "[[member]]\nname = \"a\"\nkeys = [\"{key}\"]\nprice = {price}"
        ))
    };
    for (text, price) in [("0.09", 0.09), ("1", 1.0), ("0", 0.0)] {
        let members = member(text).expect("a price");
        let found = members.by_name("a").and_then(|a| a.price);
        assert_eq!(found.map(Price::per_gb), Some(price));
    }
    for text in ["-0.1", "nan", "inf", "1e7"] {
        let error = member(text).expect_err(text).to_string();
        assert!(error.contains("is not a price"), "{error}");
    }
}
