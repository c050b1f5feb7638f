//! Traffic that is not the relay's is not affected.

use std::io::{Read, Write};
use std::net::TcpStream;

use taut_relay::intercept::{Exit, Method};

use super::rig::*;

/// A byte each way.
fn assert_alive(mut one: &TcpStream, mut other: &TcpStream) {
    let mut byte = [0];
    one.write_all(b"a").unwrap();
    other.read_exact(&mut byte).unwrap();
    other.write_all(b"b").unwrap();
    one.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"b");
}

#[test]
fn the_routers_own_services_on_an_intercepted_port_are_its_own() {
    for method in methods() {
        let net = Net::new();
        let mut forward = forward();
        // Every destination, so that only being local exempts them; replies to clients' addresses
        // too.
        forward.transparent.as_mut().unwrap().destinations.clear();
        forward.identity.borrow = true;
        let node = net.relay(method, vec![forward]);
        for (any, own) in ["0.0.0.0", "::"].into_iter().zip(ROUTER_TO_CLIENT) {
            let listener = net.listen(&net.router, any, PORT);
            let client = net.connect(own, PORT);
            let (served, peer) = accepted(&listener);
            assert_eq!(peer, client.local_addr().unwrap(), "{method:?}");
            assert_alive(&client, &served);
        }
        let outside = net.listen(&net.server, SERVER[0], PORT);
        let connect = || TcpStream::connect(outside.local_addr().unwrap());
        let routers = net.router.run(connect).unwrap().unwrap();
        let (served, peer) = accepted(&outside);
        assert_eq!(peer.ip().to_string(), ROUTER_TO_SERVER[0]);
        assert_alive(&routers, &served);
        assert_eq!(node.metrics().sessions(), 0);
        assert_eq!(node.metrics().intercept_refused(), 0);
    }
}

#[test]
fn other_ports_and_destinations_are_routed_as_before() {
    for method in methods() {
        let net = Net::new();
        ip(&net.server, "address add 198.51.100.10 dev lo");
        ip(&net.router, "route add 198.51.100.0/24 via 10.50.2.2");
        let node = net.intercept(method);
        for (server, port) in [(SERVER[0], 81), (SERVER[1], 81), ("198.51.100.10", PORT)] {
            let listener = net.listen(&net.server, server, port);
            let client = net.connect(server, port);
            let (served, peer) = accepted(&listener);
            assert_eq!(
                peer,
                client.local_addr().unwrap(),
                "{method:?} {server}:{port}"
            );
            assert_alive(&client, &served);
        }
        assert_eq!(node.metrics().sessions(), 0);
    }
}

#[test]
fn packets_from_another_device_are_routed_as_before() {
    for method in methods() {
        let net = Net::new();
        let mut forward = forward();
        forward.transparent.as_mut().unwrap().devices = vec![TO_SERVER.to_owned()];
        let _node = net.relay(method, vec![forward]);
        let listener = net.listen(&net.server, SERVER[0], PORT);
        let client = net.connect(SERVER[0], PORT);
        assert_eq!(accepted(&listener).1, client.local_addr().unwrap());
    }
}

/// What `taut doctor` reports of these two settings, and why it checks them: no kernel counter
/// shows them.
#[test]
fn strict_reverse_path_filtering_with_the_mark_drops_intercepted_packets() {
    let net = Net::new();
    let node = net.intercept(Method::Bpf);
    let listener = net.listen(&net.server, SERVER[0], PORT);
    for knob in ["rp_filter", "src_valid_mark"] {
        net.set(&net.router, &format!("ipv4/conf/all/{knob}"), "1");
    }
    std::thread::scope(|scope| {
        let client = scope.spawn(|| net.connect(SERVER[0], PORT));
        wait_until("a SYN that is given to the relay", || {
            node.metrics().interception().unwrap().1.get(Exit::New) > 0
        });
        assert!(!client.is_finished());
        assert_eq!(node.metrics().sessions(), 0);
        // The client's next SYN succeeds.
        net.set(&net.router, "ipv4/conf/all/src_valid_mark", "0");
        let _client = client.join().unwrap();
        accepted(&listener);
    });
}

#[test]
fn connections_that_were_routed_before_the_start_outlive_start_and_stop() {
    for method in methods() {
        let net = Net::new();
        let listener = net.listen(&net.server, SERVER[0], PORT);
        let client = net.connect(SERVER[0], PORT);
        let (served, _) = accepted(&listener);
        assert_alive(&client, &served);
        let node = net.intercept(method);
        assert_alive(&client, &served);
        drop(node);
        assert_alive(&client, &served);
    }
}
