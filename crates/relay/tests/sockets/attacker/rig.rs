//! Relays with an attacker between them, and sessions whose bytes are known.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use taut_relay::config::{Config, Forward, MeshConfig};
use taut_relay::node::Node;
use taut_sys_testing::network::enter_private_network;

use super::path::{Mode, Path};

pub(crate) use crate::PATIENCE;
use crate::member_list::{Identities, member};
pub(crate) use crate::wait::wait_until;

/// The bytes of a session each way: some twenty records.
const LEN: usize = 300 << 10;

/// A near relay, which also accepts sessions, the far one that it dials, a third one that it knows, and a
/// server that all of them may reach.
pub(crate) struct Rig {
    pub(crate) path: Path,
    pub(crate) near: Node,
    of_near: Config,
    _ids: Identities,
    pub(crate) far: Node,
    pub(crate) third: Node,
    pub(crate) server: TcpListener,
    up: Vec<u8>,
    down: Vec<u8>,
}

/// What an end of a session got.
#[derive(Debug)]
pub(crate) struct Got {
    bytes: Vec<u8>,
    /// The stream ended in order.
    whole: bool,
}

// === impl Rig ===

impl Rig {
    pub(crate) fn new() -> Self {
        enter_private_network();
        let ids = Identities::new();
        let known =
            || [("near", 1), ("far", 2), ("third", 3)].map(|(name, key)| member(name, &[key]));
        let start = |mesh: MeshConfig, forward: Option<Forward>| {
            let mut mesh = mesh;
            mesh.listen = vec!["127.0.0.1:0".parse().unwrap()];
            mesh.allow = vec!["127.0.0.1/32:*".parse().unwrap()];
            mesh.turbo = None;
            // Each session has a connection of its own.
            (mesh.pool.min, mesh.pool.max) = (0, 0);
            let mut config = Config::new(forward.into_iter().collect());
            config.workers = Some(1);
            config.max_sessions = Some(64);
            config.mesh = Some(mesh);
            (Node::start(&config).unwrap(), config)
        };
        let (far, _) = start(ids.mesh("far", 2, &known()), None);
        let (third, _) = start(ids.mesh("third", 3, &known()), None);
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        let path = Path::new(far.mesh_addrs()[0].0);
        let [near, far_member, third_member] = known();
        let third_member = third_member.at(third.mesh_addrs()[0].0);
        let members = [near, far_member.at(path.addr()), third_member];
        let to = server.local_addr().unwrap().to_string().parse().unwrap();
        let mut forward = Forward::new(vec!["127.0.0.1:0".parse().unwrap()], to);
        forward.via = vec![vec!["far".parse().unwrap()]];
        let (near, of_near) = start(ids.mesh("near", 1, &members), Some(forward));
        Self {
            path,
            near,
            of_near,
            _ids: ids,
            far,
            third,
            server,
            up: stream(LEN, 1),
            down: stream(LEN, 2),
        }
    }

    /// Runs a session under an attack and checks both ends. Returns whether both streams were whole.
    pub(crate) fn session(&self, mode: &Mode) -> bool {
        let hellos = self.hellos();
        let retries = count(&self.near, "taut_relay_pool_retries_total");
        self.path.set(mode.clone());
        let mut config = self.of_near.clone();
        config.timeouts.connect = match mode {
            // What keeps the near relay waiting ends with this.
            Mode::Attack { at: ..=2, .. } | Mode::Answer(_) | Mode::Redirect(_) => {
                Duration::from_secs(1)
            }
            Mode::Attack { .. } | Mode::Pass => PATIENCE,
        };
        self.near.reload(&config).unwrap();
        let client = TcpStream::connect(self.near.listen_addrs()[0].0).unwrap();
        let (at_client, at_server) = std::thread::scope(|s| {
            let client = s.spawn(|| play(client, &self.up));
            let mut servers = Vec::new();
            wait_until("the session's end", || {
                // Accepted before the check, so that none is left when nothing can dial any more.
                let is_over = client.is_finished() && self.is_quiet();
                while let Some(server) = self.accept() {
                    servers.push(s.spawn(|| play(server, &self.down)));
                }
                is_over && servers.iter().all(|server| server.is_finished())
            });
            let servers = servers.into_iter().map(|server| server.join().unwrap());
            (client.join().unwrap(), servers.collect::<Vec<_>>())
        });
        // A relay that gets no answer asks again for the same session.
        let retries = count(&self.near, "taut_relay_pool_retries_total") - retries;
        let asked = self.hellos() - hellos;
        assert!(asked <= 1 + retries, "{asked} sessions of one: {mode:?}");
        assert!(at_server.len() as u64 <= asked, "{at_server:?}: {mode:?}");
        at_client.check(&self.down, "client", mode);
        for got in &at_server {
            got.check(&self.up, "server", mode);
        }
        at_client.whole && at_server.iter().all(|got| got.whole) && at_server.len() == 1
    }

