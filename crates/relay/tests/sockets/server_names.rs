//! Forwards that choose a destination by the server name of a TLS client.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use taut_relay::access::Sources;
use taut_relay::access::session_quota::UNLIMITED;
use taut_relay::config::{Config, Forward};
use taut_relay::net::addr::Destination;
use taut_relay::node::Node;
use taut_relay::outcome::refusal::ClientRefusal;
use taut_relay::outcome::session_end::End;

use crate::client_hello::client_hello;
use crate::rig::*;

fn server() -> (TcpListener, Destination) {
    let server = listen();
    let to = server.local_addr().unwrap().to_string().parse().unwrap();
    (server, to)
}

/// A node that leads these names to these destinations, and all others to `default`.
fn relay(names: &[(&str, &Destination)], default: Option<&Destination>) -> Node {
    with(names, default, UNLIMITED, |_| {})
}

fn with(
    names: &[(&str, &Destination)],
    default: Option<&Destination>,
    per_source: u32,
    adjust: impl FnOnce(&mut Forward),
) -> Node {
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let mut forward = Forward::new(listen, "127.0.0.1:9".parse().unwrap());
    forward.to = default.into_iter().cloned().collect();
    forward.sni = names
        .iter()
        .map(|(name, to)| (name.parse().unwrap(), vec![(*to).clone()]))
        .collect();
    adjust(&mut forward);
    let mut config = Config::new(vec![forward]);
    config.workers = Some(2);
    config.max_sessions = Some(64);
    config.max_sessions_per_source = Some(per_source);
    Node::start(&config).unwrap()
}

fn connect(node: &Node) -> TcpStream {
    let client = TcpStream::connect(node.listen_addrs()[0].0).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.set_nodelay(true).unwrap();
    client
}

/// Sends a hello and more in pieces, and asserts that all of it arrives at `server` unchanged.
fn expect_at(server: &TcpListener, node: &Node, hello: &[u8], pieces: usize) {
    let mut client = connect(node);
    let stream = [hello, b"and what follows"].concat();
    for piece in stream.chunks(pieces) {
        client.write_all(piece).unwrap();
    }
    let (mut far, _) = server.accept().unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    end_writing(&client);
    assert_same(&read_to_fin(&mut far), &stream);
    far.write_all(b"answer").unwrap();
    drop(far);
    assert_eq!(read_to_fin(&mut client), b"answer");
}

/// Announces a message of 32 kB.
fn too_long_hello() -> Vec<u8> {
    let start = [22, 3, 1, 0x40, 0, 1, 0, 0x7f, 0xff];
    [&start[..], &[0; 20 << 10]].concat()
}

#[test]
fn a_server_name_leads_to_its_destination_and_the_hello_arrives_unchanged() {
    let (named, to_named) = server();
    let (below, to_below) = server();
    let (other, to_other) = server();
    let names = [("a.example", &to_named), ("*.b.example", &to_below)];
    let node = relay(&names, Some(&to_other));
    for pieces in [1, 7, 4096] {
        for record in [1, 40, 1 << 14] {
            let hello = |name| client_hello(name, record);
            expect_at(&named, &node, &hello(Some("A.Example")), pieces);
            expect_at(&below, &node, &hello(Some("x.b.example")), pieces);
            expect_at(&other, &node, &hello(Some("c.example")), pieces);
            expect_at(&other, &node, &hello(None), pieces);
        }
    }
    // The destination decides about what no forward can list.
    for name in ["a.example:443", "2001:db8::1", "no name"] {
        let hello = client_hello(Some(name), 1 << 14);
        expect_at(&other, &node, &hello, 4096);
    }
    expect_at(&other, &node, &too_long_hello(), 4096);
    let metrics = node.metrics();
    wait_until("the sessions' end", || metrics.sessions() == 0);
    assert_eq!(metrics.ended(End::Complete), 40);
    let text = metrics.encode().unwrap();
    for line in [
        "taut_relay_client_hellos_total{by=\"name\"} 9",
        "taut_relay_client_hellos_total{by=\"wildcard\"} 9",
        "taut_relay_client_hellos_total{by=\"default\"} 22",
        "taut_relay_client_hellos_waiting 0",
    ] {
        assert!(text.lines().any(|l| l == line), "no `{line}` in:\n{text}");
    }
}

