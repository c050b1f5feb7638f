//! A relay node in this process between a real client and a real server socket.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt;
use taut_relay::config::{Config, Forward};
use taut_relay::metrics::Metrics;
use taut_relay::net::addr::Destination;
use taut_relay::node::Node;
use taut_relay::outcome::session_end::End;
use taut_sys_testing::network::enter_private_network;

use crate::mesh_rig::{FAR, Identities, NEAR, far_config, member, mesh_addr, near_config, ping};

pub(crate) use crate::PATIENCE;
use crate::poll::wait_for;
pub(crate) use crate::wait::wait_until;

/// Moves the test into a network of its own, unless it is in one: nobody else takes a port there, and nobody
/// answers at one that the test has closed. Every helper that begins with a socket or a configuration calls
/// this. Threads that the test starts afterwards are in it too.
pub(crate) fn enter_network() {
    thread_local!(static IS_IN: Cell<bool> = const { Cell::new(false) });
    if !IS_IN.replace(true) {
        enter_private_network();
    }
}

/// Returns a listener on loopback at a port that the kernel chooses.
pub(crate) fn listen() -> TcpListener {
    enter_network();
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// Returns an address that refuses connections. The kernel chooses no port like this one.
pub(crate) fn refusing() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}

/// How the node under test moves bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Path {
    Copy,
    Splice,
    /// The first 128 KiB are copied, the rest spliced.
    Both,
    /// Through another relay, over a leg with TLS in both processes.
    Protected,
    /// The same with TLS in the kernel, at both ends or one, from the first byte that is read.
    KernelTls(Ends),
    /// Through another relay in a trusted network, over a leg without TLS.
    Trusted,
}

/// More bytes than there is room for between the ends of [`Rig::tight_pair`].
pub(crate) const FLOOD: usize = 4 << 20;

/// The relays with TLS in the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ends {
    Both,
    Near,
    Far,
}

/// Returns the paths that this machine can have. Where TAUT_REQUIRE_KERNEL_TLS is set, those that need TLS
/// in the kernel, which it must have.
pub(crate) fn paths() -> Vec<Path> {
    let with = [Ends::Both, Ends::Near, Ends::Far].map(Path::KernelTls);
    let without = [
        Path::Copy,
        Path::Splice,
        Path::Both,
        Path::Protected,
        Path::Trusted,
    ];
    match has_kernel_tls() {
        true if is_kernel_tls_required() => with.to_vec(),
        true => [&without[..], &with].concat(),
        false => without.to_vec(),
    }
}

/// Returns whether this kernel has TLS.
pub(crate) fn has_kernel_tls() -> bool {
    let result = taut_sys::kernel_tls::probe();
    if let Err(error) = &result {
        assert!(!is_kernel_tls_required(), "no TLS in this kernel: {error}");
    }
    result.is_ok()
}

fn is_kernel_tls_required() -> bool {
    std::env::var_os("TAUT_REQUIRE_KERNEL_TLS").is_some()
}

pub(crate) struct Rig {
    path: Path,
    /// The node that clients connect to.
    pub(crate) node: Node,
    /// The relay behind it, on some paths.
    pub(crate) far: Option<Node>,
    pub(crate) server: TcpListener,
    metrics: Vec<Metrics>,
}

impl Rig {
    pub(crate) fn new(path: Path) -> Self {
        Self::with(path, |_| {})
    }

    pub(crate) fn with(path: Path, adjust: impl FnMut(&mut Config)) -> Self {
        Self::to(listen(), path, adjust)
    }

    /// `adjust` changes the configuration of every relay on the path.
    pub(crate) fn to(server: TcpListener, path: Path, adjust: impl FnMut(&mut Config)) -> Self {
        let to = server.local_addr().unwrap();
        let (node, far) = match path {
            Path::Copy | Path::Splice | Path::Both => (start(to, path, adjust), None),
            Path::Protected | Path::KernelTls(_) | Path::Trusted => {
                let (near, far) = start_mesh(to, path, adjust);
                (near, Some(far))
            }
        };
        let metrics = [Some(&node), far.as_ref()].into_iter().flatten();
        Self {
            path,
            metrics: metrics.map(Node::metrics).collect(),
            node,
            far,
            server,
        }
    }

