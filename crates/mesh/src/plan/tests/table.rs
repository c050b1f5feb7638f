use proptest::prelude::*;

use super::super::*;
use super::relay;

fn parse(text: &str) -> Result<Table, String> {
    Table::parse(text).map_err(|e| e.to_string())
}

fn place(text: &str) -> Endpoint {
    text.parse().expect("a place")
}

#[test]
fn a_file_of_round_trips_becomes_a_network_and_ends() {
    let table = parse(
        "# measured on Monday\n\
         fra nyc 82.5 0.1 1000\n\
         nyc fra 84       # the way back is longer\n\
         \n\
         fra 192.0.2.0/24\t12\n\
         nyc 198.51.100.0/24 9 0\n\
         192.0.2.0/24 198.51.100.0/24 120 0.5\n",
    )
    .expect("a table");
    let names: Vec<&str> = table.members().map(|name| name.as_str()).collect();
    assert_eq!(names, ["fra", "nyc"]);
    let network = table.network(vec![relay("nyc"), relay("other"), relay("fra")]);
    let path = network.path(2, 0);
    assert_eq!(path.rtt(), Some(std::time::Duration::from_micros(82_500)));
    assert_eq!(path.rate(), Some(1_000_000_000));
    assert!((path.loss() - 0.001).abs() < 1e-9);
    assert_eq!(network.path(0, 2), super::ms(84));
    assert_eq!(network.path(0, 1), Path::UNKNOWN);

    let (from, to) = (place("192.0.2.77"), place("198.51.100.0/25"));
    let (from, to) = (
        table.locate(&from).expect("known"),
        table.locate(&to).expect("known"),
    );
    assert_eq!(
        (from.to_string(), to.to_string()),
        ("192.0.2.0/24".into(), "198.51.100.0/24".into())
    );
    let ends = table.ends(&network, &from, &to);
    assert_eq!(ends.from, [Path::UNKNOWN, Path::UNKNOWN, super::ms(12)]);
    assert_eq!(ends.to, [super::ms(9), Path::UNKNOWN, Path::UNKNOWN]);
    assert_eq!(ends.direct.rtt(), super::ms(120).rtt());

    // From a member every route begins at it; to a member means to its machine.
    let ends = table.ends(&network, &place("fra"), &place("nyc"));
    assert_eq!(ends.from, [Path::UNKNOWN, Path::UNKNOWN, Path::ZERO]);
    assert_eq!(ends.to, [Path::ZERO, Path::UNKNOWN, path]);
}

#[test]
fn the_longest_prefix_that_contains_an_address_is_its_place() {
    let table = parse("a 10.0.0.0/8 1\na 10.1.0.0/16 2\na 2001:db8::/32 3").expect("a table");
    let locate = |text: &str| table.locate(&place(text)).map(|place| place.to_string());
    assert_eq!(locate("10.1.2.3").as_deref(), Some("10.1.0.0/16"));
    assert_eq!(locate("10.1.2.0/24").as_deref(), Some("10.1.0.0/16"));
    assert_eq!(locate("10.2.3.4").as_deref(), Some("10.0.0.0/8"));
    assert_eq!(locate("10.0.0.0/7"), None);
    assert_eq!(locate("2001:db8::1").as_deref(), Some("2001:db8::/32"));
    assert_eq!(locate("a").as_deref(), Some("a"));
    assert_eq!(locate("b"), None);
}

#[test]
fn a_faulty_line_is_named_with_its_fault() {
    let cases = [
        ("a b 1\na b", "line 2: it has 2 words"),
        ("a b 1 2 3 4", "line 1: it has 6 words"),
        ("a b x", "the round trip `x` is not a number"),
        ("a b -1", "the round trip `-1` is not"),
        ("a b inf", "the round trip `inf` is not"),
        ("a b 1 101", "the loss `101` is not a percentage"),
        ("a b 1 NaN", "the loss `NaN` is not a percentage"),
        ("a b 1 0 0", "the rate `0` is not a number of Mbit/s"),
        ("a a 1", "a path from a to itself"),
        (
            "a b 1\na b 2",
            "line 2: the path from a to b has a line already",
        ),
        (
            "a 10.0.0.0/99 1",
            "`10.0.0.0/99` is neither the name of a member nor a prefix",
        ),
        ("a b! 1", "`b!` is neither"),
    ];
    for (text, expected) in cases {
        let error = parse(text).expect_err(text);
        assert!(error.contains(expected), "{text:?}: {error}");
    }
}

#[test]
fn a_file_with_too_many_members_is_refused() {
    let line = |number| format!("a m{number} 1\n");
    let most: String = (1..crate::members::MAX_MEMBERS).map(line).collect();
    assert!(parse(&most).is_ok());
    let error = parse(&format!("{most}a more 1")).expect_err("too many");
    assert!(error.contains("at most 4096"), "{error}");
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in "([a-c./0-9:#%-]{0,8}[ \t\n]){0,12}") {
        crate::fuzzing::rtt_file(text.as_bytes());
    }

    #[test]
    fn what_a_line_says_is_what_the_table_has(
        rtt in 0_u32..3_600_000,
        loss in 0_u32..=60,
        rate in 1_u32..6_000,
    ) {
        let table = parse(&format!("a b {rtt} {loss} {rate}")).expect("a table");
        let path = table.path(&place("b"), &place("a"));
        let expected = std::time::Duration::from_millis(rtt.into());
        prop_assert_eq!(path, Path::new(expected, f64::from(loss) / 100.0, Some(u64::from(rate) * 1_000_000)));
    }
}
