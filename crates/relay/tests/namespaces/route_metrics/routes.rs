//! The form of the routes, their effect on connections, and how they follow changes.

use std::time::Duration;

use taut_relay::turbo::route_metrics::{MAX_ADDRESSES, TABLE};
use taut_sys::socket::has_congestion_control;

use super::rig::*;

/// Longer than the kernel keeps a window without a route that holds it. It has to pass, because the
/// reduction in idle time is the subject here.
const IDLE: Duration = Duration::from_secs(1);

#[test]
fn a_connection_begins_with_the_routes_window_and_has_it_after_idle_time() {
    let relays = Relays::new("route-window");
    let listeners = relays.far().map(|far| (far, relays.listen(far, 7000)));
    let controls = ["cubic", "bbr"].into_iter();
    let controls: Vec<_> = controls.filter(|c| has_congestion_control(c)).collect();
    // Without routes, for comparison.
    let (near, _far) = relays.connect(&listeners[0].1, controls[0]);
    assert_eq!(near.info().unwrap().snd_cwnd, 10, "RFC 6928");

    let routes = relays.routes(&relays.far());
    assert_eq!((routes.status.in_place(), routes.status.without()), (2, 0));
    let mut connections = Vec::new();
    for (far, listener) in &listeners {
        assert!(is_ours(&relays.route(*far)), "{}", relays.route(*far));
        for control in &controls {
            let (near, far) = relays.connect(listener, control);
            let window = near.info().unwrap().snd_cwnd;
            assert!(window >= SEGMENTS, "{control}: {window}");
            connections.push((near, far, control));
        }
    }
    std::thread::sleep(IDLE);
    for (near, _far, control) in &connections {
        near.send(b"x").unwrap();
        let window = near.info().unwrap().snd_cwnd;
        assert!(window >= SEGMENTS, "{control} after idle time: {window}");
    }
    // The route causes it: without the route, idle time reduces the window of connections whose
    // control does not keep it. They notice at the second segment from now on.
    drop(routes);
    for (near, _far, _) in &connections {
        near.send(b"y").unwrap();
    }
    std::thread::sleep(IDLE);
    for (near, _far, _) in connections.iter().filter(|(_, _, c)| **c == "cubic") {
        near.send(b"z").unwrap();
        let window = near.info().unwrap().snd_cwnd;
        assert!(window < SEGMENTS, "without the route: {window}");
    }
}

#[test]
fn only_tcp_to_the_relays_themselves_is_affected() {
    let relays = Relays::new("route-tcp");
    let [far, _] = relays.far();
    let before = relays.ip("near", "route show table main");
    let _routes = relays.routes(&[far]);
    assert_eq!(relays.ip("near", "route show table main"), before);
    for other in [
        format!("route get fibmatch {far} ipproto udp"),
        format!("route get fibmatch {far}"),
        format!(
            "route get fibmatch {} ipproto tcp",
            relays.world.addr("left")
        ),
    ] {
        let route = relays.ip("near", &other);
        assert!(!is_ours(&route), "{other}: {route}");
    }
}

#[test]
fn a_copy_follows_its_route() {
    let relays = Relays::new("route-follow");
    let routes = relays.routes(&relays.far());
    for (far, ways) in relays.far().into_iter().zip(relays.ways()) {
        let now = relays.route(far);
        let other = ways.iter().find(|way| !now.contains(way.as_str()));
        let other = other.unwrap();
        relays.ip("near", &format!("route replace {far} {other}"));
        wait_until("the other way", || {
            let route = relays.route(far);
            is_ours(&route) && route.contains(other)
        });
        // Without a path there is no copy either.
        relays.ip("near", &format!("route del {far}"));
        let far = far.to_string();
        wait_until("its end", || {
            !relays.traces().iter().any(|trace| trace.contains(&far))
        });
    }
    wait_until("the count", || routes.status.without() == 2);
}

