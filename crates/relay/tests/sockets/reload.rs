//! A running node adopts another configuration.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};

use taut_relay::access::Sources;
use taut_relay::config::{Config, Forward};
use taut_relay::node::{Node, StartError};
use taut_relay::outcome::refusal::ClientRefusal;
use taut_relay::outcome::session_end::End;

use crate::rig::*;

fn forward(listen: &str, to: SocketAddr) -> Forward {
    Forward::new(
        vec![listen.parse().unwrap()],
        to.to_string().parse().unwrap(),
    )
}

fn config(forwards: Vec<Forward>) -> Config {
    enter_network();
    let mut config = Config::new(forwards);
    config.workers = Some(2);
    config.max_sessions = Some(64);
    config
}

fn new_server() -> (TcpListener, SocketAddr) {
    let server = listen();
    let addr = server.local_addr().unwrap();
    (server, addr)
}

/// A client that reaches `server` through `relay`.
fn pair(relay: SocketAddr, server: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(relay).unwrap();
    let (far, _) = server.accept().unwrap();
    for s in [&client, &far] {
        s.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    (client, far)
}

/// Sends a byte each way and ends the session with FIN.
fn complete(mut client: TcpStream, mut server: TcpStream) {
    client.write_all(b"there").unwrap();
    end_writing(&client);
    assert_eq!(read_to_fin(&mut server), b"there");
    server.write_all(b"and back").unwrap();
    drop(server);
    assert_eq!(read_to_fin(&mut client), b"and back");
}

#[test]
fn forwards_are_added_removed_and_changed_while_sessions_continue() {
    let (first, first_addr) = new_server();
    let (second, second_addr) = new_server();
    let node = Node::start(&config(vec![
        forward("127.0.0.1:0", first_addr),
        forward("127.0.0.2:0", first_addr),
    ]))
    .unwrap();
    let [stays, goes] = node.listen_addrs()[..] else {
        panic!("two listeners")
    };
    let through_stays = pair(stays.0, &first);
    let through_goes = pair(goes.0, &first);

    node.reload(&config(vec![
        forward("127.0.0.1:0", second_addr),
        forward("127.0.0.3:0", second_addr),
    ]))
    .unwrap();
    let addrs = node.listen_addrs();
    assert_eq!(addrs[0], stays, "an unchanged listener got another port");
    wait_until("the old port's end", || TcpListener::bind(goes.0).is_ok());

    // Both lead to the other server, one of them as soon as its worker is told.
    let (client, far) = pair(addrs[1].0, &second);
    complete(client, far);
    second.set_nonblocking(true).unwrap();
    first.set_nonblocking(true).unwrap();
    wait_until("the new destination", || {
        let _client = TcpStream::connect(stays.0).unwrap();
        let mut at_second = false;
        wait_until("a server", || {
            at_second = second.accept().is_ok();
            at_second || first.accept().is_ok()
        });
        at_second
    });

    // The session from before is not affected.
    let (client, far) = through_stays;
    complete(client, far);
    let (client, far) = through_goes;
    complete(client, far);
}

#[test]
fn no_connection_in_the_queue_of_a_kept_listener_is_lost() {
    let (server, addr) = new_server();
    let node = Node::start(&config(vec![forward("127.0.0.1:0", addr)])).unwrap();
    let relay = node.listen_addrs()[0].0;
    let served = std::thread::spawn(move || {
        for _ in 0..400 {
            let (mut far, _) = server.accept().unwrap();
            far.write_all(b"welcome").unwrap();
        }
    });
    for i in 0..40 {
        let clients: Vec<_> = (0..10)
            .map(|_| TcpStream::connect(relay).unwrap())
            .collect();
        let mut again = config(vec![forward("127.0.0.1:0", addr)]);
        again.timeouts.flush += std::time::Duration::from_secs(i);
        node.reload(&again).unwrap();
        for mut client in clients {
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!(read_to_fin(&mut client), b"welcome");
        }
    }
    served.join().unwrap();
}

#[test]
fn a_listener_may_move_between_one_address_and_all() {
    let (server, addr) = new_server();
    let node = Node::start(&config(vec![forward("127.0.0.1:0", addr)])).unwrap();
    let relay = node.listen_addrs()[0].0;
    let session = pair(relay, &server);
    node.reload(&config(vec![forward(&format!(":{}", relay.port()), addr)]))
        .unwrap();
    assert!(node.listen_addrs()[0].0.ip().is_unspecified());
    // A connection in the handshake with the old listener is reset when it closes; there is none at
    // another of the addresses.
    let other = SocketAddr::from(([127, 0, 0, 2], relay.port()));
    let (client, far) = pair(other, &server);
    complete(client, far);
    let (client, far) = session;
    complete(client, far);
}

#[test]
fn a_failed_reload_changes_nothing() {
    let (server, addr) = new_server();
    let (_holder, taken) = new_server();
    let node = Node::start(&config(vec![forward("127.0.0.1:0", addr)])).unwrap();
    let relay = node.listen_addrs();
    let mut no_congestion = config(vec![forward("127.0.0.1:0", addr)]);
    no_congestion.forwards[0].upstream_congestion = Some("no-such".into());
    for (bad, what) in [
        (
            config(vec![
                forward("127.0.0.9:0", addr),
                forward(&taken.to_string(), addr),
            ]),
            "a port in use",
        ),
        (no_congestion, "no such congestion control"),
        (
            config(vec![forward(
                "127.0.0.1:9",
                SocketAddr::from(([127, 0, 0, 1], 9)),
            )]),
            "a loop",
        ),
    ] {
        let error: StartError = node.reload(&bad).unwrap_err();
        assert!(!error.to_string().is_empty());
        assert_eq!(node.listen_addrs(), relay, "{what}");
        let (client, far) = pair(relay[0].0, &server);
        complete(client, far);
    }
    // The addresses that the failed ones had bound are free.
    TcpListener::bind("127.0.0.1:9").unwrap();
}

#[test]
fn limits_and_lists_apply_to_later_connections() {
    let (server, addr) = new_server();
    let node = Node::start(&config(vec![forward("127.0.0.1:0", addr)])).unwrap();
    let relay = node.listen_addrs()[0].0;
    let open = [pair(relay, &server), pair(relay, &server)];

    let mut stricter = config(vec![forward("127.0.0.1:0", addr)]);
    stricter.max_sessions_per_source = Some(2);
    node.reload(&stricter).unwrap();
    expect_reset(relay);
    assert_eq!(node.metrics().refused(ClientRefusal::SourceLimit), 1);

    let mut nobody = config(vec![forward("127.0.0.1:0", addr)]);
    nobody.forwards[0].sources = Sources::new(Some(Vec::new()), Vec::new()).unwrap();
    node.reload(&nobody).unwrap();
    let metrics = node.metrics();
    wait_until("a refusal", || {
        drop(TcpStream::connect(relay));
        metrics.refused(ClientRefusal::SourceNotListed) > 0
    });
    for (client, far) in open {
        complete(client, far);
    }
}

#[test]
fn sessions_keep_the_timeouts_that_they_began_with() {
    let (server, addr) = new_server();
    let node = Node::start(&config(vec![forward("127.0.0.1:0", addr)])).unwrap();
    let relay = node.listen_addrs()[0].0;
    let patient = pair(relay, &server);
    let mut hasty = config(vec![forward("127.0.0.1:0", addr)]);
    hasty.timeouts.idle = Some(std::time::Duration::from_millis(100));
    node.reload(&hasty).unwrap();
    let metrics = node.metrics();
    wait_until("a session that began with the new one", || {
        let (mut client, _far) = pair(relay, &server);
        client
            .set_read_timeout(Some(std::time::Duration::from_secs(1)))
            .unwrap();
        let _ = std::io::Read::read(&mut client, &mut [0]);
        metrics.ended(End::IdleTimeout) > 0
    });
    let (client, far) = patient;
    complete(client, far);
}

#[tokio::test]
async fn a_node_that_drains_listens_nowhere_anew() {
    let (_server, addr) = new_server();
    let mut node = Node::start(&config(vec![forward("127.0.0.1:0", addr)])).unwrap();
    node.drain();
    node.reload(&config(vec![forward("127.0.0.4:0", addr)]))
        .unwrap();
    assert_eq!(node.listen_addrs()[0].0.ip().to_string(), "127.0.0.1");
    node.ended().await.unwrap();
}
