//! Route metrics leave no trace on the machine, however the relay ends.

use std::io::Read;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;

use taut_relay::turbo::route_metrics::{Job, RouteMetrics, Status};
use taut_sys::netns::Netns;
use tokio::sync::Notify;

use super::rig::*;
use crate::killed::kill_when_it_says;

#[test]
fn a_stop_leaves_nothing() {
    let relays = Relays::new("route-stop");
    assert_eq!(relays.traces(), [""; 0]);
    // Some far away, some on the link.
    let gateways = relays.ways().map(|[way, _]| -> IpAddr {
        let gateway = way.split(' ').nth(1);
        gateway.unwrap().parse().unwrap()
    });
    let wanted: Vec<_> = relays.far().into_iter().chain(gateways).collect();
    let routes = relays.routes(&wanted);
    let during = relays.traces();
    assert_eq!(during.len(), 6, "two rules and four routes: {during:?}");
    let status = routes.status.clone();
    drop(routes);
    assert_eq!(relays.traces(), [""; 0]);
    assert_eq!(status.in_place(), 0);
}

/// The environment variable that names the other process's namespace and the address of its route.
const HOLD: &str = "TAUT_RELAY_HOLD_ROUTE";

/// Not a test by itself: the body of the process that is killed below.
#[test]
fn hold_it_when_asked_to() {
    let Ok(what) = std::env::var(HOLD) else {
        return;
    };
    let (netns, far) = what.split_once(' ').unwrap();
    let far: IpAddr = far.parse().unwrap();
    let job = Job {
        segments: SEGMENTS,
        wanted: Box::new(move || vec![far]),
        changed: Arc::new(Notify::new()),
        status: Arc::new(Status::default()),
    };
    let netns = Netns::open(netns).unwrap();
    let _routes = netns.run(|| RouteMetrics::start(job)).unwrap().unwrap();
    println!("\nrouting");
    // Runs until it is killed, or its parent is gone.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn the_remains_of_a_kill_are_removed_by_the_next_start() {
    let relays = Relays::new("route-killed");
    let [far, far6] = relays.far();
    let netns = relays.world.host("near").netns().name();
    let asked = (HOLD, format!("{netns} {far}"));
    kill_when_it_says(
        "routing",
        "route_metrics::cleanup::hold_it_when_asked_to",
        asked,
        || (),
    );
    assert!(
        is_ours(&relays.route(far)),
        "the kill left nothing behind, so the test has no subject"
    );

    let routes = relays.routes(&[far6]);
    assert!(!is_ours(&relays.route(far)));
    assert!(is_ours(&relays.route(far6)));
    drop(routes);
    assert_eq!(relays.traces(), [""; 0]);
}

/// Every user may bind an abstract UNIX address. Taut once took this one as a lock.
#[test]
fn a_user_who_takes_a_name_first_does_not_keep_a_relay_from_having_routes() {
    let relays = Relays::new("route-name");
    let netns = relays.world.host("near").netns();
    let addr = SocketAddr::from_abstract_name("taut-route-metrics").unwrap();
    let _squatted = netns
        .run(|| UnixListener::bind_addr(&addr))
        .unwrap()
        .unwrap();
    let [far, _] = relays.far();
    let routes = relays.routes(&[far]);
    assert_eq!(routes.status.in_place(), 1);
}

#[test]
fn of_two_relays_the_second_has_routes_when_the_first_has_ended() {
    let relays = Relays::new("route-two");
    let [v4, v6] = relays.far();
    let first = relays.routes(&[v4]);
    let second = relays.routes(&[v6]);
    assert_eq!((first.status.in_place(), second.status.in_place()), (1, 0));
    drop(first);
    wait_until("the second's", || second.status.in_place() == 1);
    assert!(!is_ours(&relays.route(v4)));
    assert!(is_ours(&relays.route(v6)));
}
