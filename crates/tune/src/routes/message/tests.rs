use proptest::prelude::*;

use super::*;

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut made = Vec::new();
    put(&mut made, &kind.to_ne_bytes(), value);
    made
}

pub(crate) const V4: u8 = 2;
pub(crate) const V6: u8 = 10;

/// Returns the message of a route of the main table, with these attributes.
pub(crate) fn message(
    family: u8,
    protocol: u8,
    flags: u32,
    attributes: &[(u16, &[u8])],
) -> Vec<u8> {
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
    assert_eq!(route.key.to_string(), "default metric 100");

    let made = route.with(some(20, 30));
    let inside = [
        &had[..],
        &attribute(ATTRIBUTES[0].0, &20u32.to_ne_bytes()),
        &attribute(ATTRIBUTES[1].0, &30u32.to_ne_bytes()),
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
fn flags_of_the_kernel_are_not_sent_back() {
    // linkdown, onlink and offload, and a flag of the kernel's own.
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
fn a_nexthop_object_is_sent_back_without_its_next_hops() {
    let object = (RTA_NH_ID, &[7, 0, 0, 0][..]);
    let before = message(V6, 3, 4, &[object, (RTA_GATEWAY, &[2; 16]), OIF]);
    let route = Route::parse(&before).unwrap();
    assert_eq!(route.obstacle(), None);
    assert_eq!(route.with(Metrics::default()), message(V6, 3, 0, &[object]));
    let of_ipv4 = Route::parse(&message(V4, 3, 0, &[object])).unwrap();
    assert_eq!(of_ipv4.obstacle(), Some(Obstacle::NexthopObject));
}

#[test]
fn a_route_that_may_not_come_back_unchanged_is_left_alone() {
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
        Some(Obstacle::KernelMade)
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
fn routes_of_other_tables_and_cloned_routes_are_ignored() {
    assert!(Route::parse(&message(V4, 3, RTM_F_CLONED, &[OIF])).is_none());
    let table = 1000u32.to_ne_bytes();
    assert!(Route::parse(&message(V4, 3, 0, &[(RTA_TABLE, &table)])).is_none());
    let mut of_local = message(V4, 3, 0, &[OIF]);
    of_local[4] = 255;
    assert!(Route::parse(&of_local).is_none());
    // The attribute has a table for which the header has no room.
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
    let found = unicast(vec![
        of(1, 1),
        // The same route, reported twice.
        of(1, 1),
        of(1, 2),
        over(1, 2, 3),
        of(1, 3),
        of(unreachable, 3),
        of(unreachable, 4),
    ]);
    let marked: Vec<_> = found
        .iter()
        .map(|route| (route.key.priority, route.obstacle()))
        .collect();
    let ambiguous = Some(Obstacle::Ambiguous);
    assert_eq!(
        marked,
        [(1, None), (2, ambiguous), (2, ambiguous), (3, ambiguous)]
    );
}

#[test]
fn metrics_and_routes_are_written_as_by_ip_route() {
    assert_eq!(some(20, 30).to_string(), "initcwnd 20, initrwnd 30");
    assert_eq!(some(0, 30).to_string(), "initrwnd 30");
    let key = RouteKey {
        destination: "10.1.0.0".parse().unwrap(),
        length: 16,
        tos: 16,
        priority: 5,
    };
    assert_eq!(key.to_string(), "10.1.0.0/16 tos 0x10 metric 5");
}

/// Attributes of any kind, in any order, some more than once.
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
    fn bytes_that_begin_like_a_route_do_no_harm(
        family in prop::sample::select(vec![V4, V6]),
        tail in prop::collection::vec(0u8..32, 0..200),
    ) {
        let bytes = [&message(family, 3, 0, &[])[..], &tail].concat();
        if let Some(route) = Route::parse(&bytes) {
            let made = route.with(Metrics { initcwnd: Some(20), initrwnd: None });
            let again = Route::parse(&made).unwrap();
            prop_assert_eq!((again.key, again.metrics.initcwnd), (route.key, Some(20)));
        }
    }

    #[test]
    fn metrics_that_are_set_and_removed_leave_the_message_as_it_was(
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
        // The message that changes nothing.
        let plain = |route: &Route| Route::parse(&route.with(Metrics::default())).unwrap();
        prop_assert_eq!(plain(&made).attributes, plain(&route).attributes);
        let others = |route: &Route| -> Vec<Attribute> {
            let mut all = plain(route).attributes;
            all.retain(|of| of.kind != RTA_METRICS);
            all
        };
        prop_assert_eq!(others(&made), others(&route));
    }
}