    pub(crate) fn accept(&self) -> Option<TcpStream> {
        match self.server.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                Some(stream)
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => None,
            Err(e) => panic!("{e}"),
        }
    }

    /// Returns the sessions that relays were asked for by others.
    pub(crate) fn hellos(&self) -> u64 {
        let relays = [&self.near, &self.far, &self.third];
        relays.iter().map(|r| r.metrics().mesh_hellos()).sum()
    }

    /// Returns whether the relays have handled all that the attacker has sent, and have no sessions.
    pub(crate) fn is_quiet(&self) -> bool {
        let quiet = || {
            self.path.is_idle()
                && count(&self.far, "taut_relay_mesh_accepted_total") >= self.path.dialled()
                && [&self.near, &self.far, &self.third].iter().all(|relay| {
                    count(relay, "taut_relay_mesh_unproven") == 0
                        && count(relay, "taut_relay_mesh_ready") == 0
                        && relay.metrics().sessions() == 0
                })
        };
        // A connection may be on its way from one of these figures to the next.
        quiet() && {
            std::thread::sleep(Duration::from_millis(2));
            quiet()
        }
    }

    /// Connects to the far relay, as anybody can.
    pub(crate) fn far_port(&self) -> TcpStream {
        connect(self.far.mesh_addrs()[0].0)
    }

    pub(crate) fn near_port(&self) -> SocketAddr {
        self.near.mesh_addrs()[0].0
    }
}

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

// === impl Got ===

impl Got {
    /// Asserts that nothing is here but the start of what was sent, and that a stream which ended in
    /// order is all of it.
    fn check(&self, sent: &[u8], end: &str, mode: &Mode) {
        let len = self.bytes.len();
        let is_start = sent.get(..len) == Some(&self.bytes[..]);
        assert!(is_start, "the {end} got what nobody sent: {mode:?}");
        let is_whole = len == sent.len();
        assert!(
            is_whole || !self.whole,
            "{len} bytes look whole to the {end}: {mode:?}"
        );
    }
}

/// Plays an end of a session: sends `bytes` and reads to the end.
fn play(stream: TcpStream, bytes: &[u8]) -> Got {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            // The other end may be gone.
            let sent = (&stream).write_all(bytes);
            sent.and_then(|()| stream.shutdown(Shutdown::Write))
        });
        let mut got = Vec::new();
        let end = (&stream).read_to_end(&mut got).map(|_| ());
        assert!(!is(&end, ErrorKind::WouldBlock), "a session stays open");
        // A reset is reported once, to the writer or to the reader, who then finds the end of the stream.
        // A reset behind the end of the stream is another error to the writer (EPIPE).
        let reset = is(&writer.join().unwrap(), ErrorKind::ConnectionReset);
        Got {
            bytes: got,
            whole: end.is_ok() && !reset,
        }
    })
}

fn is(result: &io::Result<()>, kind: ErrorKind) -> bool {
    matches!(result, Err(e) if e.kind() == kind)
}

/// Returns bytes without repetition.
fn stream(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(next).collect()
}

/// Returns a metric of a node, summed over its labels.
pub(crate) fn count(node: &Node, name: &str) -> u64 {
    let text = node.metrics().encode().unwrap();
    let of = |l: &str| l.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64;
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    let is_it = |l: &&str| l.split(['{', ' ']).next() == Some(name);
    lines.filter(is_it).map(of).sum()
}
