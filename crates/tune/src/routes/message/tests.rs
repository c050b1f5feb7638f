use proptest::prelude::*;

use super::*;

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut made = Vec::new();
    put(&mut made, &kind.to_ne_bytes(), value);
    made
}

/// A route of the main table, with these attributes.
fn message(family: u8, protocol: u8, flags: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut made = vec![family, 0, 0, 0, 254, protocol, 0, RTN_UNICAST];
    made.extend(flags.to_ne_bytes());
    for (kind, value) in attributes {
        made.extend(attribute(*kind, value));
    }
    made
}

fn some(initcwnd: u32, initrwnd: u32) -> Metrics {
    let some = |value| (value > 0).then_some(value);
    Metrics {
        initcwnd: some(initcwnd),
        initrwnd: some(initrwnd),
    }
}

const OIF: (u16, &[u8]) = (RTA_OIF, &[3, 0, 0, 0]);
const GATEWAY: (u16, &[u8]) = (RTA_GATEWAY, &[10, 0, 0, 1]);

#[test]
fn nothing_but_the_two_metrics_is_changed() {
    let lock = attribute(1, &(1u32 << 2).to_ne_bytes());
    let mtu = attribute(2, &1400u32.to_ne_bytes());
    let had = [&lock[..], &mtu].concat();
    let priority = 100u32.to_ne_bytes();
    let before = [GATEWAY, (RTA_METRICS, &had), OIF, (RTA_PRIORITY, &priority)];
    let before = message(V4, 16, 4, &before);
    let route = Route::parse(&before).unwrap();
    assert_eq!(
        (route.metrics, route.obstacle()),
        (Metrics::default(), None)
    );
    assert_eq!(route.name.to_string(), "default metric 100");

    let made = route.with(some(20, 30));
    let inside = [
        &had[..],
        &attribute(RTAX_INITCWND, &20u32.to_ne_bytes()),
        &attribute(RTAX_INITRWND, &30u32.to_ne_bytes()),
    ]
    .concat();
    let after = [
        GATEWAY,
        (RTA_METRICS, &inside),
        OIF,
        (RTA_PRIORITY, &priority),
    ];
    assert_eq!(made, message(V4, 16, 4, &after));
    let route = Route::parse(&made).unwrap();
    assert_eq!(route.metrics, some(20, 30));
    assert_eq!(route.with(Metrics::default()), before);
}

#[test]
fn a_route_without_metrics_has_none_again() {
    let before = message(V4, 3, 0, &[GATEWAY, OIF]);
    let made = Route::parse(&before).unwrap().with(some(20, 0));
    let route = Route::parse(&made).unwrap();
    assert_eq!(route.metrics, some(20, 0));
    assert_eq!(route.with(Metrics::default()), before);
}

#[test]
fn what_the_kernel_says_of_a_route_it_is_not_told() {
    // linkdown, onlink, offload; and the kernel's own marks.
    let flags = 0x10 | 4 | 8 | 0x4000;
    let hop = |flags: u8| {
        let gateway = attribute(RTA_GATEWAY, &[10, 0, 0, 1]);
        [&[16, 0, flags, 2, 3, 0, 0, 0][..], &gateway].concat()
    };
    let several = |flags| [hop(flags), hop(4), hop(flags | 4)].concat();
    let before = message(V4, 3, flags, &[(RTA_MULTIPATH, &several(0x11))]);
    let made = Route::parse(&before).unwrap().with(Metrics::default());
    assert_eq!(made, message(V4, 3, 4, &[(RTA_MULTIPATH, &several(0))]));
}

#[test]
fn a_next_hop_that_is_an_object_is_told_once() {
    let object = (RTA_NH_ID, &[7, 0, 0, 0][..]);
    let before = message(V6, 3, 4, &[object, (RTA_GATEWAY, &[2; 16]), OIF]);
    let route = Route::parse(&before).unwrap();
    assert_eq!(route.obstacle(), None);
    assert_eq!(route.with(Metrics::default()), message(V6, 3, 0, &[object]));
    let of_ipv4 = Route::parse(&message(V4, 3, 0, &[object])).unwrap();
    assert_eq!(of_ipv4.obstacle(), Some(Obstacle::Object));
}