/// The reader of the header has read a part of the hello, or all of it.
#[test]
fn a_hello_behind_a_proxy_header_is_read_from_its_start() {
    let (named, to) = server();
    let node = with(&[("a.example", &to)], None, UNLIMITED, |forward| {
        let loopback = vec!["127.0.0.0/8".parse().unwrap()];
        forward.identity.accept_proxy = Sources::new(Some(loopback), Vec::new()).ok();
    });
    let header = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
    for record in [40, 1 << 14] {
        let hello = client_hello(Some("a.example"), record);
        let sent = [&header[..], &hello].concat();
        for pieces in [1, header.len() + 9, sent.len()] {
            let mut client = connect(&node);
            for piece in sent.chunks(pieces) {
                client.write_all(piece).unwrap();
            }
            let (mut far, _) = named.accept().unwrap();
            end_writing(&client);
            assert_same(&read_to_fin(&mut far), &hello);
        }
    }
}

#[test]
fn a_client_without_a_listed_name_or_without_tls_is_reset_and_nothing_is_dialled() {
    let (server, to) = server();
    server.set_nonblocking(true).unwrap();
    let node = relay(&[("a.example", &to)], None);
    let malformed = vec![22, 3, 1, 0, 5, 1, 0, 0, 1, 0];
    let hello = |name| client_hello(name, 1 << 14);
    for (stream, cause) in [
        (hello(Some("b.example")), "unknown_name"),
        (hello(None), "no_name"),
        (malformed, "malformed"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "not_tls"),
        (too_long_hello(), "too_long"),
    ] {
        let mut client = connect(&node);
        // The reset may come before everything has been written.
        let _ = client.write_all(&stream);
        assert_eq!(read_to_rst(&mut client), b"", "{cause}");
        let line = format!("taut_relay_client_hellos_refused_total{{cause=\"{cause}\"}} 1");
        let text = node.metrics().encode().unwrap();
        assert!(text.lines().any(|l| l == line), "no `{line}` in:\n{text}");
    }
    // A client that ends in the middle of its hello.
    let mut client = connect(&node);
    client.write_all(&hello(Some("a.example"))[..30]).unwrap();
    end_writing(&client);
    assert_eq!(read_to_rst(&mut client), b"");
    let text = node.metrics().encode().unwrap();
    assert!(text.contains("{cause=\"gone\"} 1"), "{text}");
    let error = server.accept().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn connections_without_a_hello_displace_the_oldest_of_them() {
    let (server, to) = server();
    let node = relay(&[("a.example", &to)], None);
    let mut silent: Vec<_> = (0..1024).map(|_| connect(&node)).collect();
    // Both workers have their half of the places; one more than all displaces one at least.
    let _more: Vec<_> = (0..1024).map(|_| connect(&node)).collect();
    let hello = client_hello(Some("a.example"), 1 << 14);
    expect_at(&server, &node, &hello, 4096);
    assert_eq!(read_to_rst(&mut silent[0]), b"");
}

#[test]
fn a_client_counts_for_its_source_before_it_has_sent_its_hello() {
    let (server, to) = server();
    let node = with(&[("a.example", &to)], None, 2, |_| {});
    let mut silent = vec![connect(&node), connect(&node)];
    let metrics = node.metrics();
    let waiting = || {
        let text = metrics.encode().unwrap();
        text.contains("taut_relay_client_hellos_waiting 2")
    };
    wait_until("both to wait", waiting);
    expect_reset(node.listen_addrs()[0].0);
    wait_until("the count", || {
        metrics.refused(ClientRefusal::SourceLimit) == 1
    });
    // The place of a client that has gone is free again.
    drop(silent.pop());
    wait_until("its end", || !waiting());
    expect_at(
        &server,
        &node,
        &client_hello(Some("a.example"), 1 << 14),
        4096,
    );
}
