//! Clients that wait for a place when `max_sessions` are open.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use taut_relay::config::{Config, Forward};
use taut_relay::metrics::Metrics;
use taut_relay::outcome::refusal::ClientRefusal;
use taut_relay::outcome::session_end::End;

use crate::mesh_rig::connect_from;
use crate::rig::*;

fn with_places(places: u32) -> impl Fn(&mut Config) {
    move |config| config.max_sessions = Some(places)
}

/// A relay with a forward for one session, and another one.
fn beside_a_small_forward(adjust: impl Fn(&mut Forward)) -> Rig {
    Rig::with(Path::Both, |config| {
        let mut other = Forward {
            name: Some("other".into()),
            ..config.forwards[0].clone()
        };
        adjust(&mut other);
        config.forwards.push(other);
        config.forwards[0].max_sessions = Some(1);
    })
}

/// A client that has to wait, as the `nth` one of those that wait.
fn queue(rig: &Rig, at: SocketAddr, nth: usize) -> TcpStream {
    let mut client = TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(&[nth as u8]).unwrap();
    wait_until("the client to wait", || rig.node.metrics().queued() == nth);
    client
}

/// The next session at the server, and what its client has sent.
fn served(rig: &Rig) -> (TcpStream, u8) {
    let (mut server, _) = rig.server.accept().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut byte = [0];
    server.read_exact(&mut byte).unwrap();
    (server, byte[0])
}

/// The sum of a counter of forwards.
fn counted(metrics: &Metrics, name: &str) -> u64 {
    let text = metrics.encode().unwrap();
    let lines = text
        .lines()
        .filter(|line| line.starts_with(&format!("{name}{{")));
    lines
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

#[test]
fn clients_beyond_the_last_place_wait_and_are_served_in_their_order() {
    let rig = Rig::with(Path::Both, with_places(1));
    let mut open = rig.pair();
    let waiting: Vec<_> = (1..=3)
        .map(|nth| queue(&rig, rig.relay_addr(), nth))
        .collect();
    for (nth, client) in (1..).zip(waiting) {
        drop(open);
        let (server, byte) = served(&rig);
        assert_eq!(byte, nth);
        open = (client, server);
    }
    let metrics = rig.node.metrics();
    assert_eq!(
        (metrics.queued(), metrics.refused(ClientRefusal::Full)),
        (0, 0)
    );
    assert_eq!(counted(&metrics, "taut_relay_forward_queued_total"), 3);
    let text = metrics.encode().unwrap();
    assert!(
        text.contains("\ntaut_relay_queue_seconds_count 3\n"),
        "{text}"
    );
}

#[test]
fn a_full_forward_holds_up_no_other() {
    let rig = beside_a_small_forward(|_| {});
    let at = rig.node.listen_addrs()[1].0;
    let pair = rig.pair();
    let _waiting = queue(&rig, rig.relay_addr(), 1);
    let mut client = TcpStream::connect(at).unwrap();
    client.write_all(&[9]).unwrap();
    let (_server, byte) = served(&rig);
    let metrics = rig.node.metrics();
    assert_eq!((byte, metrics.queued()), (9, 1));
    // The other one's did not wait.
    assert_eq!(counted(&metrics, "taut_relay_forward_queued_total"), 1);
    drop(pair);
    assert_eq!(served(&rig).1, 1);
}

#[test]
fn a_client_that_has_waited_for_too_long_is_reset() {
    let rig = Rig::with(Path::Both, |config| {
        with_places(1)(config);
        config.timeouts.queue = Some(Duration::from_millis(1));
    });
    let _pair = rig.pair();
    let mut client = TcpStream::connect(rig.relay_addr()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(read_to_rst(&mut client), b"");
    let metrics = rig.node.metrics();
    assert_eq!(
        (metrics.queued(), metrics.refused(ClientRefusal::Full)),
        (0, 1)
    );
}

#[test]
fn nothing_is_dialled_for_a_client_that_left_while_it_waited() {
    let rig = Rig::with(Path::Both, with_places(1));
    let pair = rig.pair();
    let leaves = queue(&rig, rig.relay_addr(), 1);
    let _stays = queue(&rig, rig.relay_addr(), 2);
    // It is closed by a reset.
    set_socket_linger(&leaves, Some(Duration::ZERO)).unwrap();
    drop(leaves);
    drop(pair);
    assert_eq!(served(&rig).1, 2);
    let metrics = rig.node.metrics();
    assert_eq!(
        (
            metrics.dials(),
            counted(&metrics, "taut_relay_forward_queue_left_total")
        ),
        (2, 1)
    );
}

#[test]
fn an_idle_session_makes_room_for_a_client_that_waits() {
    let rig = Rig::with(Path::Both, |config| {
        with_places(2)(config);
        // The idle ones may be another worker's than the client.
        config.workers = Some(2);
        config.timeouts.evict = Some(Duration::from_secs(1));
    });
    let mut idle = [rig.pair(), rig.pair()];
    let client = connect_from(
        "127.0.0.2".parse::<std::net::IpAddr>().unwrap(),
        rig.relay_addr(),
    );
    client.unwrap().write_all(&[7]).unwrap();
    assert_eq!(served(&rig).1, 7);
    assert_eq!(rig.node.metrics().ended(End::Evicted), 1);
    let reset = |client: &mut TcpStream| {
        client.set_nonblocking(true).unwrap();
        client
            .read(&mut [0])
            .is_err_and(|e| e.kind() == ErrorKind::ConnectionReset)
    };
    wait_until("the reset of one", || {
        idle.iter_mut().any(|pair| reset(&mut pair.0))
    });
}

#[test]
fn more_places_after_a_reload_are_for_those_who_wait() {
    let of_forward =
        |places| move |config: &mut Config| config.forwards[0].max_sessions = Some(places);
    more_places(with_places(1), with_places(2));
    more_places(of_forward(1), of_forward(2));
}

fn more_places(before: impl Fn(&mut Config), after: impl Fn(&mut Config)) {
    let mut config = None;
    let rig = Rig::with(Path::Both, |c| {
        before(c);
        config = Some(c.clone());
    });
    let _pair = rig.pair();
    let _waiting = queue(&rig, rig.relay_addr(), 1);
    let mut config = config.unwrap();
    after(&mut config);
    rig.node.reload(&config).unwrap();
    assert_eq!(served(&rig).1, 1);
}

#[test]
fn a_forward_without_a_queue_is_served_while_others_wait() {
    let rig = beside_a_small_forward(|other| other.timeouts.queue = Some(None));
    let _pair = rig.pair();
    let _waiting = queue(&rig, rig.relay_addr(), 1);
    let mut client = TcpStream::connect(rig.node.listen_addrs()[1].0).unwrap();
    client.write_all(&[9]).unwrap();
    assert_eq!(served(&rig).1, 9);
}

#[test]
fn those_who_wait_are_served_while_the_node_drains_and_reset_when_it_stops() {
    let mut rig = Rig::with(Path::Both, with_places(1));
    let pair = rig.pair();
    let _first = queue(&rig, rig.relay_addr(), 1);
    let mut second = queue(&rig, rig.relay_addr(), 2);
    rig.node.drain();
    drop(pair);
    assert_eq!(served(&rig).1, 1);
    rig.node.stop();
    assert_eq!(read_to_rst(&mut second), b"");
}
