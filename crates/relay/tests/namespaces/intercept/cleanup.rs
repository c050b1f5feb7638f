//! Interception leaves no trace on the machine, however the relay ends.

use std::io::Read;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;

use taut_relay::intercept::{Method, TABLE, is_running, presence};
use taut_relay::node::{Node, StartError};
use taut_sys::netns::Netns;

use super::rig::*;
use crate::killed::kill_when_it_says;

/// Returns everything that interception may add to a namespace: policy rules, their table, nft's
/// tables.
pub(super) fn traces(netns: &Netns) -> Vec<String> {
    let mut traces = Vec::new();
    for family in ["-4", "-6"] {
        let rules = ip(netns, &format!("{family} rule show"));
        traces.extend(
            rules
                .lines()
                .filter(|l| l.contains("fwmark"))
                .map(str::to_owned),
        );
        let line = format!("{family} route show table {TABLE}");
        // For `ip` an empty table is an error.
        let mut route = Command::new("ip");
        let route = route
            .args(["-n", netns.name()])
            .args(line.split(' '))
            .output()
            .unwrap();
        let routes = String::from_utf8(route.stdout).unwrap();
        traces.extend(routes.lines().map(str::to_owned));
    }
    // Where there is no nft, nobody has made tables with it.
    let tables = exec(netns, &["nft", "list", "tables"]).stdout;
    let tables = String::from_utf8(tables).unwrap();
    traces.extend(tables.lines().map(str::to_owned));
    traces
}

/// Returns whether a relay intercepts, and which rules and routes exist for each family.
fn doctors_view(net: &Net) -> (bool, [(bool, bool); 2]) {
    let look = || (is_running().unwrap(), presence().unwrap());
    let (running, there) = net.router.run(look).unwrap();
    (running, there.map(|p| (p.rule, p.route)))
}

/// A connection reaches the server directly.
fn assert_routed(net: &Net) {
    for server in SERVER {
        let listener = net.listen(&net.server, server, PORT);
        let client = net.connect(server, PORT);
        assert_eq!(accepted(&listener).1, client.local_addr().unwrap());
    }
}

/// A connection reaches the server through the relay.
fn assert_taken(net: &Net) {
    for (server, relay) in SERVER.into_iter().zip(ROUTER_TO_SERVER) {
        let listener = net.listen(&net.server, server, PORT);
        let _client = net.connect(server, PORT);
        assert_eq!(accepted(&listener).1.ip().to_string(), relay);
    }
}

#[test]
fn a_stop_leaves_nothing_and_connections_are_routed_again() {
    for method in methods() {
        let net = Net::new();
        let before = traces(&net.router);
        assert_eq!(before, [""; 0]);
        let node = net.intercept(method);
        assert_taken(&net);
        let during = traces(&net.router);
        let expected = if method == Method::Bpf { 4 } else { 5 };
        assert_eq!(during.len(), expected, "{during:?}");
        assert_eq!(doctors_view(&net), (true, [(true, true); 2]));
        drop(node);
        // A process that another test starts has all of this one's sockets until it runs its
        // program.
        wait_until("the relay's end", || !doctors_view(&net).0);
        assert_eq!(doctors_view(&net), (false, [(false, false); 2]));
        assert_eq!(traces(&net.router), before);
        assert_routed(&net);
    }
}

/// The environment variable that names the other process's namespace and its task.
const HOLD: &str = "TAUT_RELAY_HOLD_INTERCEPTION";

#[test]
fn the_remains_of_a_kill_are_replaced_by_the_next_start_and_gone_after_it() {
    let pairs = methods().into_iter();
    for (killed, next) in
        pairs.flat_map(|killed| methods().into_iter().map(move |next| (killed, next)))
    {
        let net = Net::new();
        let asked = (HOLD, format!("{killed:?} {}", net.router.name()));
        let hold = "intercept::cleanup::hold_it_when_asked_to";
        kill_when_it_says("intercepting", hold, asked, || assert_taken(&net));
        assert_ne!(
            traces(&net.router),
            [""; 0],
            "the kill left nothing behind, so the test has no subject"
        );

        // The remains do not affect any connection meanwhile.
        assert_routed(&net);
        let node = net.intercept(next);
        assert_taken(&net);
        let expected = if next == Method::Bpf { 4 } else { 5 };
        let during = traces(&net.router);
        assert_eq!(during.len(), expected, "{killed:?}, {next:?}: {during:?}");
        drop(node);
        assert_eq!(traces(&net.router), [""; 0], "{killed:?}, {next:?}");
        assert_routed(&net);
    }
}

/// The other process of the test above.
#[test]
fn hold_it_when_asked_to() {
    let Ok(asked) = std::env::var(HOLD) else {
        return;
    };
    let (method, name) = asked.split_once(' ').unwrap();
    let method = if method == "Bpf" {
        Method::Bpf
    } else {
        Method::Nft
    };
    let netns = Netns::open(name).unwrap();
    let config = config(method, vec![forward()]);
    let _held = netns.run(|| Node::start(&config)).unwrap().unwrap();
    println!("intercepting");
    // Runs until it is killed, or the test that started it has ended.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn two_relays_do_not_take_each_others_connections() {
    let net = Net::new();
    let _first = net.intercept(Method::Bpf);
    let mut other = forward();
    other.listen = vec![":8444".parse().unwrap()];
    let config = config(Method::Bpf, vec![other]);
    let refused = net
        .router
        .run(|| Node::start(&config))
        .unwrap()
        .unwrap_err();
    assert!(matches!(refused, StartError::Intercept(_)), "{refused}");
    assert!(
        refused.to_string().contains("another relay intercepts"),
        "{refused}"
    );
    assert_taken(&net);
}

/// Every user may bind an abstract UNIX address. Taut once took these two as locks.
#[test]
fn a_user_who_takes_names_first_does_not_keep_a_relay_from_starting() {
    let net = Net::new();
    let bind = |name| {
        let addr = SocketAddr::from_abstract_name(name)?;
        UnixListener::bind_addr(&addr)
    };
    let names = ["taut-interception", "taut-route-metrics"];
    let _squatted = names.map(|name| net.router.run(|| bind(name)).unwrap().unwrap());
    assert!(!doctors_view(&net).0);
    let _node = net.intercept(Method::Bpf);
    assert_taken(&net);
    // A relay takes no other name that could be bound first.
    let unix = exec(&net.router, &["cat", "/proc/net/unix"]).stdout;
    let unix = String::from_utf8(unix).unwrap();
    let abstracts = unix.lines().filter(|line| line.contains(" @"));
    assert_eq!(abstracts.count(), names.len(), "{unix}");
}

#[test]
fn a_missing_device_is_refused_and_nothing_is_left() {
    let net = Net::new();
    let mut forward = forward();
    forward.transparent.as_mut().unwrap().devices = vec!["nowhere".to_owned()];
    let config = config(Method::Bpf, vec![forward]);
    let refused = net
        .router
        .run(|| Node::start(&config))
        .unwrap()
        .unwrap_err();
    assert!(
        refused.to_string().contains("no network device `nowhere`"),
        "{refused}"
    );
    assert_eq!(traces(&net.router), [""; 0]);
}
