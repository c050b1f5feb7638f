//! Which connections are intercepted, and what both ends see of it.

use std::io::{Read, Write};

use taut_relay::intercept::{Exit, Method};
use taut_relay::outcome::session_end::End;
use taut_sys_testing::skip::has_programs;

use super::rig::*;

#[test]
fn an_intercepted_connection_reaches_its_original_destination() {
    if !has_programs(&["nginx", "curl"]) {
        return;
    }
    for method in methods() {
        let net = Net::new();
        let _server = web_server(&net);
        let node = net.intercept(method);
        for (i, (server, relay)) in SERVER.into_iter().zip(ROUTER_TO_SERVER).enumerate() {
            let said = curl(&net.client, &url(server, PORT)).unwrap();
            assert_eq!(said, format!("{relay} {server} 80"), "{method:?}");
            wait_until("the session's end", || {
                node.metrics().ended(End::Complete) == i as u64 + 1
            });
        }
        assert_eq!(node.metrics().interception().unwrap().0, method);
    }
}

#[test]
fn with_source_client_the_server_sees_the_client_at_another_port() {
    for method in methods() {
        let net = Net::new();
        let mut forward = forward();
        forward.identity.borrow = true;
        let _node = net.relay(method, vec![forward]);
        for (server, ip) in SERVER.into_iter().zip(CLIENT) {
            let listener = net.listen(&net.server, server, PORT);
            let mut client = net.connect(server, PORT);
            let (mut far, seen) = accepted(&listener);
            assert_eq!(seen.ip().to_string(), ip, "{method:?}");
            assert_ne!(seen.port(), client.local_addr().unwrap().port());
            client.write_all(b"ping").unwrap();
            let mut said = [0; 4];
            far.read_exact(&mut said).unwrap();
            far.write_all(b"pong").unwrap();
            client.read_exact(&mut said).unwrap();
            assert_eq!(&said, b"pong");
        }
    }
}

#[test]
fn an_intercepted_connection_carries_bulk_both_ways() {
    for borrow in [false, true] {
        let net = Net::new();
        let mut forward = forward();
        forward.identity.borrow = borrow;
        let node = net.relay(Method::Bpf, vec![forward]);
        let listener = net.listen(&net.server, SERVER[0], PORT);
        let client = net.connect(SERVER[0], PORT);
        let (far, _) = accepted(&listener);
        let bytes: Vec<u8> = (0..1u32 << 20).flat_map(u32::to_le_bytes).collect();
        let both = [(&client, &far), (&far, &client)];
        std::thread::scope(|scope| {
            for (mut from, mut to) in both {
                let bytes = &bytes;
                scope.spawn(move || {
                    from.write_all(bytes).unwrap();
                    from.shutdown(std::net::Shutdown::Write).unwrap();
                });
                scope.spawn(move || {
                    let mut got = Vec::new();
                    to.read_to_end(&mut got).unwrap();
                    assert!(got == *bytes, "the bytes have changed on their way");
                });
            }
        });
        wait_until("the session's end", || {
            node.metrics().ended(End::Complete) == 1
        });
    }
}

#[test]
fn a_session_to_a_forbidden_destination_is_reset_without_a_dial() {
    for method in methods() {
        let net = Net::new();
        let mut forward = forward();
        let transparent = forward.transparent.as_mut().unwrap();
        transparent.deny = ["203.0.113.10:*", "[2001:db8:113::10]:*"]
            .map(|r| r.parse().unwrap())
            .into();
        let node = net.relay(method, vec![forward]);
        for server in SERVER {
            let listener = net.listen(&net.server, server, PORT);
            assert_reset(&net, server, PORT);
            listener.set_nonblocking(true).unwrap();
            let kind = listener.accept().unwrap_err().kind();
            assert_eq!(kind, std::io::ErrorKind::WouldBlock);
        }
        assert_eq!(node.metrics().intercept_refused(), 2);
    }
}

#[test]
fn a_connection_to_the_listener_itself_is_reset_and_does_not_loop() {
    let net = Net::new();
    let mut forward = forward();
    // Even with a rule that would allow it.
    let transparent = forward.transparent.as_mut().unwrap();
    transparent
        .allow
        .push(format!("{}:*", ROUTER_TO_CLIENT[0]).parse().unwrap());
    let node = net.relay(Method::Bpf, vec![forward]);
    assert_reset(&net, ROUTER_TO_CLIENT[0], LISTEN);
    assert_eq!(node.metrics().intercept_refused(), 1);
    assert_eq!(node.metrics().sessions(), 0);
}

#[test]
fn a_server_that_refuses_resets_the_client() {
    let net = Net::new();
    let node = net.intercept(Method::Bpf);
    assert_reset(&net, SERVER[0], PORT);
    wait_until("the session's end", || {
        node.metrics().ended(End::ConnectRefused) == 1
    });
}

#[test]
fn handshakes_with_syn_cookies_are_intercepted_too() {
    let net = Net::new();
    // Always, not only when a queue is full.
    net.set(&net.router, "ipv4/tcp_syncookies", "2");
    let node = net.intercept(Method::Bpf);
    for server in SERVER {
        let listener = net.listen(&net.server, server, PORT);
        let mut client = net.connect(server, PORT);
        // The listener learns of the connection from the answer to the cookie.
        client.write_all(b"ping").unwrap();
        let (mut far, _) = accepted(&listener);
        let mut said = [0; 4];
        far.read_exact(&mut said).unwrap();
    }
    wait_until("the counter", || {
        node.metrics().interception().unwrap().1.get(Exit::Cookie) == 2
    });
}

#[test]
fn a_device_that_comes_back_is_intercepted_at_again() {
    let net = Net::new();
    let node = net.intercept(Method::Bpf);
    let listener = net.listen(&net.server, SERVER[0], PORT);
    ip(&net.router, &format!("link delete {TO_CLIENT}"));
    let client = net.client.name();
    ip(
        &net.router,
        &format!("link add {TO_CLIENT} type veth peer name wire netns {client}"),
    );
    for (netns, device, addr) in [
        (&net.client, "wire", CLIENT[0]),
        (&net.router, TO_CLIENT, ROUTER_TO_CLIENT[0]),
    ] {
        ip(netns, &format!("address add {addr}/24 dev {device}"));
        ip(netns, &format!("link set {device} up"));
    }
    ip(
        &net.client,
        &format!("route add default via {}", ROUTER_TO_CLIENT[0]),
    );
    // Until the new device is noticed, connections bypass the relay.
    wait_until("a connection that is taken", || {
        let _client = net.connect(SERVER[0], PORT);
        let _ = accepted(&listener);
        node.metrics().sessions() + node.metrics().ended(End::ClientReset) > 0
            || node.metrics().ended(End::Complete) > 0
    });
}
