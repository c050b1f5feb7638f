//! Relays that know each other: the pool, the hello, and the limits of outsiders.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use taut_mesh::dialler::{Dialler, Ready};
use taut_mesh::hello::{Hello, SessionId, Target};
use taut_mesh::key::Keys;
use taut_relay::access::Sources;
use taut_relay::config::{Config, Forward, MeshConfig};
use taut_relay::net::addr::Destination;
use taut_relay::node::Node;
use taut_relay::outcome::refusal::ClientRefusal;
use taut_relay::outcome::session_end::End;
use taut_relay::session_log::Target as LogTarget;

use crate::rig::*;
use crate::session_log::records;

const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const OTHER: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";

/// Key files, a near relay, a far one, and a server behind it.
struct Mesh {
    dir: tempfile::TempDir,
    near: Node,
    far: Node,
    server: TcpListener,
}

fn keys(text: &str) -> Keys {
    Keys::parse(text).unwrap()
}

fn destination(addr: SocketAddr) -> Destination {
    addr.to_string().parse().unwrap()
}

fn key_file(dir: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    let mut file = std::fs::File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
    path
}

/// A node that takes sessions from the mesh at `listen` and allows loopback as their destination.
fn far(key_file: PathBuf, listen: &str, adjust: impl FnOnce(&mut Config)) -> Node {
    Node::start(&far_config(key_file, listen, adjust)).unwrap()
}

fn far_config(key_file: PathBuf, listen: &str, adjust: impl FnOnce(&mut Config)) -> Config {
    let mut mesh = MeshConfig::new(key_file);
    mesh.listen = vec![listen.parse().unwrap()];
    mesh.allow = vec!["127.0.0.1/32:*".parse().unwrap()];
    let mut config = Config::new(Vec::new());
    config.workers = Some(2);
    config.max_sessions = Some(64);
    config.mesh = Some(mesh);
    adjust(&mut config);
    config
}

/// A node that forwards to `to` through these relays.
fn near(
    key_file: PathBuf,
    via: &[SocketAddr],
    to: Destination,
    adjust: impl FnOnce(&mut Config),
) -> Node {
    Node::start(&near_config(key_file, via, to, adjust)).unwrap()
}

fn near_config(
    key_file: PathBuf,
    via: &[SocketAddr],
    to: Destination,
    adjust: impl FnOnce(&mut Config),
) -> Config {
    let mut forward = Forward::new(vec!["127.0.0.1:0".parse().unwrap()], to);
    forward.via = via.iter().copied().map(destination).collect();
    let mut config = Config::new(vec![forward]);
    config.workers = Some(1);
    config.max_sessions = Some(64);
    let mut mesh = MeshConfig::new(key_file);
    mesh.pool.min = 2;
    mesh.pool.max = 4;
    config.mesh = Some(mesh);
    adjust(&mut config);
    config
}

impl Mesh {
    fn new() -> Self {
        Self::with(|_| {}, |_| {})
    }

    fn with(adjust_near: impl FnOnce(&mut Config), adjust_far: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = key_file(&dir, "key", KEY);
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = far(key.clone(), "127.0.0.1:0", adjust_far);
        let to = destination(server.local_addr().unwrap());
        let near = near(key, &[far.mesh_addrs()[0].0], to, adjust_near);
        Self {
            dir,
            near,
            far,
            server,
        }
    }

    fn wait_for_pool(&self) {
        wait_until("the pool", || self.near.metrics().pool_ready() >= 2);
    }

    fn connect(&self) -> TcpStream {
        let client = TcpStream::connect(self.near.listen_addrs()[0].0).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }

    fn pair(&self) -> (TcpStream, TcpStream) {
        let client = self.connect();
        let (server, _) = self.server.accept().unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        (client, server)
    }

    /// Asserts that no connection has reached the server.
    fn nothing_dialled(&self) {
        self.server.set_nonblocking(true).unwrap();
        let error = self.server.accept().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        self.server.set_nonblocking(false).unwrap();
    }

