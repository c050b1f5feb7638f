//! Early SYN through another relay: how many connections are dialled, and which ones are left to
//! sessions.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::world::{Host, World, WorldBuilder};
use taut_relay::config::{Config, Forward};
use taut_relay::node::Node;

use super::flood::{send_syns, unused_clients};
use super::joined::figure;
use super::rig::PATIENCE;
use crate::members::{Identities, member};
use crate::wait::wait_until;

const PORT: u16 = 8080;
/// More than one, so that a client is mostly accepted by another worker than the one that was told
/// of its SYN.
const WORKERS: u16 = 4;

/// A distant client, a relay, and another relay with a server beside it.
struct Rig {
    world: World,
    server: Arc<Server>,
    near: Node,
    far: Node,
}

/// A server that sends each client's bytes back once the client has ended its stream.
struct Server {
    listener: TcpListener,
    /// The bytes of connections that did not end in order.
    cut_off: AtomicUsize,
}

// === impl Server ===

impl Server {
    /// Serves until the listener is shut down.
    fn serve(&self) {
        std::thread::scope(|s| {
            while let Ok((mut stream, _)) = self.listener.accept() {
                s.spawn(move || {
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    let mut heard = Vec::new();
                    match stream.read_to_end(&mut heard) {
                        Ok(_) => stream.write_all(&heard).unwrap(),
                        Err(_) => drop(self.cut_off.fetch_add(heard.len(), Relaxed)),
                    }
                });
            }
        });
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.server.listener, rustix::net::Shutdown::Both);
    }
}

// === impl Rig ===

impl Rig {
    /// Starts the relays with a pool of `min` to `max` connections.
    fn new(name: &str, min: u32, max: u32) -> Self {
        let link = |ms| LinkSpec::both(Shape::delay(Duration::from_millis(ms)));
        let world = WorldBuilder::new(name)
            .host("client")
            .host("near")
            .host("far")
            .link("client", "near", link(150))
            .link("near", "far", link(1))
            .build()
            .unwrap();
        let (near, far) = (world.host("near"), world.host("far"));
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Arc::new(Server {
            listener: far.run(bind).unwrap(),
            cut_off: AtomicUsize::new(0),
        });
        std::thread::spawn({
            let server = server.clone();
            move || server.serve()
        });

        let ids = Identities::new();
        let at = format!("{}:7000", far.addr());
        let known = [member("near", &[1]), member("far", &[2]).at(&at)];
        let mut mesh = ids.mesh("far", 2, &known);
        mesh.listen = vec![at.parse().unwrap()];
        mesh.allow = vec!["127.0.0.1/32:*".parse().unwrap()];
        mesh.turbo = None;
        let mut config = Config::new(Vec::new());
        config.workers = Some(1);
        config.max_sessions = Some(512);
        config.mesh = Some(mesh);
        let far = far.run(|| Node::start(&config)).unwrap().unwrap();

        let listen = format!("{}:{PORT}", near.addr()).parse().unwrap();
        let to = server
            .listener
            .local_addr()
            .unwrap()
            .to_string()
            .parse()
            .unwrap();
        let mut forward = Forward::new(vec![listen], to);
        forward.early_syn = true;
        forward.via = vec![vec!["far".parse().unwrap()]];
        let mut mesh = ids.mesh("near", 1, &known);
        (mesh.pool.min, mesh.pool.max) = (min, max);
        mesh.turbo = None;
        config.forwards = vec![forward];
        config.workers = Some(WORKERS);
        config.mesh = Some(mesh);
        let near = near.run(|| Node::start(&config)).unwrap().unwrap();
        Self {
            world,
            server,
            near,
            far,
        }
    }

    fn client(&self) -> &Host {
        self.world.host("client")
    }

    fn listen(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.world.addr("near"), PORT)
    }

    /// Returns a metric of the relay near the client.
    fn figure(&self, name: &str) -> u64 {
        figure(&self.near.metrics(), name)
    }

    /// Sends bytes through both relays and back.
    fn talk(&self) {
        let connect = || TcpStream::connect(SocketAddr::V4(self.listen())).unwrap();
        let mut stream = self.client().run(connect).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let said = b"through both relays";
        stream.write_all(said).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, said);
    }
}

#[test]
fn a_client_gets_the_connection_that_was_dialled_for_it_whichever_worker_accepts_it() {
    const CLIENTS: u64 = 6;
    // Without a pool, a connection is dialled for each client: at its SYN, and not once more.
    let rig = Rig::new("early-land", 0, 0);
    for _ in 0..CLIENTS {
        rig.talk();
    }
    assert!(rig.figure("taut_relay_early_dialled_ahead_total") > 0);
    assert_eq!(rig.figure("taut_relay_peer_dials_total"), CLIENTS);
    assert_eq!(rig.far.metrics().mesh_hellos(), CLIENTS);
}

#[test]
fn forged_syns_leave_connections_to_sessions() {
    const FORGED: u32 = 200;
    let workers = u64::from(WORKERS);
    let rig = Rig::new("early-reserve", 8, 64);
    let ready = || rig.near.metrics().pool_ready();
    wait_until("the pool", || ready() == 2 * workers);
    // Nothing that is dialled from now on becomes ready.
    rig.world.cut("near", "far", true);
    let to = rig.listen();
    let forge = |first| {
        let from = unused_clients(first, FORGED);
        rig.client().run(|| send_syns(to, from)).unwrap();
    };
    forge(0);
    wait_until("all SYNs to be acted on", || {
        let acted = ["begun", "dialled_ahead", "declined"];
        let acted = acted.map(|what| rig.figure(&format!("taut_relay_early_{what}_total")));
        acted.iter().sum::<u64>() == u64::from(FORGED)
    });
    // Each worker has given one of its two connections away.
    assert_eq!(rig.figure("taut_relay_early_begun_total"), workers);
    assert_eq!(ready(), workers);

    rig.world.cut("near", "far", false);
    for round in 1..=4 {
        forge(round * FORGED);
        rig.talk();
    }
    // Some of the forged SYNs have made the other relay connect to the server, too.
    assert!(rig.far.metrics().mesh_hellos() > 4);
    wait_until("the end of all", || rig.far.metrics().sessions() == 0);
    let cut_off = rig.server.cut_off.load(Relaxed);
    assert_eq!(cut_off, 0, "bytes of clients that do not exist");
}
