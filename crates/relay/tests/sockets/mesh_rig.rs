//! A near and a far relay, which know each other by their keys, and relays that the test plays.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use taut_mesh::hello::{Hello, SessionId, Target};
use taut_relay::config::{Config, Forward, MeshConfig};
use taut_relay::net::addr::Destination;
use taut_relay::node::Node;

use crate::rig::*;

pub(crate) use crate::member_list::{Entry, Identities, member, private_key};
pub(crate) use crate::peer::{Peer, accept, dial};

/// The keys of the near relay, the far one, and the one that the test plays; and a spare one of each.
pub(crate) const NEAR: u8 = 1;
pub(crate) const FAR: u8 = 2;
pub(crate) const PLAYED: u8 = 3;
pub(crate) const NEW_NEAR: u8 = 11;
pub(crate) const NEW_FAR: u8 = 12;

/// A near relay, a far one, and a server behind it.
pub(crate) struct Mesh {
    pub(crate) ids: Identities,
    pub(crate) near: Node,
    pub(crate) far: Node,
    /// Their configurations.
    pub(crate) at_near: Config,
    pub(crate) at_far: Config,
    pub(crate) server: TcpListener,
}

pub(crate) fn destination(addr: SocketAddr) -> Destination {
    addr.to_string().parse().unwrap()
}

/// Returns the configuration of a node that takes sessions from the mesh at a port that the kernel
/// chooses, and allows loopback as their destination.
pub(crate) fn far_config(mesh: MeshConfig, adjust: impl FnOnce(&mut Config)) -> Config {
    enter_network();
    let mut mesh = mesh;
    mesh.turbo = None;
    mesh.listen = vec!["127.0.0.1:0".parse().unwrap()];
    mesh.allow = vec!["127.0.0.1/32:*".parse().unwrap()];
    let mut config = Config::new(Vec::new());
    config.workers = Some(2);
    config.max_sessions = Some(64);
    config.mesh = Some(mesh);
    adjust(&mut config);
    config
}

/// Returns the configuration of a node that forwards to `to` through the relays of the first of
/// `routes` that works.
pub(crate) fn near_config(
    mesh: MeshConfig,
    routes: &[&[&str]],
    to: Destination,
    adjust: impl FnOnce(&mut Config),
) -> Config {
    enter_network();
    let mut forward = Forward::new(vec!["127.0.0.1:0".parse().unwrap()], to);
    let route = |route: &&[&str]| route.iter().map(|name| name.parse().unwrap()).collect();
    forward.via = routes.iter().map(route).collect();
    let mut config = Config::new(vec![forward]);
    config.workers = Some(1);
    config.max_sessions = Some(64);
    let mut mesh = mesh;
    mesh.turbo = None;
    mesh.pool.min = 2;
    mesh.pool.max = 4;
    config.mesh = Some(mesh);
    adjust(&mut config);
    config
}

/// Returns the address of a node's mesh port.
pub(crate) fn mesh_addr(node: &Node) -> SocketAddr {
    node.mesh_addrs()[0].0
}

/// Connects to a node as a client.
pub(crate) fn connect(node: &Node) -> TcpStream {
    let client = TcpStream::connect(node.listen_addrs()[0].0).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// Connects to `addr` from an address of this machine; `None` if it is reset at once.
pub(crate) fn connect_from(from: impl Into<IpAddr>, addr: SocketAddr) -> Option<TcpStream> {
    use rustix::net::{AddressFamily, SocketType};
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((from.into(), 0))).unwrap();
    match rustix::net::connect(&socket, &addr) {
        // The reset may come before connect(2) returns.
        Err(rustix::io::Errno::CONNRESET) => return None,
        connected => connected.unwrap(),
    }
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Some(stream)
}