    fn mesh_port(&self) -> TcpStream {
        let stream = TcpStream::connect(self.far.mesh_addrs()[0].0).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// Sends both streams through a session at the same time and compares them.
fn exchange(client: &mut TcpStream, server: &mut TcpStream, len: usize) {
    let (up, down) = (stream(len, 1), stream(len, 2));
    let (mut client_out, mut server_out) =
        (client.try_clone().unwrap(), server.try_clone().unwrap());
    std::thread::scope(|s| {
        s.spawn(|| {
            client_out.write_all(&up).unwrap();
            client_out.shutdown(Shutdown::Write).unwrap();
        });
        s.spawn(|| {
            server_out.write_all(&down).unwrap();
            server_out.shutdown(Shutdown::Write).unwrap();
        });
        let at_server = s.spawn(|| read_to_fin(server));
        assert_same(&read_to_fin(client), &down);
        assert_same(&at_server.join().unwrap(), &up);
    });
}

/// A connection to the mesh port that has proven a key and could send a hello.
fn proven(stream: &mut TcpStream, keys: &Keys) -> Ready {
    let (mut dialler, opening) = Dialler::new([7; 32], Instant::now(), PATIENCE, keys);
    stream.write_all(&opening).unwrap();
    loop {
        let n = stream.read(dialler.space()).unwrap();
        assert_ne!(n, 0, "the mesh port has closed");
        if let Some(proof) = dialler.advance(n, Instant::now()).unwrap() {
            stream.write_all(&proof).unwrap();
            return dialler.ready().unwrap();
        }
    }
}

fn hello(to: SocketAddr) -> Hello {
    Hello {
        source: "192.0.2.1:1234".parse().unwrap(),
        destination: Target::Addr(to),
        route: Vec::new(),
        hops_left: 8,
        session: SessionId([0; 16]),
    }
}

/// Reads until the connection is gone, by FIN or RST; returns the bytes.
fn read_to_the_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(e) => assert_ne!(e.kind(), ErrorKind::WouldBlock, "it stays open"),
    }
    bytes
}

#[test]
fn a_session_takes_a_connection_that_was_ready_and_both_streams_arrive_whole() {
    let mesh = Mesh::new();
    mesh.wait_for_pool();
    let (mut client, mut server) = mesh.pair();
    exchange(&mut client, &mut server, 3 << 20);
    wait_until("the end of both", || {
        [&mesh.near, &mesh.far]
            .iter()
            .all(|n| n.metrics().ended(End::Complete) == 1)
    });
    assert_eq!(mesh.near.metrics().pool_hits_and_misses(), (1, 0));
    assert_eq!(mesh.far.metrics().mesh_hellos(), 1);
    mesh.wait_for_pool();
}

#[test]
fn without_a_pool_each_session_gets_a_fresh_connection() {
    let mesh = Mesh::with(
        |near| {
            let pool = &mut near.mesh.as_mut().unwrap().pool;
            (pool.min, pool.max) = (0, 0);
        },
        |_| {},
    );
    for _ in 0..3 {
        let (mut client, mut server) = mesh.pair();
        exchange(&mut client, &mut server, 10_000);
    }
    assert_eq!(mesh.near.metrics().pool_hits_and_misses(), (0, 3));
    assert_eq!(mesh.near.metrics().pool_ready(), 0);
}

#[test]
fn more_sessions_at_once_than_are_ready_all_get_through() {
    let mesh = Mesh::new();
    mesh.wait_for_pool();
    let pairs: Vec<_> = (0..20).map(|_| mesh.connect()).collect();
    let servers: Vec<_> = (0..20).map(|_| mesh.server.accept().unwrap().0).collect();
    drop((pairs, servers));
    wait_until("the end of all", || mesh.near.metrics().sessions() == 0);
    assert_eq!(mesh.far.metrics().mesh_hellos(), 20);
}

