//! A node as a whole: what it refuses, what it holds in memory, how it ends.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use crate::rig::*;
use taut_relay::config::{Config, Forward};
use taut_relay::net::addr::Destination;
use taut_relay::node::{Node, StartError};
use taut_relay::outcome::session_end::End;

fn config(listen: &str, to: &str) -> Config {
    enter_network();
    let listen = vec![listen.parse().unwrap()];
    let mut config = Config::new(vec![Forward::new(
        listen,
        to.parse::<Destination>().unwrap(),
    )]);
    config.workers = Some(2);
    config.max_sessions = Some(64);
    config
}

#[test]
fn a_slow_reader_holds_the_writer_back() {
    for path in paths() {
        let rig = Rig::new(path);
        let (mut client, server) = rig.tight_pair();
        let bytes = stream(FLOOD, 1);
        let sent = fill(&mut client, &bytes);
        assert!(
            sent < bytes.len(),
            "all was accepted for a reader that reads nothing"
        );
        drop(server);
    }
}

#[test]
fn the_client_after_the_last_that_fits_is_reset_if_none_may_wait() {
    let rig = Rig::with(Path::Both, |config| {
        config.max_sessions = Some(2);
        config.timeouts.queue = None;
    });
    let _pairs = [rig.pair(), rig.pair()];
    expect_reset(rig.relay_addr());
    wait_until("the count", || rig.node.metrics().refused_full() == 1);
    assert_eq!(rig.node.metrics().sessions(), 2);
}

#[test]
fn without_pipes_everything_is_copied() {
    let rig = Rig::with(Path::Splice, |config| config.data.max_pipes = 0);
    let (mut client, mut server) = rig.pair();
    let bytes = stream(4 << 20, 2);
    std::thread::scope(|s| {
        s.spawn(|| {
            client.write_all(&bytes).unwrap();
            end_writing(&client);
        });
        assert_same(&read_to_fin(&mut server), &bytes);
    });
    assert_eq!(rig.node.metrics().pipes_open(), 0);
}

#[test]
fn readers_that_stop_leave_the_pipes_to_others() {
    let rig = Rig::with(Path::Splice, |config| {
        config.workers = Some(1);
        config.data.max_pipes = 2;
    });
    let stalled: Vec<_> = (0..4)
        .map(|i| {
            let (mut client, server) = rig.tight_pair();
            let bytes = stream(FLOOD, 10 + i);
            let sent = fill(&mut client, &bytes);
            (client, server, bytes, sent)
        })
        .collect();
    wait_until("the pipes' return", || {
        rig.node.metrics().pipes_in_use() == 0
    });
    // The bytes that the pipes held are not lost.
    for (mut client, mut server, bytes, sent) in stalled {
        end_writing(&client);
        assert_same(&read_to_fin(&mut server), &bytes[..sent]);
        drop(server);
        assert_eq!(read_to_fin(&mut client), b"");
    }
}

#[test]
fn an_idle_session_holds_no_pipe() {
    let rig = Rig::new(Path::Splice);
    let (mut client, mut server) = rig.pair();
    let bytes = stream(4 << 20, 3);
    std::thread::scope(|s| {
        s.spawn(|| client.write_all(&bytes).unwrap());
        let mut got = vec![0; bytes.len()];
        std::io::Read::read_exact(&mut server, &mut got).unwrap();
        assert_same(&got, &bytes);
    });
    assert!(rig.node.metrics().pipes_open() > 0, "nothing was spliced");
    wait_until("the pipes' return", || {
        rig.node.metrics().pipes_in_use() == 0
    });
    assert_eq!(rig.node.metrics().sessions(), 1);
}

#[tokio::test]
async fn draining_lets_sessions_end_and_takes_no_new_ones() {
    let mut rig = Rig::new(Path::Both);
    let (mut client, mut server) = rig.pair();
    rig.node.drain();
    let addr = rig.relay_addr();
    // A connection made for this check would be one more session to wait for.
    wait_until("the listeners' end", || {
        std::net::TcpListener::bind(addr).is_ok()
    });
    assert!(TcpStream::connect(addr).is_err());
    client.write_all(b"still here").unwrap();
    end_writing(&client);
    assert_eq!(read_to_fin(&mut server), b"still here");
    drop(server);
    assert_eq!(read_to_fin(&mut client), b"");
    rig.node.ended().await.unwrap();
    assert_eq!(rig.node.metrics().ended(End::Complete), 1);
}