#[test]
fn every_form_of_route_can_be_copied() {
    let relays = Relays::new("route-forms");
    let _routes = relays.routes(&relays.far());
    for (far, [left, right]) in relays.far().into_iter().zip(relays.ways()) {
        let id = if far.is_ipv4() { 4 } else { 6 };
        relays.ip("near", &format!("nexthop add id {id} {left}"));
        for (form, seen) in [
            (format!("nexthop {left} nexthop {right}"), "nexthop"),
            (format!("{left} onlink mtu 1400 advmss 1300"), "mtu 1400"),
            (format!("nhid {id}"), "nhid"),
        ] {
            relays.ip("near", &format!("route replace {far} {form}"));
            wait_until(&form, || {
                let route = relays.route(far);
                is_ours(&route) && route.contains(seen)
            });
        }
    }
}

#[test]
fn a_route_goes_and_comes_back_with_its_device() {
    let relays = Relays::new("route-device");
    let [far, _] = relays.far();
    let routes = relays.routes(&[far]);
    let device = relays.device(&relays.route(far));
    let main = relays.ip("near", &format!("-4 route show {far}"));
    relays.ip("near", &format!("link set {device} down"));
    wait_until("the route's end", || routes.status.in_place() == 0);
    relays.ip("near", &format!("link set {device} up"));
    relays.ip("near", &format!("route add {}", main.trim()));
    wait_until("the route", || is_ours(&relays.route(far)));
}

#[test]
fn relays_come_and_go() {
    let relays = Relays::new("route-wanted");
    let [v4, v6] = relays.far();
    let routes = relays.routes(&[]);
    assert_eq!(routes.status.in_place(), 0);
    routes.want(&[v4, v6]);
    wait_until("both", || routes.status.in_place() == 2);
    routes.want(&[v6]);
    wait_until("one to go", || routes.status.in_place() == 1);
    assert!(!is_ours(&relays.route(v4)));
    assert!(is_ours(&relays.route(v6)));
    // Its own addresses are no other relay's.
    routes.want(&[v6, relays.world.addr("near").into()]);
    wait_until("the count", || routes.status.without() == 1);
    assert_eq!(routes.status.in_place(), 1);
}

#[test]
fn no_more_addresses_get_a_route_than_the_limit_and_the_first_do() {
    let relays = Relays::new("route-many");
    let [far, _] = relays.far();
    let gateway = relays.route(far);
    let via = gateway.split(" via ").nth(1).unwrap();
    let via = via.split(' ').next().unwrap();
    relays.ip("near", &format!("route add 198.18.0.0/15 via {via}"));
    let others = (0..MAX_ADDRESSES + 2).map(|i| {
        let i = u8::try_from(i / 250).unwrap() * 10 + 1;
        std::net::Ipv4Addr::new(198, 18, i, 0)
    });
    let others = others.zip(0..).map(|(net, i): (_, u32)| {
        std::net::IpAddr::from(std::net::Ipv4Addr::from(u32::from(net) + i % 250 + 1))
    });
    let wanted: Vec<_> = [far].into_iter().chain(others).collect();
    let routes = relays.routes(&wanted);
    assert_eq!(routes.status.in_place(), MAX_ADDRESSES as u64);
    assert_eq!(routes.status.without(), 3);
    assert!(is_ours(&relays.route(far)));
}

#[test]
fn foreign_routes_are_left_alone() {
    let relays = Relays::new("route-theirs");
    let [v4, v6] = relays.far();
    // One has a window of its own; for the other there is a route in our table.
    let main = relays.ip("near", &format!("-4 route show {v4}"));
    let line = main.trim().split(" proto ").next().unwrap();
    relays.ip("near", &format!("route replace {line} initcwnd 40"));
    let theirs = format!("{v6} dev lo metric 1024 table {TABLE} proto static");
    relays.ip("near", &format!("route add {theirs}"));
    let all = || {
        let tables = ["main".to_owned(), TABLE.to_string()].into_iter();
        let shown = tables.flat_map(|table| {
            ["-4", "-6"].map(|f| relays.ip("near", &format!("{f} route show table {table}")))
        });
        shown.collect::<Vec<_>>()
    };
    let before = all();
    let routes = relays.routes(&relays.far());
    assert_eq!((routes.status.in_place(), routes.status.without()), (0, 2));
    assert_eq!(all(), before);
    let listener = relays.listen(v4, 7000);
    let (near, _far) = relays.connect(&listener, "cubic");
    assert_eq!(near.info().unwrap().snd_cwnd, 40);
    drop(routes);
    assert_eq!(all(), before);
    relays.ip("near", &format!("route del {v6} table {TABLE}"));
}