#[test]
fn a_relay_with_another_key_gets_no_session() {
    let dir = tempfile::tempdir().unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = far(key_file(&dir, "a", KEY), "127.0.0.1:0", |_| {});
    let to = destination(server.local_addr().unwrap());
    let near = near(
        key_file(&dir, "b", OTHER),
        &[far.mesh_addrs()[0].0],
        to,
        |_| {},
    );
    let mut client = TcpStream::connect(near.listen_addrs()[0].0).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(read_to_rst(&mut client), b"");
    wait_until("the count", || far.metrics().mesh_rejected() > 0);
    server.set_nonblocking(true).unwrap();
    assert_eq!(server.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_session_to_a_destination_that_is_not_allowed_is_reset() {
    let mesh = Mesh::with(
        |_| {},
        |far| far.mesh.as_mut().unwrap().allow = vec!["127.0.0.1/32:9".parse().unwrap()],
    );
    mesh.wait_for_pool();
    assert_eq!(read_to_rst(&mut mesh.connect()), b"");
    mesh.nothing_dialled();
    assert_eq!(mesh.far.metrics().sessions(), 0);
}

#[test]
fn a_name_is_looked_up_by_the_last_relay_and_its_addresses_are_checked() {
    for (allow, works) in [("127.0.0.1/32:*", true), ("localhost:*", false)] {
        let dir = tempfile::tempdir().unwrap();
        let key = key_file(&dir, "key", KEY);
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = far(key.clone(), "127.0.0.1:0", |config| {
            config.mesh.as_mut().unwrap().allow = vec![allow.parse().unwrap()];
        });
        let port = server.local_addr().unwrap().port();
        let to = format!("localhost:{port}").parse().unwrap();
        let near = near(key, &[far.mesh_addrs()[0].0], to, |_| {});
        let mut client = TcpStream::connect(near.listen_addrs()[0].0).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        if works {
            let (mut server, _) = server.accept().unwrap();
            exchange(&mut client, &mut server, 1000);
        } else {
            assert_eq!(read_to_rst(&mut client), b"");
            assert_eq!(far.metrics().ended(End::NotAllowed), 1);
        }
    }
}

#[test]
fn a_route_leads_through_relays_that_know_each_other_and_ends_at_the_hop_limit() {
    for (hop_limit, works) in [(2, true), (1, false)] {
        let dir = tempfile::tempdir().unwrap();
        let key = key_file(&dir, "key", KEY);
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = destination(server.local_addr().unwrap());
        let last = far(key.clone(), "127.0.0.1:0", |_| {});
        let last_addr = last.mesh_addrs()[0].0;
        let middle = far(key.clone(), "127.0.0.1:0", |config| {
            config.mesh.as_mut().unwrap().peers = vec![destination(last_addr)];
        });
        let route = [middle.mesh_addrs()[0].0, last_addr];
        let near = near(key, &route, to, |config| {
            config.mesh.as_mut().unwrap().hop_limit = hop_limit;
        });
        let mut client = TcpStream::connect(near.listen_addrs()[0].0).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        if works {
            let (mut server, _) = server.accept().unwrap();
            exchange(&mut client, &mut server, 100_000);
        } else {
            assert_eq!(read_to_rst(&mut client), b"");
        }
    }
}

#[test]
fn an_unnamed_relay_is_not_a_next_hop() {
    let dir = tempfile::tempdir().unwrap();
    let key = key_file(&dir, "key", KEY);
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let last = far(key.clone(), "127.0.0.1:0", |_| {});
    let middle = far(key.clone(), "127.0.0.1:0", |_| {});
    let route = [middle.mesh_addrs()[0].0, last.mesh_addrs()[0].0];
    let to = destination(server.local_addr().unwrap());
    let near = near(key, &route, to, |_| {});
    let mut client = TcpStream::connect(near.listen_addrs()[0].0).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(read_to_rst(&mut client), b"");
    assert_eq!(last.metrics().mesh_hellos(), 0);
}

#[test]
fn connections_that_die_while_idle_are_replaced_and_sessions_go_on() {
    let mut mesh = Mesh::new();
    mesh.wait_for_pool();
    let addr = mesh.far.mesh_addrs()[0].0;
    let key = key_file(&mesh.dir, "key", KEY);
    // The old one is gone before the new one binds its port.
    mesh.far = far(key.clone(), "127.0.0.1:0", |_| {});
    mesh.far = far(key, &addr.to_string(), |_| {});
    let (mut client, mut server) = mesh.pair();
    exchange(&mut client, &mut server, 1 << 20);
}

#[test]
fn keys_are_replaced_one_after_the_other_without_a_session_lost() {
    let mesh = Mesh::new();
    mesh.wait_for_pool();
    let (mut client, mut server) = mesh.pair();
    let both = format!("{KEY}\n{OTHER}\n");
    let other_first = format!("{OTHER}\n{KEY}\n");
    for (step, text) in [both.as_str(), &other_first, OTHER].into_iter().enumerate() {
        for node in [&mesh.far, &mesh.near] {
            node.replace_keys(keys(text));
            let (mut client, mut server) = mesh.pair();
            exchange(&mut client, &mut server, 10_000);
        }
        assert_eq!(mesh.far.metrics().mesh_rejected(), 0, "step {step}");
    }
    // The session from before continues.
    exchange(&mut client, &mut server, 1 << 20);
    // The old key is worthless now.
    let mut old = mesh.mesh_port();
    let (_, opening) = Dialler::new([7; 32], Instant::now(), PATIENCE, &keys(KEY));
    old.write_all(&opening).unwrap();
    assert_eq!(read_to_the_end(&mut old), b"");
}

#[test]
fn sessions_from_the_mesh_are_counted_under_the_client_that_the_hello_names() {
    let mesh = Mesh::with(|_| {}, |far| far.max_sessions_per_source = Some(1));
    let to = mesh.server.local_addr().unwrap();
    let ask = |source: &str| {
        let mut peer = mesh.mesh_port();
        let ready = proven(&mut peer, &keys(KEY));
        let source = source.parse().unwrap();
        let hello = Hello {
            source,
            ..hello(to)
        };
        peer.write_all(&ready.hello(&hello)).unwrap();
        peer
    };
    let mut first = ask("192.0.2.1:1000");
    let (mut server, _) = mesh.server.accept().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(read_to_the_end(&mut ask("192.0.2.1:1001")), b"");
    assert_eq!(mesh.far.metrics().refused(ClientRefusal::SourceLimit), 1);
    // Another client of the same relay is another source.
    let mut second = ask("192.0.2.2:1000");
    let (mut other, _) = mesh.server.accept().unwrap();
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    exchange(&mut second, &mut other, 1000);
    exchange(&mut first, &mut server, 1000);
}

#[test]
fn a_relay_from_a_forbidden_source_is_reset() {
    let mesh = Mesh::with(
        |near| near.mesh.as_mut().unwrap().pool.max = 0,
        |far| {
            let from = vec!["10.0.0.0/8".parse().unwrap()];
            far.mesh.as_mut().unwrap().sources = Sources::new(Some(from), Vec::new()).unwrap();
        },
    );
    let mut peer = mesh.mesh_port();
    assert_eq!(read_to_the_end(&mut peer), b"");
    let metrics = mesh.far.metrics();
    wait_until("the count", || {
        metrics.refused(ClientRefusal::SourceNotListed) > 0
    });
    assert_eq!(metrics.mesh_rejected(), 0);
}

#[test]
fn both_relays_log_a_session_under_one_number() {
    let dir = tempfile::tempdir().unwrap();
    let [near, far] = ["near", "far"].map(|name| dir.path().join(name));
    let log = |path: &std::path::Path| Some(LogTarget::File(path.to_owned()));
    let mesh = Mesh::with(
        |config| config.session_log = log(&near),
        |config| config.session_log = log(&far),
    );
    mesh.wait_for_pool();
    let (mut client, mut server) = mesh.pair();
    exchange(&mut client, &mut server, 1000);
    let [near, far] = [near, far].map(|path| records(&path, 1).remove(0));
    assert_eq!(near["session"], far["session"]);
    assert_eq!(near["client"], far["client"]);
    assert_eq!(near["destination"], far["destination"]);
    let relay = mesh.far.mesh_addrs()[0].0.to_string();
    assert_eq!(
        (&near["relay"], &near["address"]),
        (&relay.as_str().into(), &relay.as_str().into())
    );
    assert_eq!(far["forward"], "mesh");
    assert!(near["setup_us"].is_u64() && far["setup_us"].is_u64());
}

#[test]
fn keys_rotate_through_their_file_at_a_reload() {
    let mesh = Mesh::new();
    mesh.wait_for_pool();
    let (mut client, mut server) = mesh.pair();
    let to = destination(mesh.server.local_addr().unwrap());
    let far_addr = mesh.far.mesh_addrs()[0].0;
    let key = mesh.dir.path().join("key");
    // The configuration as at the start: the port that the kernel chose then stays.
    let at_far = far_config(key.clone(), "127.0.0.1:0", |_| {});
    let at_near = near_config(key, &[far_addr], to, |_| {});
    for text in [
        format!("{KEY}\n{OTHER}\n"),
        format!("{OTHER}\n{KEY}\n"),
        OTHER.into(),
    ] {
        key_file(&mesh.dir, "key", &text);
        mesh.far.reload(&at_far).unwrap();
        mesh.near.reload(&at_near).unwrap();
        assert_eq!(mesh.far.mesh_addrs()[0].0, far_addr);
        let (mut client, mut server) = mesh.pair();
        exchange(&mut client, &mut server, 10_000);
    }
    exchange(&mut client, &mut server, 1 << 20);
    wait_until("the old key's end", || {
        let mut old = mesh.mesh_port();
        let (_, opening) = Dialler::new([7; 32], Instant::now(), PATIENCE, &keys(KEY));
        old.write_all(&opening).unwrap();
        read_to_the_end(&mut old).is_empty()
    });
    // A file that is not a key changes nothing.
    key_file(&mesh.dir, "key", "what?");
    assert!(mesh.far.reload(&at_far).is_err());
    let (mut client, mut server) = mesh.pair();
    exchange(&mut client, &mut server, 1000);
}

#[test]
fn a_pool_outlives_a_reload_and_goes_with_its_relay() {
    let mesh = Mesh::new();
    mesh.wait_for_pool();
    let to = destination(mesh.server.local_addr().unwrap());
    let far_addr = mesh.far.mesh_addrs()[0].0;
    let key = mesh.dir.path().join("key");
    let through = |relay| near_config(key.clone(), &[relay], to.clone(), |_| {});
    mesh.near.reload(&through(far_addr)).unwrap();
    let (mut client, mut server) = mesh.pair();
    exchange(&mut client, &mut server, 1000);
    assert_eq!(mesh.near.metrics().pool_hits_and_misses(), (1, 0));

    let other = far(key.clone(), "127.0.0.1:0", |_| {});
    let (mut client, mut server) = mesh.pair();
    mesh.near.reload(&through(other.mesh_addrs()[0].0)).unwrap();
    wait_until("a session at the other relay", || {
        let (mut client, mut server) = mesh.pair();
        exchange(&mut client, &mut server, 1000);
        other.metrics().mesh_hellos() > 0
    });
    // A session through the first relay continues.
    exchange(&mut client, &mut server, 1 << 20);
    let before = mesh.far.metrics().mesh_hellos();
    // And back: the relay has its former number.
    mesh.near.reload(&through(far_addr)).unwrap();
    wait_until("a session at the first relay", || {
        let (mut client, mut server) = mesh.pair();
        exchange(&mut client, &mut server, 1000);
        mesh.far.metrics().mesh_hellos() > before
    });
}

#[test]
fn a_draining_relay_takes_its_connections_out_of_the_pools_of_others() {
    let mut mesh = Mesh::new();
    mesh.wait_for_pool();
    let (mut client, mut server) = mesh.pair();
    mesh.far.drain();
    wait_until("an empty pool", || mesh.near.metrics().pool_ready() == 0);
    exchange(&mut client, &mut server, 1 << 20);
    assert_eq!(read_to_rst(&mut mesh.connect()), b"");
}

#[test]
fn an_outsider_causes_no_dial_and_harms_no_session() {
    let mesh = Mesh::with(|_| {}, |far| far.max_sessions = Some(64));
    mesh.wait_for_pool();
    let (mut client, mut server) = mesh.pair();
    let to = mesh.server.local_addr().unwrap();

    // A megabyte of noise.
    let mut noisy = mesh.mesh_port();
    let _ = noisy.write_all(&stream(1 << 20, 9));
    assert_eq!(read_to_the_end(&mut noisy), b"");

    // A recorded session, replayed.
    let mut honest = mesh.mesh_port();
    let (mut dialler, opening) = Dialler::new([3; 32], Instant::now(), PATIENCE, &keys(KEY));
    let mut recorded = opening.clone();
    honest.write_all(&opening).unwrap();
    let proof = loop {
        let n = honest.read(dialler.space()).unwrap();
        if let Some(proof) = dialler.advance(n, Instant::now()).unwrap() {
            break proof;
        }
    };
    recorded.extend_from_slice(&proof);
    recorded.extend_from_slice(&dialler.ready().unwrap().hello(&hello(to)));
    let mut replayed = mesh.mesh_port();
    replayed.write_all(&recorded).unwrap();
    read_to_the_end(&mut replayed);
    mesh.nothing_dialled();

    // Another protocol, byte by byte.
    let mut dripping = mesh.mesh_port();
    for byte in b"GET / HTTP/1.1\r\n" {
        if dripping.write_all(&[*byte]).is_err() {
            break;
        }
    }
    assert_eq!(read_to_the_end(&mut dripping), b"");

    // Five thousand silent connections. Most are reset, some before connect() returns.
    let port = mesh.far.mesh_addrs()[0].0;
    let crowd: Vec<_> = (0..5000)
        .filter_map(|_| TcpStream::connect(port).ok())
        .collect();
    wait_until("all but those that are kept to be closed", || {
        crowd.iter().filter(|s| !s.peek_closed()).count() <= 512
    });
    mesh.nothing_dialled();

    // Meanwhile existing sessions continue, and new ones start.
    exchange(&mut client, &mut server, 1 << 20);
    let (mut client, mut server) = mesh.pair();
    exchange(&mut client, &mut server, 1 << 20);
    drop(crowd);
}

#[test]
fn a_peer_with_a_key_gets_its_hello_served_and_a_dead_one_closed() {
    let mesh = Mesh::new();
    let mut peer = mesh.mesh_port();
    let ready = proven(&mut peer, &keys(KEY));
    let to = mesh.server.local_addr().unwrap();
    peer.write_all(&ready.hello(&hello(to))).unwrap();
    let (mut server, _) = mesh.server.accept().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    exchange(&mut peer, &mut server, 100_000);

    // The same hello on another connection of the same peer is useless.
    let mut other = mesh.mesh_port();
    let _ = proven(&mut other, &keys(KEY));
    other.write_all(&ready.hello(&hello(to))).unwrap();
    assert_eq!(read_to_the_end(&mut other), b"");
    mesh.nothing_dialled();
}

#[test]
fn a_silent_connection_at_the_mesh_port_times_out() {
    let mesh = Mesh::with(
        |_| {},
        |far| {
            let times = &mut far.mesh.as_mut().unwrap().inbound.times;
            times.handshake = Duration::from_millis(100);
            times.hello = Duration::from_millis(100);
        },
    );
    let mut silent = mesh.mesh_port();
    assert_eq!(read_to_the_end(&mut silent), b"");
    let mut half = mesh.mesh_port();
    let ready = proven(&mut half, &keys(KEY));
    let to = mesh.server.local_addr().unwrap();
    half.write_all(&ready.hello(&hello(to))[..20]).unwrap();
    assert_eq!(read_to_the_end(&mut half), b"");
    mesh.nothing_dialled();
}

trait PeekClosed {
    fn peek_closed(&self) -> bool;
}

impl PeekClosed for TcpStream {
    /// Returns whether the other end has closed or reset it.
    fn peek_closed(&self) -> bool {
        self.set_nonblocking(true).unwrap();
        match self.peek(&mut [0]) {
            Ok(0) => true,
            Ok(_) => panic!("the mesh port has answered a connection without a key"),
            Err(e) => e.kind() != ErrorKind::WouldBlock,
        }
    }
}

fn count(node: &Node, name: &str) -> u64 {
    let text = node.metrics().encode().unwrap();
    let of = |l: &str| l.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64;
    text.lines()
        .filter(|l| !l.starts_with('#'))
        .filter(|l| l.split(['{', ' ']).next() == Some(name))
        .map(of)
        .sum()
}

#[test]
fn a_hello_in_flight_at_the_drain_is_served_or_reset_but_never_ends_with_fin() {
    let mut mesh = Mesh::new();
    let mut peer = mesh.mesh_port();
    let ready = proven(&mut peer, &keys(KEY));
    wait_until("readiness", || {
        count(&mesh.far, "taut_relay_mesh_ready") >= 3
    });
    let to = mesh.server.local_addr().unwrap();
    mesh.far.drain();
    // When the hello crosses a FIN of the relay, the sender cannot tell it from the end of an empty
    // reply.
    match peer.peek(&mut [0]) {
        Err(_) => return,
        Ok(n) => assert_eq!(n, 0),
    }
    peer.write_all(&ready.hello(&hello(to))).unwrap();
    peer.write_all(b"ping").unwrap();
    let (mut server, _) = mesh.server.accept().unwrap();
    let mut ping = [0; 4];
    server.read_exact(&mut ping).unwrap();
    server.write_all(b"pong").unwrap();
    drop(server);
    let mut got = Vec::new();
    let end = peer.read_to_end(&mut got);
    assert!(
        got == b"pong" || end.is_err(),
        "an orderly end without the reply"
    );
}

/// The same with two relays, and the drain at another moment each time: the pauses make the moments
/// differ; nothing waits for them.
#[test]
fn no_client_sees_an_orderly_end_of_nothing_when_a_relay_drains() {
    let mut ends = std::collections::BTreeMap::<String, u32>::new();
    for round in 0..15u64 {
        let mut mesh = Mesh::new();
        mesh.wait_for_pool();
        let server = mesh.server.try_clone().unwrap();
        let addr = mesh.near.listen_addrs()[0].0;
        let serve = std::thread::spawn(move || {
            server.set_nonblocking(true).unwrap();
            let until = Instant::now() + Duration::from_millis(300);
            while Instant::now() < until {
                if let Ok((mut s, _)) = server.accept() {
                    s.set_nonblocking(false).unwrap();
                    std::thread::spawn(move || {
                        let _ = s.read_exact(&mut [0; 4]);
                        let _ = s.write_all(b"whole");
                    });
                } else {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        });
        let go = std::thread::spawn(move || {
            let mut ends = Vec::new();
            for _ in 0..6 {
                std::thread::sleep(Duration::from_micros(round * 12));
                let Ok(mut client) = TcpStream::connect(addr) else {
                    continue;
                };
                client.set_read_timeout(Some(PATIENCE)).unwrap();
                // A reset client reads an end of stream after the reset.
                if let Err(e) = client.write_all(b"ping") {
                    ends.push(format!("\"\" Err({:?})", e.kind()));
                    continue;
                }
                let mut got = Vec::new();
                let end = client.read_to_end(&mut got).map_err(|e| e.kind());
                ends.push(format!("{:?} {end:?}", String::from_utf8_lossy(&got)));
            }
            ends
        });
        std::thread::sleep(Duration::from_micros(300 + round * 40));
        mesh.far.drain();
        for end in go.join().unwrap() {
            *ends.entry(end).or_default() += 1;
        }
        serve.join().unwrap();
    }
    assert!(!ends.contains_key("\"\" Ok(0)"), "{ends:?}");
}

/// A relay whose mesh port is full is dialled with pauses.
#[test]
fn a_full_mesh_port_is_dialled_with_pauses() {
    let mesh = Mesh::with(
        |near| {
            let pool = &mut near.mesh.as_mut().unwrap().pool;
            (pool.min, pool.max) = (4, 4);
        },
        |far| {
            far.workers = Some(1);
            far.mesh.as_mut().unwrap().inbound.max_ready = 2;
        },
    );
    mesh.wait_for_pool();
    let before = count(&mesh.far, "taut_relay_mesh_accepted_total");
    // The test checks the pauses between dials; without any there are thousands in this time.
    std::thread::sleep(Duration::from_secs(2));
    let dials = count(&mesh.far, "taut_relay_mesh_accepted_total") - before;
    assert!(dials < 100, "{dials} dials in 2 s");
}

/// A session tries each address of its peer; here the first one (::1) refuses.
#[test]
fn sessions_at_the_same_time_each_try_every_address_of_a_peer() {
    let mut lost = 0;
    for _ in 0..30 {
        let dir = tempfile::tempdir().unwrap();
        let key = key_file(&dir, "key", KEY);
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = far(key.clone(), "127.0.0.1:0", |_| {});
        let to = destination(server.local_addr().unwrap());
        let via: Destination = format!("localhost:{}", far.mesh_addrs()[0].0.port())
            .parse()
            .unwrap();
        let mut forward = Forward::new(vec!["127.0.0.1:0".parse().unwrap()], to);
        forward.via = vec![via];
        let mut config = Config::new(vec![forward]);
        config.workers = Some(1);
        config.max_sessions = Some(64);
        let mut m = MeshConfig::new(key);
        (m.pool.min, m.pool.max) = (0, 0);
        config.mesh = Some(m);
        let near = Node::start(&config).unwrap();
        let addr = near.listen_addrs()[0].0;
        let mut clients: Vec<_> = (0..8).map(|_| TcpStream::connect(addr).unwrap()).collect();
        wait_until("all to be decided", || {
            near.metrics().ended(End::ConnectRefused) + far.metrics().mesh_hellos() >= 8
        });
        lost += near.metrics().ended(End::ConnectRefused);
        clients.clear();
    }
    assert_eq!(lost, 0, "of 240 sessions, though the second address is up");
}

#[test]
fn a_burst_of_sessions_does_not_undo_its_own_connections() {
    const SESSIONS: usize = 500;
    // The near relay's one worker dials 64 at a time, and none is ready. The far one has not read
    // every proof that was sent when the next connection comes.
    let mesh = Mesh::with(
        |near| {
            near.workers = Some(1);
            near.max_sessions = Some(SESSIONS as u32);
            let mesh = near.mesh.as_mut().unwrap();
            (mesh.pool.min, mesh.pool.max) = (0, 0);
        },
        |far| {
            far.workers = Some(1);
            far.max_sessions = Some(SESSIONS as u32);
            far.mesh.as_mut().unwrap().inbound.max_unproven = 256;
        },
    );
    let patience = rustix::net::sockopt::Timeout::Recv;
    rustix::net::sockopt::set_socket_timeout(&mesh.server, patience, Some(PATIENCE)).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..SESSIONS {
                let (mut stream, _) = mesh.server.accept().unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                stream.write_all(&byte).unwrap();
            }
        });
        let mut clients: Vec<_> = (0..SESSIONS).map(|_| mesh.connect()).collect();
        for client in &mut clients {
            client.write_all(b"x").unwrap();
        }
        for client in &mut clients {
            client.read_exact(&mut [0]).unwrap();
        }
    });
    for what in [
        "taut_relay_mesh_evicted_total",
        "taut_relay_mesh_refused_full_total",
    ] {
        assert_eq!(count(&mesh.far, what), 0, "{what}");
    }
    assert!(
        count(&mesh.near, "taut_relay_pool_dials_postponed_total") > 0,
        "there was no burst"
    );
}