#[test]
fn a_route_that_would_not_come_back_as_it_is_is_left_alone() {
    let obstacle = |message: &[u8]| Route::parse(message).unwrap().obstacle();
    let mut info = [0; 32];
    assert_eq!(
        obstacle(&message(V6, 3, 0, &[(RTA_CACHEINFO, &info)])),
        None
    );
    info[EXPIRES] = 9;
    assert_eq!(
        obstacle(&message(V6, 3, 0, &[(RTA_CACHEINFO, &info)])),
        Some(Obstacle::Expires)
    );
    assert_eq!(
        obstacle(&message(V6, 9, 0, &[OIF])),
        Some(Obstacle::Advertised)
    );
    assert_eq!(
        obstacle(&message(V6, 2, 0, &[OIF])),
        Some(Obstacle::Kernels)
    );
    assert_eq!(obstacle(&message(V4, 2, 0, &[OIF])), None);
    assert_eq!(
        obstacle(&message(V4, 3, 0, &[OIF, (22, &[1, 2, 3, 4])])),
        Some(Obstacle::Attribute(22))
    );
    let encap = attribute(22, &[1; 4]);
    let hop = [&[16, 0, 0, 0, 3, 0, 0, 0][..], &encap].concat();
    assert_eq!(
        obstacle(&message(V4, 3, 0, &[(RTA_MULTIPATH, &hop)])),
        Some(Obstacle::Attribute(22))
    );
    for cut in [1, 7, 9, 15] {
        assert_eq!(
            obstacle(&message(V4, 3, 0, &[(RTA_MULTIPATH, &hop[..cut])])),
            Some(Obstacle::Attribute(RTA_MULTIPATH)),
            "{cut}"
        );
    }
    let mut of_a_source = message(V6, 3, 0, &[OIF]);
    of_a_source[2] = 64;
    assert_eq!(obstacle(&of_a_source), Some(Obstacle::Source));
}

#[test]
fn routes_of_other_tables_and_copies_for_one_destination_are_none() {
    assert!(Route::parse(&message(V4, 3, RTM_F_CLONED, &[OIF])).is_none());
    let table = 1000u32.to_ne_bytes();
    assert!(Route::parse(&message(V4, 3, 0, &[(RTA_TABLE, &table)])).is_none());
    let mut of_local = message(V4, 3, 0, &[OIF]);
    of_local[4] = 255;
    assert!(Route::parse(&of_local).is_none());
    // The attribute has what the header has no room for.
    let mut of_many = message(V4, 3, 0, &[(RTA_TABLE, &254u32.to_ne_bytes())]);
    of_many[4] = 252;
    assert!(Route::parse(&of_many).is_some());
}

#[test]
fn routes_that_the_kernel_could_mistake_for_one_another_are_left_alone() {
    let over = |kind: u8, priority: u32, via: u8| {
        let via: &[u8] = &[10, 9, 0, via];
        let attributes = [(RTA_PRIORITY, &priority.to_ne_bytes()[..]), OIF, (5, via)];
        let mut made = message(V4, 3, 0, &attributes);
        made[7] = kind;
        Route::parse(&made).unwrap()
    };
    let of = |kind, priority| over(kind, priority, 2);
    let unreachable = 7;
    let chosen = choose(vec![
        of(1, 1),
        // It is told of twice, and is one.
        of(1, 1),
        of(1, 2),
        over(1, 2, 3),
        of(1, 3),
        of(unreachable, 3),
        of(unreachable, 4),
    ]);
    let told: Vec<_> = chosen
        .iter()
        .map(|route| (route.name.priority, route.obstacle()))
        .collect();
    let ambiguous = Some(Obstacle::Ambiguous);
    assert_eq!(
        told,
        [(1, None), (2, ambiguous), (2, ambiguous), (3, ambiguous)]
    );
}

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
fn a_metric_that_somebody_has_chosen_stays() {
    let asked = some(20, 30);
    let both = Step::Set {
        to: asked,
        ours: asked,
    };
    assert_eq!(asked.step(some(0, 0), &[]), both);
    assert_eq!(asked.step(asked, &[]), Step::Nothing);
    assert_eq!(asked.step(some(40, 0), &[]), Step::Others);
    assert_eq!(asked.step(some(0, 40), &[]), Step::Others);
    // What nobody asked for does not matter, and is nobody's but its owner's.
    assert_eq!(
        some(20, 0).step(some(0, 40), &[]),
        Step::Set {
            to: some(20, 40),
            ours: some(20, 0)
        }
    );
    // One that somebody has chosen as it is asked for is still his.
    assert_eq!(
        asked.step(some(20, 0), &[]),
        Step::Set {
            to: asked,
            ours: some(0, 30)
        }
    );
    // What this program has made is not somebody else's.
    assert_eq!(asked.step(some(25, 0), &[some(25, 0)]), both);
    assert_eq!(asked.step(some(25, 0), &[some(26, 25)]), Step::Others);
}