/// Accepts a connection, for as long as a test waits.
pub(crate) fn accept_at(server: &TcpListener) -> TcpStream {
    let patience = rustix::net::sockopt::Timeout::Recv;
    rustix::net::sockopt::set_socket_timeout(server, patience, Some(PATIENCE)).unwrap();
    let (stream, _) = server.accept().expect("no connection has come");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

impl Mesh {
    pub(crate) fn new() -> Self {
        Self::with(|_| {}, |_| {})
    }

    pub(crate) fn with(
        adjust_near: impl FnOnce(&mut Config),
        adjust_far: impl FnOnce(&mut Config),
    ) -> Self {
        let ids = Identities::new();
        let server = listen();
        let at_far = far_config(ids.mesh("far", FAR, &known_to_far()), adjust_far);
        let far = Node::start(&at_far).unwrap();
        let known = [
            member("near", &[NEAR]),
            member("far", &[FAR]).at(mesh_addr(&far)),
        ];
        let to = destination(server.local_addr().unwrap());
        let mesh = ids.mesh("near", NEAR, &known);
        let at_near = near_config(mesh, &[&["far"]], to, adjust_near);
        Self {
            near: Node::start(&at_near).unwrap(),
            ids,
            far,
            at_near,
            at_far,
            server,
        }
    }

    /// Without connections of the near relay but those of its sessions.
    pub(crate) fn without_pool() -> Self {
        Self::with(no_pool, |_| {})
    }

    pub(crate) fn wait_for_pool(&self) {
        wait_until("the pool", || self.near.metrics().pool_ready() >= 2);
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(&self.near)
    }

    pub(crate) fn pair(&self) -> (TcpStream, TcpStream) {
        let client = self.connect();
        (client, accept_at(&self.server))
    }

    /// Connects to the near relay, which resets the connection.
    pub(crate) fn expect_reset(&self) {
        expect_reset(self.near.listen_addrs()[0].0);
    }

    /// Asserts that no connection has reached the server.
    pub(crate) fn nothing_dialled(&self) {
        self.server.set_nonblocking(true).unwrap();
        let error = self.server.accept().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        self.server.set_nonblocking(false).unwrap();
    }

    pub(crate) fn mesh_port(&self) -> TcpStream {
        let stream = TcpStream::connect(mesh_addr(&self.far)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Returns a connection to the mesh port of the relay that the test plays, ready for a hello.
    pub(crate) fn played(&self) -> Peer {
        dial(self.mesh_port(), &private_key(PLAYED), &private_key(FAR)).unwrap()
    }

    /// Lets the far relay read this list of members.
    pub(crate) fn list_at_far(&self, members: &[Entry]) {
        self.ids.write_members("far.toml", members);
        self.far.reload(&self.at_far).unwrap();
    }

    /// Lets the near relay read this list of members.
    pub(crate) fn list_at_near(&self, members: &[Entry]) {
        self.ids.write_members("near.toml", members);
        self.near.reload(&self.at_near).unwrap();
    }
}

/// Returns the list of members that the far relay starts with. It dials none of them.
pub(crate) fn known_to_far() -> [Entry; 3] {
    [
        member("near", &[NEAR]),
        member("far", &[FAR]),
        member("played", &[PLAYED]),
    ]
}

pub(crate) fn no_pool(config: &mut Config) {
    let pool = &mut config.mesh.as_mut().unwrap().pool;
    (pool.min, pool.max) = (0, 0);
}

/// Sends both streams through a session at the same time and compares them.
pub(crate) fn exchange(client: &mut TcpStream, server: &mut TcpStream, len: usize) {
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

/// Does the same between a relay that the test plays and a server.
pub(crate) fn exchange_played(peer: &mut Peer, server: &mut TcpStream, len: usize) {
    let (up, down) = (stream(len, 1), stream(len, 2));
    std::thread::scope(|s| {
        let at_server = s.spawn(|| {
            let got = read_to_fin(server);
            server.write_all(&down).unwrap();
            server.shutdown(Shutdown::Write).unwrap();
            got
        });
        peer.send(&up);
        peer.end();
        assert_same(&peer.read_to_end().unwrap(), &down);
        assert_same(&at_server.join().unwrap(), &up);
    });
}

/// Sends a byte through a session and back.
pub(crate) fn ping(client: &mut TcpStream, server: &mut TcpStream) {
    client.write_all(b"!").unwrap();
    server.read_exact(&mut [0]).unwrap();
    server.write_all(b"?").unwrap();
    client.read_exact(&mut [0]).unwrap();
}

/// Returns a hello to the far relay.
pub(crate) fn hello(to: SocketAddr) -> Hello {
    Hello {
        source: "192.0.2.1:1234".parse().unwrap(),
        destination: Target::Addr(to),
        receiver: "far".parse().unwrap(),
        route: Vec::new(),
        hops_left: 8,
        session: SessionId([0; 16]),
        passed: Default::default(),
    }
}

/// Reads until the connection is gone, by FIN or RST; returns the bytes.
pub(crate) fn read_to_the_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(e) => assert_ne!(e.kind(), ErrorKind::WouldBlock, "it stays open"),
    }
    bytes
}

/// Returns a metric of a node, summed over its labels; with `{` in the name, one of them.
pub(crate) fn count(node: &Node, name: &str) -> u64 {
    let text = node.metrics().encode().unwrap();
    let of = |l: &str| l.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64;
    let is_it = |l: &str| match name.contains('{') {
        true => l.split(' ').next() == Some(name),
        false => l.split(['{', ' ']).next() == Some(name),
    };
    text.lines()
        .filter(|l| !l.starts_with('#'))
        .filter(|l| is_it(l))
        .map(of)
        .sum()
}

/// Returns how many connections a node has refused at its mesh port for this cause.
pub(crate) fn rejected(node: &Node, cause: &str) -> u64 {
    count(
        node,
        &format!("taut_relay_mesh_rejected_total{{cause=\"{cause}\"}}"),
    )
}

/// Lets a file be the session log of a node.
pub(crate) fn log_to(config: &mut Config, path: &Path) {
    config.session_log = Some(taut_relay::session_log::Target::File(path.to_owned()));
}