#[test]
fn an_outsider_displaces_its_own_connections_and_no_others() {
    const KEPT: usize = 8;
    let mesh = Mesh::with(
        // No connection comes from there.
        |near| {
            let mesh = near.mesh.as_mut().unwrap();
            (mesh.pool.min, mesh.pool.max) = (0, 0);
        },
        |far| {
            far.workers = Some(1);
            far.mesh.as_mut().unwrap().inbound.max_unproven = KEPT as u32;
        },
    );
    let port = mesh.far.mesh_addrs()[0].0;
    let from = |address: [u8; 4]| {
        use rustix::net::{AddressFamily, SocketType};
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from((address, 0))).unwrap();
        rustix::net::connect(&socket, &port).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    // They send nothing.
    let mut outsiders: Vec<_> = (0..KEPT).map(|_| from([127, 0, 0, 66])).collect();
    wait_until("them", || {
        count(&mesh.far, "taut_relay_mesh_unproven") == KEPT as u64
    });
    // Another one from the same source, while they are young.
    assert_eq!(read_to_the_end(&mut from([127, 0, 0, 66])), b"");
    assert_eq!(count(&mesh.far, "taut_relay_mesh_refused_full_total"), 1);
    // A relay that is slow to prove its key makes room.
    let mut relay = from([127, 0, 0, 77]);
    assert_eq!(read_to_the_end(&mut outsiders[0]), b"");
    assert_eq!(count(&mesh.far, "taut_relay_mesh_evicted_total"), 1);
    proven(&mut relay, &keys(KEY));
    wait_until("its proof", || {
        count(&mesh.far, "taut_relay_mesh_unproven") == KEPT as u64 - 1
    });
}
