use super::super::message::tests::{V4, V6, message};
use super::*;

#[test]
fn a_dump_may_miss_routes_that_the_kernel_finds_by_counting() {
    let nets =
        |nets: &[&str]| -> Destinations { nets.iter().map(|n| n.parse().unwrap()).collect() };
    let (v4, v6) = (
        nets(&["0.0.0.0/0", "10.8.0.0/16"]),
        nets(&["2001:db8::/32"]),
    );
    let both = [v4.families(), v6.families()];
    assert_eq!(both, [[true, false], [false, true]]);
    let mut local = message(V4, 3, 0, &[(1, &[10, 8, 0, 0])]);
    local[4] = 255;
    for (message, misses) in [
        (message(V4, 3, 0, &[]), [true, false]),
        // The same address, whatever its length and table.
        (local, [true, false]),
        (message(V4, 3, 0, &[(1, &[10, 7, 0, 0])]), [false, false]),
        (message(V6, 3, 0, &[(1, &[9; 16])]), [false, true]),
        (
            message(V6, 3, 0, &[(15, &77u32.to_ne_bytes())]),
            [false, false],
        ),
        (vec![V4; 3], [true, true]),
    ] {
        assert_eq!(
            [v4.may_miss(&message), v6.may_miss(&message)],
            misses,
            "{message:?}"
        );
    }
}

#[test]
fn a_route_is_selected_by_its_whole_destination() {
    let name = |destination: &str, length| RouteKey {
        destination: destination.parse().unwrap(),
        length,
        tos: 0,
        priority: 0,
    };
    for (text, destination, length) in [
        ("default", "0.0.0.0", 0),
        ("default", "::", 0),
        ("0.0.0.0/0", "0.0.0.0", 0),
        ("10.0.0.0/8", "10.0.0.0", 8),
        ("10.0.0.1", "10.0.0.1", 32),
        ("2001:db8::/32", "2001:db8::", 32),
        ("2001:db8::1", "2001:db8::1", 128),
    ] {
        let selector: Selector = text.parse().unwrap();
        assert!(selector.selects(&name(destination, length)), "{text}");
        assert!(!selector.selects(&name("10.0.0.0", 9)), "{text}");
    }
    assert!(!Selector::defaults().selects(&name("10.0.0.0", 200)));
    for (text, error) in [
        ("", "no destination"),
        ("all", "no destination"),
        ("10.0.0.0/33", "no destination"),
        ("10.0.0.1/8", "did you mean 10.0.0.0/8?"),
    ] {
        let said = text.parse::<Selector>().unwrap_err().to_string();
        assert!(said.contains(error), "{text}: {said}");
    }
}
