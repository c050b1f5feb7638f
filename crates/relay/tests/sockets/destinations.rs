//! Forwards with several destinations: which of them a session gets.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use taut_relay::config::{Config, Forward};
use taut_relay::net::addr::Destination;
use taut_relay::node::Node;
use taut_relay::outcome::session_end::End;

use crate::rig::*;

fn destination(addr: SocketAddr) -> Destination {
    addr.to_string().parse().unwrap()
}

/// A node with one worker, so that equal destinations get sessions in turn.
fn relay(to: &[SocketAddr], adjust: impl FnOnce(&mut Config)) -> Node {
    enter_network();
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let mut forward = Forward::new(listen, destination(to[0]));
    forward.to = to.iter().copied().map(destination).collect();
    let mut config = Config::new(vec![forward]);
    config.workers = Some(1);
    config.max_sessions = Some(64);
    // An attempt that waits for this longer than the test does.
    config.timeouts.connect = Duration::from_secs(3600);
    adjust(&mut config);
    Node::start(&config).unwrap()
}

fn server() -> (TcpListener, SocketAddr) {
    let server = listen();
    let addr = server.local_addr().unwrap();
    server.set_nonblocking(true).unwrap();
    (server, addr)
}

/// A listener that answers no SYN, because its accept queue is full.
struct Silent {
    addr: SocketAddr,
    _listener: TcpListener,
    _queued: TcpStream,
}

impl Silent {
    fn new() -> Self {
        let listener = listen();
        Self {
            addr: listener.local_addr().unwrap(),
            _queued: fill_queue(&listener),
            _listener: listener,
        }
    }
}

/// Another address that refuses connections.
fn also_refusing() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 2))
}

fn connect(node: &Node) -> TcpStream {
    let client = TcpStream::connect(node.listen_addrs()[0].0).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

fn accepted(server: &TcpListener) -> Option<TcpStream> {
    match server.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            Some(stream)
        }
        Err(e) if e.kind() == ErrorKind::WouldBlock => None,
        Err(e) => panic!("accept: {e}"),
    }
}

fn wait_for(server: &TcpListener) -> TcpStream {
    let mut stream = None;
    wait_until("a connection at the server", || {
        stream = accepted(server);
        stream.is_some()
    });
    stream.unwrap()
}

/// Sends a stream through a session to its end.
fn complete(mut client: TcpStream, mut server: TcpStream) {
    client.write_all(b"to the one that answers").unwrap();
    end_writing(&client);
    assert_eq!(read_to_fin(&mut server), b"to the one that answers");
    drop(server);
    assert_eq!(read_to_fin(&mut client), b"");
}

#[test]
fn a_silent_address_costs_the_first_session_a_moment_and_later_ones_nothing() {
    let silent = Silent::new();
    let (server, addr) = server();
    let node = relay(&[addr, silent.addr], |_| {});
    let metrics = node.metrics();
    // Sessions take turns, so one of the first two begins at the silent address.
    for _ in 0..2 {
        let client = connect(&node);
        complete(client, wait_for(&server));
    }
    assert_eq!(metrics.addresses(), (1, 1));
    assert_eq!(metrics.dials(), 3);
    wait_until("the sessions' end", || metrics.sessions() == 0);
    assert_eq!(metrics.ended(End::Complete), 2);
}

#[test]
fn a_refusing_address_costs_no_session() {
    let (server, addr) = server();
    let node = relay(&[refusing(), also_refusing(), addr], |_| {});
    for _ in 0..6 {
        let client = connect(&node);
        complete(client, wait_for(&server));
    }
    let metrics = node.metrics();
    wait_until("the sessions' end", || metrics.sessions() == 0);
    assert_eq!(metrics.ended(End::Complete), 6);
    assert_eq!(metrics.addresses(), (1, 2));
}

#[test]
fn a_session_that_no_address_takes_ends_with_the_last_error() {
    let node = relay(&[refusing(), also_refusing()], |_| {});
    expect_reset(node.listen_addrs()[0].0);
    let metrics = node.metrics();
    wait_until("the session's end", || {
        metrics.ended(End::ConnectRefused) == 1
    });
    assert_eq!(metrics.dials(), 2);
}

#[test]
fn silent_addresses_time_out_one_by_one() {
    let silent = [Silent::new(), Silent::new()];
    let node = relay(&[silent[0].addr, silent[1].addr], |config| {
        config.timeouts.connect = Duration::from_millis(400);
    });
    expect_reset(node.listen_addrs()[0].0);
    let metrics = node.metrics();
    wait_until("the session's end", || {
        metrics.ended(End::ConnectTimedOut) == 1
    });
    assert_eq!(metrics.dials(), 2);
}

#[test]
fn a_client_that_leaves_takes_its_attempts_with_it() {
    let silent = [Silent::new(), Silent::new()];
    let node = relay(&[silent[0].addr, silent[1].addr], |_| {});
    let client = connect(&node);
    let metrics = node.metrics();
    let extra = |n: u32| {
        let line = format!("taut_relay_dials_extra {n}");
        metrics.encode().unwrap().lines().any(|l| l == line)
    };
    wait_until("the second attempt", || metrics.dials() == 2 && extra(1));
    reset(client);
    wait_until("the session's end", || metrics.ended(End::ClientReset) == 1);
    assert!(extra(0));
}

#[test]
fn an_address_that_answers_again_gets_sessions_again() {
    let (first, addr) = server();
    let back = refusing();
    let node = relay(&[addr, back], |_| {});
    let metrics = node.metrics();
    while metrics.addresses() != (1, 1) {
        let client = connect(&node);
        complete(client, wait_for(&first));
    }
    let again = TcpListener::bind(back).unwrap();
    again.set_nonblocking(true).unwrap();
    wait_until("a session at the address", || {
        let client = connect(&node);
        let mut at = (None, None);
        wait_until("a connection", || {
            at = (accepted(&first), accepted(&again));
            at.0.is_some() || at.1.is_some()
        });
        let is_back = at.1.is_some();
        complete(client, at.0.or(at.1).unwrap());
        is_back
    });
    assert_eq!(metrics.addresses(), (2, 0));
}

#[test]
fn sessions_go_to_the_destination_with_the_fewest() {
    let servers = [server(), server(), server()];
    let addrs = servers.each_ref().map(|(_, addr)| *addr);
    let node = relay(&addrs, |config| config.workers = Some(2));
    let mut held: [Vec<(TcpStream, TcpStream)>; 3] = Default::default();
    let open = |node: &Node, held: &mut [Vec<(TcpStream, TcpStream)>; 3]| {
        let client = connect(node);
        let mut at = None;
        wait_until("a connection", || {
            let all = servers.iter().enumerate();
            at = all.filter_map(|(i, (s, _))| Some((i, accepted(s)?))).next();
            at.is_some()
        });
        let (i, server) = at.unwrap();
        held[i].push((client, server));
        i
    };
    for _ in 0..9 {
        open(&node, &mut held);
    }
    assert_eq!(held.each_ref().map(Vec::len), [3, 3, 3]);
    // Two sessions of one destination end; it gets the next two.
    let metrics = node.metrics();
    held[1]
        .drain(..2)
        .for_each(|(client, server)| complete(client, server));
    wait_until("the sessions' end", || metrics.sessions() == 7);
    assert_eq!([open(&node, &mut held), open(&node, &mut held)], [1, 1]);
}