    pub(crate) fn relay_addr(&self) -> SocketAddr {
        self.node.listen_addrs()[0].0
    }

    /// A client that is connected to a server through the node.
    pub(crate) fn pair(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.relay_addr()).unwrap();
        let (server, _) = self.server.accept().unwrap();
        for s in [&client, &server] {
            s.set_read_timeout(Some(PATIENCE)).unwrap();
            s.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        self.begin(client, server)
    }

    /// Lets a relay that gives keys to the kernel do so: one that dials the next needs a byte from it first.
    fn begin(&self, mut client: TcpStream, mut server: TcpStream) -> (TcpStream, TcpStream) {
        if matches!(self.path, Path::KernelTls(_)) {
            ping(&mut client, &mut server);
        }
        (client, server)
    }

    /// The same with small buffers at both ends and in between, which fill quickly: with less than [`FLOOD`].
    pub(crate) fn tight_pair(&self) -> (TcpStream, TcpStream) {
        for bounds in ["tcp_rmem", "tcp_wmem"] {
            let file = format!("/proc/sys/net/ipv4/{bounds}");
            std::fs::write(file, "4096 65536 262144").unwrap();
        }
        sockopt::set_socket_recv_buffer_size(&self.server, 16 << 10).unwrap();
        let family = rustix::net::AddressFamily::INET;
        let kind = rustix::net::SocketType::STREAM;
        let fd = rustix::net::socket(family, kind, None).unwrap();
        sockopt::set_socket_recv_buffer_size(&fd, 16 << 10).unwrap();
        rustix::net::connect(&fd, &self.relay_addr()).unwrap();
        let client = TcpStream::from(fd);
        let (server, _) = self.server.accept().unwrap();
        for s in [&client, &server] {
            s.set_read_timeout(Some(PATIENCE)).unwrap();
            s.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        self.begin(client, server)
    }

    /// Waits until the one session has ended with this cause, at every relay on its path, and nothing
    /// is left of it.
    pub(crate) fn expect_end(&self, end: End) {
        for (relay, metrics) in ["near", "far"].iter().zip(&self.metrics) {
            wait_until("the session's end", || {
                metrics.sessions() == 0 && all_ends(metrics) > 0
            });
            for &other in End::ALL {
                let expected = u64::from(other == end);
                assert_eq!(
                    metrics.ended(other),
                    expected,
                    "sessions ended as {} at the {relay} relay",
                    other.label()
                );
            }
            assert_eq!(metrics.pipes_in_use(), 0);
        }
    }
}

fn all_ends(metrics: &Metrics) -> u64 {
    End::ALL.iter().copied().map(|end| metrics.ended(end)).sum()
}

pub(crate) fn start(to: SocketAddr, path: Path, adjust: impl FnOnce(&mut Config)) -> Node {
    enter_network();
    let listen = "127.0.0.1:0".parse().unwrap();
    let to = Destination {
        host: to.ip().to_string(),
        port: to.port(),
    };
    let mut config = Config::new(vec![Forward::new(vec![listen], to)]);
    config.workers = Some(2);
    config.max_sessions = Some(64);
    config.data.splice_after = match path {
        Path::Copy => None,
        Path::Splice => Some(0),
        _ => Some(128 << 10),
    };
    adjust(&mut config);
    Node::start(&config).unwrap()
}

/// Starts a relay that forwards to `to` through another one, and that one.
fn start_mesh(to: SocketAddr, path: Path, mut adjust: impl FnMut(&mut Config)) -> (Node, Node) {
    let mut adjust = |config: &mut Config| {
        let in_kernel = match path {
            Path::KernelTls(Ends::Both) => true,
            // Only the near relay has forwards.
            Path::KernelTls(Ends::Near) => !config.forwards.is_empty(),
            Path::KernelTls(Ends::Far) => config.forwards.is_empty(),
            _ => false,
        };
        let mesh = config.mesh.as_mut().unwrap();
        mesh.turbo = None;
        mesh.kernel_tls = in_kernel;
        if matches!(path, Path::Trusted) {
            mesh.trusted_networks = vec!["127.0.0.0/8".parse().unwrap()];
        }
        if matches!(path, Path::KernelTls(_)) {
            config.data.splice_after = Some(0);
        }
        adjust(config);
    };
    let ids = Identities::new();
    // Its address is what a trusted network knows the near relay by.
    let near = member("near", &[NEAR]).at("127.0.0.1:1");
    let mesh = ids.mesh("far", FAR, &[near, member("far", &[FAR])]);
    let far = Node::start(&far_config(mesh, &mut adjust)).unwrap();
    let known = member("far", &[FAR]).at(mesh_addr(&far));
    let mesh = ids.mesh("near", NEAR, &[member("near", &[NEAR]), known]);
    let to = to.to_string().parse().unwrap();
    let near = Node::start(&near_config(mesh, &[&["far"]], to, adjust)).unwrap();
    wait_until("the pool", || near.metrics().pool_ready() >= 2);
    (near, far)
}

/// Returns bytes without repetition, so that a shifted or repeated part is noticed.
pub(crate) fn stream(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub(crate) fn assert_same(got: &[u8], expected: &[u8]) {
    if got != expected {
        let differ = got.iter().zip(expected).position(|(a, b)| a != b);
        let lengths = (got.len(), expected.len());
        panic!("first differing byte: {differ:?}; lengths: {lengths:?}");
    }
}

/// Reads up to FIN.
pub(crate) fn read_to_fin(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Reads until the connection is reset; an orderly end is a failure.
pub(crate) fn read_to_rst(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let end = stream.read_to_end(&mut bytes);
    let kind = end
        .expect_err("the stream ended with FIN instead of RST")
        .kind();
    assert_eq!(kind, ErrorKind::ConnectionReset);
    bytes
}

/// Connects to a relay that resets the connection at once.
pub(crate) fn expect_reset(relay: SocketAddr) {
    // The reset may come before connect(2) returns, which then reports it.
    match TcpStream::connect(relay) {
        Ok(mut client) => {
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!(read_to_rst(&mut client), b"");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

pub(crate) fn end_writing(stream: &TcpStream) {
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Closes with RST.
pub(crate) fn reset(stream: TcpStream) {
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

/// Writes as much as there is room for and returns how much that was.
pub(crate) fn fill(stream: &mut TcpStream, bytes: &[u8]) -> usize {
    stream.set_nonblocking(true).unwrap();
    let mut written = 0;
    while written < bytes.len() && has_room(stream) {
        match stream.write(&bytes[written..]) {
            Ok(n) => written += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => panic!("write: {e}"),
        }
    }
    stream.set_nonblocking(false).unwrap();
    written
}

/// Returns whether a stream accepts bytes. If it accepts none although the node had time to read, the buffers
/// are full.
fn has_room(stream: &TcpStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::OUT)];
    let while_the_node_reads = Duration::from_millis(100).try_into().unwrap();
    rustix::event::poll(&mut fds, Some(&while_the_node_reads)).unwrap() == 1
}

/// Makes a listener drop SYNs by filling its queue. The connection that fills it must be kept.
pub(crate) fn fill_queue(listener: &TcpListener) -> TcpStream {
    // A backlog of n holds n + 1.
    rustix::net::listen(listener, 0).unwrap();
    let queued = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    wait_for(listener, PollFlags::IN);
    queued
}

/// Waits until the other end's kernel has acknowledged everything.
pub(crate) fn wait_for_acks(stream: &TcpStream) {
    wait_until("acknowledgements", || {
        taut_sys::socket::unacknowledged(stream) == 0
    });
}