#[test]
fn undoing_leaves_what_somebody_has_chosen_since() {
    let before = Metrics::default();
    let back = |now, made: &[Metrics]| {
        let Back { to, others } = before.back(now, made);
        (to, others)
    };
    assert_eq!(back(some(20, 30), &[some(20, 30)]), (before, false));
    assert_eq!(back(some(20, 40), &[some(20, 30)]), (some(0, 40), true));
    assert_eq!(back(some(25, 0), &[some(20, 0)]), (some(25, 0), true));
    // What was not made is not undone.
    assert_eq!(back(some(20, 40), &[some(20, 0)]), (some(0, 40), false));
    // It was written down, and not made.
    assert_eq!(back(before, &[some(20, 30)]), (before, false));
    // It was made what it was to be before its writer ended.
    assert_eq!(
        back(some(20, 0), &[some(25, 0), some(20, 0)]),
        (before, false)
    );
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

#[test]
fn metrics_and_names_are_said_as_ip_says_them() {
    assert_eq!(some(20, 30).to_string(), "initcwnd 20, initrwnd 30");
    assert_eq!(some(0, 30).to_string(), "initrwnd 30");
    let name = Name {
        destination: "10.1.0.0".parse().unwrap(),
        length: 16,
        tos: 16,
        priority: 5,
    };
    assert_eq!(name.to_string(), "10.1.0.0/16 tos 0x10 metric 5");
}

/// Attributes of any kind, those of a route's more often, in any order and some more than once.
fn any_attributes() -> impl Strategy<Value = Vec<(u16, Vec<u8>)>> {
    let metric = (1u16..18, any::<u32>()).prop_map(|(kind, value)| (kind, value.to_ne_bytes()));
    let metrics = prop::collection::vec(metric, 0..6).prop_map(|metrics| {
        let inside = metrics
            .iter()
            .flat_map(|(kind, value)| attribute(*kind, value));
        (RTA_METRICS, inside.collect())
    });
    let bytes = prop::collection::vec(any::<u8>(), 0..40);
    let other = (0u16..40, bytes).prop_filter("metrics are above", |(kind, _)| {
        !matches!(*kind, RTA_DST | RTA_METRICS | RTA_TABLE | RTA_PRIORITY)
    });
    (metrics, prop::collection::vec(other, 0..8)).prop_map(|(metrics, mut all)| {
        all.insert(all.len() / 2, metrics);
        all
    })
}

proptest! {
    #[test]
    fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Some(route) = Route::parse(&bytes) {
            let _ = route.with(Metrics::default());
        }
    }

    #[test]
    fn bytes_that_begin_as_a_route_do_no_harm(
        family in prop::sample::select(vec![V4, V6]),
        tail in prop::collection::vec(0u8..32, 0..200),
    ) {
        let bytes = [&message(family, 3, 0, &[])[..], &tail].concat();
        if let Some(route) = Route::parse(&bytes) {
            let made = route.with(Metrics { initcwnd: Some(20), initrwnd: None });
            let again = Route::parse(&made).unwrap();
            prop_assert_eq!((again.name, again.metrics.initcwnd), (route.name, Some(20)));
        }
    }

    #[test]
    fn what_was_set_and_is_taken_back_leaves_the_message_as_it_was(
        all in any_attributes(),
        initcwnd in 1u32..1000,
        initrwnd in 1u32..1000,
    ) {
        let all: Vec<(u16, &[u8])> = all.iter().map(|(kind, value)| (*kind, &value[..])).collect();
        let Some(route) = Route::parse(&message(V4, 3, 0, &all)) else {
            return Ok(());
        };
        let to = Metrics { initcwnd: Some(initcwnd), initrwnd: Some(initrwnd) };
        let made = Route::parse(&route.with(to)).unwrap();
        prop_assert_eq!(made.metrics, to);
        // As it is sent when nothing is to be changed.
        let plain = |route: &Route| Route::parse(&route.with(Metrics::default())).unwrap();
        prop_assert_eq!(plain(&made).attributes, plain(&route).attributes);
        let others = |route: &Route| -> Vec<Attribute> {
            let mut all = plain(route).attributes;
            all.retain(|of| of.kind != RTA_METRICS);
            all
        };
        prop_assert_eq!(others(&made), others(&route));
    }

    #[test]
    fn what_a_step_makes_is_undone_unless_somebody_changes_it(
        asked in (0u32..4, 0u32..4).prop_map(|(one, other)| some(one, other)),
        now in (0u32..4, 0u32..4).prop_map(|(one, other)| some(one, other)),
        others in (0u32..4, 0u32..4).prop_map(|(one, other)| some(one, other)),
    ) {
        let Step::Set { to, ours } = asked.step(now, &[]) else { return Ok(()) };
        let before = now.among(ours);
        prop_assert_eq!(to.among(asked), asked);
        prop_assert_eq!(before.back(to, &[ours]), Back { to: now, others: false });
        // Whatever is there at the end: each is as it was, or as somebody has made it.
        let Back { to: end, .. } = before.back(others, &[ours]);
        for at in 0..2 {
            let end = end.values()[at];
            prop_assert!(end == now.values()[at] || end == others.values()[at]);
        }
    }
}
