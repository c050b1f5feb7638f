//! Early SYN and the client's address: the PROXY protocol to the destination, and upstream
//! connections from the client's address.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::Duration;

use taut_mesh::proxy::{Header, MAX_HEADER, Reader};
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::world::{Host, World, WorldBuilder};
use taut_relay::access::identity::ProxyVersion;
use taut_relay::config::{Config, Forward};
use taut_relay::node::Node;

use super::flood::{send_syns, unused_clients};
use super::joined::figure;
use super::rig::PATIENCE;
use crate::wait::wait_until;

const PORT: u16 = 8080;
/// More than one, so that most clients are accepted by another worker than the one that has their
/// leg.
const WORKERS: u16 = 4;

/// A client that is far away, a relay, and a server on a host of its own.
fn world(name: &str) -> World {
    let link = |ms| LinkSpec::both(Shape::delay(Duration::from_millis(ms)));
    WorldBuilder::new(name)
        .host("client")
        .host("relay")
        .host("server")
        .link("client", "relay", link(150))
        .link("relay", "server", link(1))
        .build()
        .unwrap()
}

fn listen(host: &Host) -> TcpListener {
    let addr = SocketAddr::from((host.addr(), 80));
    host.run(|| TcpListener::bind(addr)).unwrap().unwrap()
}

/// Starts a relay with early SYN on `host`.
fn relay(host: &Host, server: &TcpListener, change: impl FnOnce(&mut Forward)) -> Node {
    let to = server.local_addr().unwrap().to_string().parse().unwrap();
    let listen = format!("{}:{PORT}", host.addr()).parse().unwrap();
    let mut forward = Forward::new(vec![listen], to);
    forward.early_syn = true;
    change(&mut forward);
    let mut config = Config::new(vec![forward]);
    config.workers = Some(WORKERS);
    config.max_sessions = Some(256);
    host.run(|| Node::start(&config)).unwrap().unwrap()
}

/// Connects `count` clients that each send their own address, end their stream and read what comes
/// back.
fn talk(client: &Host, relay: &Host, count: usize) -> BTreeMap<SocketAddr, Vec<u8>> {
    let connect = || {
        let mut stream = TcpStream::connect((relay.addr(), PORT)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let own = stream.local_addr().unwrap();
        stream.write_all(own.to_string().as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        (own, heard)
    };
    std::thread::scope(|s| {
        let all: Vec<_> = (0..count)
            .map(|_| s.spawn(|| client.run(connect).unwrap()))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

fn read_header(stream: &mut TcpStream) -> Header {
    let mut reader = Reader::new(MAX_HEADER);
    loop {
        let n = stream.read(reader.space()).unwrap();
        assert_ne!(n, 0, "the stream ended before the header did");
        if let Some(header) = reader.advance(n).unwrap() {
            return header;
        }
    }
}

#[test]
fn a_leg_that_is_begun_at_the_syn_names_the_client_that_was_accepted() {
    const CLIENTS: usize = 12;
    let world = world("early-proxy");
    let (client, host, far) = (
        world.host("client"),
        world.host("relay"),
        world.host("server"),
    );
    let server = listen(far);
    let node = relay(host, &server, |f| {
        f.identity.send_proxy = Some(ProxyVersion::V2)
    });
    let serve = || {
        for _ in 0..CLIENTS {
            let (mut stream, _) = server.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let header = read_header(&mut stream);
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            let to = SocketAddr::from((host.addr(), PORT));
            let named = Some((said.parse().unwrap(), to));
            assert_eq!(header.addresses, named, "the header names another client");
            stream.write_all(said.as_bytes()).unwrap();
        }
    };
    let heard = std::thread::scope(|s| {
        let served = s.spawn(serve);
        let heard = talk(client, host, CLIENTS);
        served.join().unwrap();
        heard
    });
    for (own, heard) in heard {
        assert_eq!(heard, own.to_string().as_bytes());
    }
    let joined = figure(&node.metrics(), "taut_relay_early_joined_total");
    assert_eq!(joined, CLIENTS as u64);
    wait_until("the end of all", || node.metrics().sessions() == 0);
}

#[test]
fn a_leg_that_is_begun_at_the_syn_comes_from_the_clients_address() {
    const CLIENTS: usize = 12;
    let world = world("early-source");
    let (client, host, far) = (
        world.host("client"),
        world.host("relay"),
        world.host("server"),
    );
    let server = listen(far);
    let node = relay(host, &server, |f| f.identity.borrow = true);
    let serve = || {
        for _ in 0..CLIENTS {
            let (mut stream, from) = server.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!(from.ip(), IpAddr::V4(client.addr()));
            let mut said = Vec::new();
            stream.read_to_end(&mut said).unwrap();
            stream.write_all(&said).unwrap();
        }
    };
    let heard = std::thread::scope(|s| {
        let served = s.spawn(serve);
        let heard = talk(client, host, CLIENTS);
        served.join().unwrap();
        heard
    });
    for (own, heard) in heard {
        assert_eq!(heard, own.to_string().as_bytes());
    }
    let joined = figure(&node.metrics(), "taut_relay_early_joined_total");
    assert_eq!(joined, CLIENTS as u64);

    // An address to which no network routes answers is not used as a source.
    let to = SocketAddrV4::new(host.addr(), PORT);
    let link_local = SocketAddrV4::new(Ipv4Addr::new(169, 254, 7, 7), 5000);
    client.run(|| send_syns(to, [link_local])).unwrap();
    wait_until("the SYN to be declined", || {
        figure(&node.metrics(), "taut_relay_early_declined_total") == 1
    });
}

#[test]
fn a_destination_hears_nothing_of_a_client_that_does_not_finish_its_handshake() {
    const FORGED: u32 = 8;
    let world = world("early-unheard");
    let (client, host, far) = (
        world.host("client"),
        world.host("relay"),
        world.host("server"),
    );
    let server = listen(far);
    let node = relay(host, &server, |f| {
        f.identity.send_proxy = Some(ProxyVersion::V2)
    });
    let to = SocketAddrV4::new(host.addr(), PORT);
    let from = unused_clients(0, FORGED);
    client.run(|| send_syns(to, from)).unwrap();
    for _ in 0..FORGED {
        let (mut leg, _) = server.accept().unwrap();
        leg.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut heard = Vec::new();
        let end = leg.read_to_end(&mut heard).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
        assert!(heard.is_empty(), "{} bytes for nobody", heard.len());
    }
    assert_eq!(node.metrics().sessions(), 0);
    let joined = figure(&node.metrics(), "taut_relay_early_joined_total");
    assert_eq!(joined, 0);
}
