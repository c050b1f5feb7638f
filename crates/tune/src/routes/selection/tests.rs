use super::super::message::tests::message;
use super::*;

#[test]
fn a_list_may_miss_what_the_kernel_goes_on_with_by_a_count() {
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
            [v4.miss(&message), v6.miss(&message)],
            misses,
            "{message:?}"
        );
    }
}

#[test]
fn a_route_is_chosen_by_its_whole_destination() {
    let name = |destination: &str, length| Name {
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
        let chosen: Chosen = text.parse().unwrap();
        assert!(chosen.takes(&name(destination, length)), "{text}");
        assert!(!chosen.takes(&name("10.0.0.0", 9)), "{text}");
    }
    assert!(!Chosen::defaults().takes(&name("10.0.0.0", 200)));
    for (text, error) in [
        ("", "no destination"),
        ("all", "no destination"),
        ("10.0.0.0/33", "no destination"),
        ("10.0.0.1/8", "did you mean 10.0.0.0/8?"),
    ] {
        let said = text.parse::<Chosen>().unwrap_err().to_string();
        assert!(said.contains(error), "{text}: {said}");
    }
}
