use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::sim::key;

const MESH: u8 = 50;

fn keys() -> [PublicKey; 1] {
    [key(MESH).public()]
}

fn list(count: u8) -> String {
    let member = |n: u8| {
        let key = key(n).public();
        format!("[[member]]\nname = \"m{n}\"\nkeys = [\"{key}\"]\n")
    };
    (1..=count).map(member).collect()
}

fn statement(serial: u64) -> Statement {
    Statement {
        serial,
        expires: None,
        smaller_since: None,
    }
}

fn signed(count: u8, statement: &Statement) -> Members {
    let text = sign(&list(count), statement, &key(MESH)).unwrap();
    Members::parse_signed(&text, &keys()).unwrap()
}

fn fault(text: &str) -> String {
    let parsed = Members::parse_signed(text, &keys());
    parsed.unwrap_err().to_string()
}

#[test]
fn a_signed_list_says_what_its_signer_said_and_is_a_list_for_others() {
    let said = Statement {
        serial: 1_764_039_000,
        expires: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_771_804_800)),
        smaller_since: Some(7),
    };
    let text = sign(&list(3), &said, &key(MESH)).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    assert_eq!(first.len(), MARK.len() + 88);
    let start =
        "serial = 1764039000\nexpires = \"2026-02-23T00:00:00Z\"\nsmaller_since = 7\n\n[[member]]";
    assert!(rest.starts_with(start), "{rest}");
    // One of two keys is enough, whichever it is.
    for keys in [[1, MESH], [MESH, 1]] {
        let keys = keys.map(|n| key(n).public());
        let members = Members::parse_signed(&text, &keys).unwrap();
        assert_eq!(members.statement(), Some(&said));
        assert_eq!(members.iter().len(), 3);
    }
    let unchecked = Members::parse(&text).unwrap();
    assert_eq!((unchecked.iter().len(), unchecked.statement()), (3, None));
    assert_eq!(Members::parse(&list(3)).unwrap(), unchecked);
}

#[test]
fn a_list_without_the_signature_of_the_mesh_is_none() {
    let good = sign(&list(2), &statement(5), &key(MESH)).unwrap();
    let forged = sign(&list(2), &statement(5), &key(1)).unwrap();
    assert!(fault(&forged).starts_with("its signature is not that of"));
    assert!(fault(&list(2)).starts_with("it is not signed"));
    assert!(fault("").starts_with("it is not signed"));
    let (first, body) = good.split_once('\n').unwrap();
    let other = sign(&list(3), &statement(5), &key(MESH)).unwrap();
    let (other_first, _) = other.split_once('\n').unwrap();
    for (text, expected) in [
        (format!("{other_first}\n{body}"), "its signature is not"),
        (format!("{first}\n{body}\n"), "its signature is not"),
        (format!("{first}\r\n{body}"), "it is not signed"),
        (format!("{}\n{body}", &first[..80]), "it is not signed"),
        (format!("{first}A\n{body}"), "it is not signed"),
        (format!("\n{good}"), "it is not signed"),
        (
            good.replace("serial = 5", "serial = 6"),
            "its signature is not",
        ),
        ("x".repeat(MAX_SIGNED + 1), "1048577 bytes"),
    ] {
        let message = fault(&text);
        assert!(message.starts_with(expected), "{message}");
    }
    // The same key signs other things; such a signature is none of a list.
    let body = "serial = 9\n";
    let signature = Base64::encode_string(&key(MESH).sign("taut row 1", body.as_bytes()));
    let message = fault(&format!("{MARK}{signature}\n{body}"));
    assert!(message.starts_with("its signature is not"), "{message}");
}

