//! Early SYN on a router that intercepts connections: the destination is the SYN's own.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::time::Duration;

use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::world::{Host, World, WorldBuilder};
use taut_relay::access::identity::ProxyVersion;
use taut_relay::config::{Config, Forward, Transparent};
use taut_relay::intercept::Method;
use taut_relay::metrics::Metrics;
use taut_relay::node::Node;
use taut_sys_testing::skip::has_programs;

use super::flood::{send_syns, unused_clients};
use super::joined::figure;
use super::rig::PATIENCE;
use crate::wait::wait_until;

const PORT: u16 = 80;
/// A port that is intercepted and that no allowed destination has.
const FORBIDDEN: u16 = 81;
/// A port whose connections the router forwards.
const OTHER: u16 = 82;
/// A port that another forward intercepts, without early SYN.
const LATE: u16 = 83;

/// A client that is far from a router, and a server behind it.
fn world(name: &str) -> World {
    let link = |ms| LinkSpec::both(Shape::delay(Duration::from_millis(ms)));
    WorldBuilder::new(name)
        .host("client")
        .host("router")
        .host("server")
        .link("client", "router", link(150))
        .link("router", "server", link(1))
        .build()
        .unwrap()
}

/// Starts a relay on the router that intercepts connections to the server.
fn relay(world: &World, method: Method, change: impl FnOnce(&mut Vec<Forward>)) -> Node {
    let server = world.addr("server");
    let transparent = Transparent {
        ports: vec![PORT, FORBIDDEN],
        destinations: vec![format!("{server}/32").parse().unwrap()],
        devices: vec!["to-client".to_owned()],
        allow: vec![format!("{server}/32:{PORT}").parse().unwrap()],
        deny: Vec::new(),
    };
    let mut forward = Forward::transparent(vec![":8443".parse().unwrap()], transparent);
    forward.early_syn = true;
    let mut forwards = vec![forward];
    change(&mut forwards);
    let mut config = Config::new(forwards);
    config.workers = Some(4);
    config.max_sessions = Some(256);
    config.intercept.method = Some(method);
    let router = world.host("router");
    router.run(|| Node::start(&config)).unwrap().unwrap()
}

fn listen(host: &Host, port: u16) -> TcpListener {
    let addr = SocketAddrV4::new(host.addr(), port);
    host.run(|| TcpListener::bind(addr)).unwrap().unwrap()
}

/// Sends the client's address to the server and back, and returns the addresses of both ends.
fn talk(client: &Host, server: &Host, listener: &TcpListener) -> (IpAddr, IpAddr) {
    let to = listener.local_addr().unwrap();
    assert_eq!(to.ip(), IpAddr::V4(server.addr()));
    let connect = || TcpStream::connect_timeout(&to, PATIENCE);
    let mut stream = client.run(connect).unwrap().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let own = stream.local_addr().unwrap();
    stream.write_all(own.to_string().as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let (mut far, from) = listener.accept().unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut said = String::new();
    far.read_to_string(&mut said).unwrap();
    assert_eq!(said, own.to_string());
    far.write_all(said.as_bytes()).unwrap();
    drop(far);
    said.clear();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!(said, own.to_string());
    (own.ip(), from.ip())
}

/// Returns how many SYNs were reported, and how many legs were begun, joined and not begun.
fn figures(metrics: &Metrics) -> [u64; 4] {
    ["syns", "begun", "joined", "declined"]
        .map(|what| figure(metrics, &format!("taut_relay_early_{what}_total")))
}

#[test]
fn an_intercepted_client_gets_a_leg_that_its_syn_has_begun() {
    const CLIENTS: u64 = 3;
    for (method, borrow) in [
        (Method::Bpf, false),
        (Method::Bpf, true),
        (Method::Nft, false),
    ] {
        if method == Method::Nft && !has_programs(&["nft"]) {
            continue;
        }
        let world = world("early-taken");
        let (client, server) = (world.host("client"), world.host("server"));
        let node = relay(&world, method, |f| {
            f[0].identity.borrow = borrow;
        });
        let listener = listen(server, PORT);
        for _ in 0..CLIENTS {
            let (own, seen) = talk(client, server, &listener);
            assert_eq!(seen == own, borrow, "{method:?}: the server sees {seen}");
        }
        let metrics = node.metrics();
        assert_eq!(
            figures(&metrics),
            [CLIENTS, CLIENTS, CLIENTS, 0],
            "{method:?}"
        );
        wait_until("the end of all", || metrics.sessions() == 0);
    }
}

#[test]
fn only_syns_to_intercepted_and_allowed_destinations_begin_legs() {
    let world = world("early-untaken");
    let (client, server) = (world.host("client"), world.host("server"));
    let node = relay(&world, Method::Bpf, |forwards| {
        let transparent = forwards[0].transparent.as_mut().unwrap();
        transparent.ports.push(LATE);
        let mut late = transparent.clone();
        late.ports = vec![LATE];
        late.allow = vec![
            format!("{}/32:{LATE}", world.addr("server"))
                .parse()
                .unwrap(),
        ];
        let listen = vec![":8444".parse().unwrap()];
        // Of two equal rules, the first wins.
        forwards.insert(0, Forward::transparent(listen, late));
    });
    let metrics = node.metrics();

    // Routed: another port, and a port of the router itself.
    talk(client, server, &listen(server, OTHER));
    let router = world.host("router");
    talk(client, router, &listen(router, PORT));
    assert_eq!(figure(&metrics, "taut_relay_accepted_total"), 0);
    // Intercepted, but not early.
    talk(client, server, &listen(server, LATE));
    assert_eq!(figure(&metrics, "taut_relay_accepted_total"), 1);
    assert_eq!(figures(&metrics), [0; 4]);

    // The server listens, and must not be connected to.
    let forbidden = listen(server, FORBIDDEN);
    let to = forbidden.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&to, PATIENCE);
    let end = client.run(connect).unwrap().and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read(&mut [0])
    });
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    // Its SYN is reported to another thread than the one that has reset it.
    wait_until("the report of its SYN", || {
        figures(&metrics) == [1, 0, 0, 1]
    });
    forbidden.set_nonblocking(true).unwrap();
    assert_eq!(
        forbidden.accept().unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
}

#[test]
fn a_forged_syn_on_its_way_to_a_server_brings_it_no_byte() {
    const FORGED: u32 = 6;
    let world = world("early-forged");
    let (client, server) = (world.host("client"), world.host("server"));
    let listener = listen(server, PORT);
    let node = relay(&world, Method::Bpf, |f| {
        f[0].identity.send_proxy = Some(ProxyVersion::V2);
    });
    let to = SocketAddrV4::new(server.addr(), PORT);
    let from = unused_clients(0, FORGED);
    client.run(|| send_syns(to, from)).unwrap();
    for _ in 0..FORGED {
        let (mut leg, _) = listener.accept().unwrap();
        leg.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut heard = Vec::new();
        let end = leg.read_to_end(&mut heard).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
        assert!(heard.is_empty(), "{} bytes for nobody", heard.len());
    }
    assert_eq!(figures(&node.metrics())[2], 0);
}