#[tokio::test]
async fn stopping_resets_what_is_open() {
    let mut rig = Rig::new(Path::Both);
    let (mut client, mut server) = rig.pair();
    server.write_all(b"half a file").unwrap();
    wait_for_acks(&server);
    rig.node.stop();
    rig.node.ended().await.unwrap();
    read_to_rst(&mut client);
    assert_eq!(read_to_rst(&mut server), b"");
    rig.expect_end(End::Stopped);
}

#[test]
fn ipv6_clients_reach_an_ipv4_destination() {
    let server = listen();
    let to = server.local_addr().unwrap().to_string();
    let node = Node::start(&config("[::1]:0", &to)).unwrap();
    let mut client = TcpStream::connect(node.listen_addrs()[0].0).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    client.write_all(b"six to four").unwrap();
    end_writing(&client);
    assert_eq!(read_to_fin(&mut accepted), b"six to four");
}

#[test]
fn a_port_in_use_is_refused_even_by_a_relay_of_the_same_user() {
    let first = Node::start(&config("127.0.0.1:0", "127.0.0.1:9")).unwrap();
    let addr = first.listen_addrs()[0].0.to_string();
    let error = Node::start(&config(&addr, "127.0.0.1:9")).unwrap_err();
    assert!(matches!(error, StartError::Listen { .. }), "{error}");
    assert!(error.to_string().contains("the port is in use"), "{error}");
}

#[test]
fn an_address_of_another_machine_is_refused() {
    let error = Node::start(&config("192.0.2.1:0", "127.0.0.1:9"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("not an address of this machine"), "{error}");
}

#[test]
fn more_sessions_than_descriptors_are_refused() {
    let mut config = config("127.0.0.1:0", "127.0.0.1:9");
    config.max_sessions = Some(u32::MAX);
    let error = Node::start(&config).unwrap_err();
    assert!(
        matches!(error, StartError::TooFewDescriptors { .. }),
        "{error}"
    );
}

#[test]
fn a_forward_to_itself_is_refused() {
    let error = Node::start(&config(":9", "127.0.0.1:9"));
    assert!(matches!(error, Err(StartError::Loop { .. })), "{error:?}");
    let mapped = Node::start(&config("127.0.0.1:9", "[::ffff:127.0.0.1]:9"));
    assert!(matches!(mapped, Err(StartError::Loop { .. })), "{mapped:?}");
}

#[test]
fn an_unknown_congestion_control_is_refused_at_the_start() {
    let server = listen();
    let mut config = config("127.0.0.1:0", &server.local_addr().unwrap().to_string());
    config.forwards[0].client_congestion = Some("reno".into());
    config.forwards[0].upstream_congestion = Some("reno".into());
    assert!(Node::start(&config).is_ok());
    config.forwards[0].upstream_congestion = Some("no-such".into());
    let error = Node::start(&config).unwrap_err();
    assert!(matches!(error, StartError::Congestion { .. }), "{error}");
}

/// Returns whether the keepalive timer of the connection from `local` runs.
fn has_keepalive(local: SocketAddr) -> bool {
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let port = format!(":{:04X}", local.port());
    let mut row = table.lines().map(|line| line.split_whitespace().collect());
    // The timer is the sixth column; 02 is sk_timer, which an established connection uses for keepalive.
    row.any(|row: Vec<_>| row[1].ends_with(&port) && row[5].starts_with("02:"))
}

#[test]
fn both_legs_of_a_session_that_lasts_have_keepalive() {
    let rig = Rig::new(Path::Both);
    let (client, server) = rig.pair();
    let (upstream, relay) = (server.peer_addr().unwrap(), client.peer_addr().unwrap());
    wait_until("keepalive of the client leg", || has_keepalive(relay));
    wait_until("keepalive of the upstream leg", || has_keepalive(upstream));
}