#[test]
fn what_is_signed_is_checked_too() {
    let by_hand = |body: &str| {
        let signature = key(MESH).sign(CONTEXT, body.as_bytes());
        format!("{MARK}{}\n{body}", Base64::encode_string(&signature))
    };
    for (body, expected) in [
        (list(1), "it has no serial"),
        (format!("serial = -1\n{}", list(1)), "TOML parse error"),
        (
            "serial = 1\nexpires = \"soon\"\n".to_owned(),
            "expires: `soon`",
        ),
        (
            format!("serial = 1\n{0}{0}", list(1)),
            "member m1: another member has the same name",
        ),
        ("serial = 1\nwho = 2\n".to_owned(), "TOML parse error"),
    ] {
        let message = fault(&by_hand(&body));
        assert!(message.starts_with(expected), "{message}");
    }
    for (text, expected) in [
        (format!("{0}{0}", list(1)), "member m1: another member"),
        (
            format!("serial = 3\n{}", list(1)),
            "it has a signature or a serial",
        ),
        (
            sign(&list(1), &statement(1), &key(1)).unwrap(),
            "it has a signature or a serial",
        ),
        (format!("#{}\n{}", "x".repeat(MAX_SIGNED), list(1)), "1048"),
    ] {
        let message = sign(&text, &statement(9), &key(MESH))
            .unwrap_err()
            .to_string();
        assert!(message.starts_with(expected), "{message}");
    }
    let far = Statement {
        expires: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_800)),
        ..statement(1)
    };
    assert!(matches!(
        sign(&list(1), &far, &key(MESH)),
        Err(SignError::Expires)
    ));
}

#[test]
fn an_older_list_never_takes_the_place_of_a_newer_one() {
    let held = signed(4, &statement(10));
    let refusal = |count, serial| signed(count, &statement(serial)).may_replace(&held);
    assert_eq!(
        refusal(4, 9),
        Err(ListRefusal::Older {
            offered: 9,
            held: 10
        })
    );
    assert_eq!(
        refusal(5, 9),
        Err(ListRefusal::Older {
            offered: 9,
            held: 10
        })
    );
    assert_eq!(refusal(5, 10), Err(ListRefusal::SameSerial(10)));
    assert_eq!(refusal(4, 10), Ok(()));
    assert_eq!(refusal(4, 11), Ok(()));
    assert_eq!(refusal(2, 11), Ok(()));
    // A list without a signature has no serial to compare; whether it is accepted is the configuration's matter.
    assert_eq!(Members::parse(&list(4)).unwrap().may_replace(&held), Ok(()));
}

#[test]
fn a_list_that_lost_more_than_half_needs_the_word_of_its_signer() {
    let held = signed(5, &statement(10));
    let smaller = |serial, since| Statement {
        smaller_since: since,
        ..statement(serial)
    };
    let refused = Err(ListRefusal::Smaller {
        offered: 2,
        held: 5,
    });
    for (said, expected) in [
        (smaller(11, None), refused.clone()),
        (smaller(11, Some(11)), Ok(())),
        // This relay missed the list that became smaller, and sees a later one.
        (smaller(14, Some(12)), Ok(())),
        // It has had that list: the word was for another change.
        (smaller(14, Some(10)), refused.clone()),
        (smaller(14, Some(3)), refused),
    ] {
        assert_eq!(signed(2, &said).may_replace(&held), expected, "{said:?}");
    }
    let refused = Err(ListRefusal::Smaller {
        offered: 0,
        held: 5,
    });
    assert_eq!(signed(0, &statement(11)).may_replace(&held), refused);
    let unsigned = Members::parse(&list(5)).unwrap();
    assert_eq!(Members::default().may_replace(&unsigned), refused);
    assert_eq!(unsigned.may_replace(&Members::default()), Ok(()));
}

#[test]
fn a_list_expires_at_its_time_and_one_without_a_time_never() {
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    let said = Statement {
        expires: Some(at),
        ..statement(1)
    };
    let members = signed(1, &said);
    assert!(!members.has_expired(at - Duration::from_secs(1)) && members.has_expired(at));
    assert!(!signed(1, &statement(1)).has_expired(at));
}

proptest! {
    #[test]
    fn a_changed_bit_is_noticed(place in any::<prop::sample::Index>(), bit in 0_u8..7) {
        let good = sign(&list(2), &statement(5), &key(MESH)).unwrap();
        let mut bytes = good.into_bytes();
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        let text = String::from_utf8(bytes).unwrap();
        prop_assert!(Members::parse_signed(&text, &keys()).is_err());
    }

    #[test]
    fn no_order_of_offers_brings_an_old_list_back(offers in prop::collection::vec((1_u64..9, 1_u8..4), 1..20)) {
        let mut held = signed(3, &statement(1));
        for (serial, count) in offers {
            let offered = signed(count, &statement(serial));
            let before = held.statement().unwrap().serial;
            if offered.may_replace(&held).is_ok() {
                held = offered;
            }
            prop_assert!(held.statement().unwrap().serial >= before);
        }
    }
}
