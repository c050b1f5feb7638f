//! What waits in two relays for a client that is slower than the server.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::{BitsPerSecond, Bytes};
use taut_netlab::world::{World, WorldBuilder};
use taut_relay::config::{Config, Forward, MeshConfig};
use taut_relay::node::Node;
use taut_sys::socket::unacknowledged;

use crate::PATIENCE;
use crate::members::{Identities, member};

/// A server that sends without end, two relays, and a client behind a narrow link.
struct Rig {
    near: Node,
    far: Node,
    server: Arc<Server>,
    listen: SocketAddrV4,
    world: World,
    _ids: Identities,
}

#[derive(Default)]
struct Server {
    stream: OnceLock<TcpStream>,
    written: AtomicU64,
}

impl Rig {
    fn new(name: &str, megabits: u64) -> Self {
        let ms = Duration::from_millis;
        let world = WorldBuilder::new(name)
            .host("client")
            .host("near")
            .host("far")
            .host("server")
            .link(
                "client",
                "near",
                LinkSpec::both(
                    Shape::delay(ms(5))
                        .rate(BitsPerSecond(megabits * 1_000_000))
                        .queue(Bytes(megabits * 12_500)),
                ),
            )
            .link("near", "far", LinkSpec::both(Shape::delay(ms(40))))
            .link("far", "server", LinkSpec::both(Shape::delay(ms(1))))
            .build()
            .unwrap();
        let [listen, port, to] = [("near", 8080), ("far", 7000), ("server", 80)]
            .map(|(host, port)| SocketAddrV4::new(world.addr(host), port));
        let listener = world
            .host("server")
            .run(|| TcpListener::bind(to).unwrap())
            .unwrap();
        let server = Arc::new(Server::default());
        let thread = server.clone();
        std::thread::spawn(move || {
            let stream = thread.stream.get_or_init(|| listener.accept().unwrap().0);
            while let Ok(n) = (&mut &*stream).write(&[7; 64 << 10]) {
                thread.written.fetch_add(n as u64, Relaxed);
            }
        });
        let ids = Identities::new();
        let known = [
            member("near", &[1]),
            member("far", &[2]).at(port.to_string()),
        ];
        let start = |host: &str, key: u8, adjust: &dyn Fn(&mut MeshConfig), forwards| {
            let mut mesh = ids.mesh(host, key, &known);
            mesh.measure = false;
            adjust(&mut mesh);
            let mut config = Config::new(forwards);
            config.workers = Some(1);
            config.max_sessions = Some(64);
            config.mesh = Some(mesh);
            let start = || Node::start(&config);
            world.host(host).run(start).unwrap().unwrap()
        };
        let at_far = |mesh: &mut MeshConfig| {
            mesh.listen = vec![port.to_string().parse().unwrap()];
            mesh.allow = vec![format!("{}/32:80", to.ip()).parse().unwrap()];
        };
        let far = start("far", 2, &at_far, Vec::new());
        let own = vec![listen.to_string().parse().unwrap()];
        let mut forward = Forward::new(own, to.to_string().parse().unwrap());
        forward.via = vec![vec!["far".parse().unwrap()]];
        let near = start("near", 1, &|_| {}, vec![forward]);
        Self {
            near,
            far,
            server,
            listen,
            world,
            _ids: ids,
        }
    }

    /// Returns the bytes that the far relay has acknowledged to the server.
    fn acknowledged(&self) -> u64 {
        // In this order: what is written between the two is not taken for acknowledged.
        let written = self.server.written.load(Relaxed);
        let stream = self.server.stream.get();
        written.saturating_sub(stream.map_or(0, unacknowledged) as u64)
    }

    fn connect(&self) -> TcpStream {
        let connect = || TcpStream::connect(self.listen).unwrap();
        let client = self.world.host("client").run(connect).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }
}

/// Reads until no more waits than the client takes in a while.
fn read_until(rig: &Rig, megabits: u64, waiting_for: Duration) {
    let rate = megabits * 125_000;
    let most = rate * waiting_for.as_millis() as u64 / 1_000;
    let mut client = rig.connect();
    let mut read = 0;
    let mut buffer = vec![0; 64 << 10];
    loop {
        read += client.read(&mut buffer).unwrap() as u64;
        let waiting = rig.acknowledged() - read;
        if waiting < most && read > 8 * rate {
            break;
        }
        assert!(read < 60 * rate, "{waiting} bytes wait");
    }
    for node in [&rig.near, &rig.far] {
        let text = node.metrics().encode().unwrap();
        assert!(!text.contains("taut_relay_backlogs_limited_total 0\n"));
    }
}

#[test]
fn what_waits_for_a_slow_client_is_what_it_takes_in_a_second() {
    // The buffers of both relays hold more than 10 MB.
    read_until(&Rig::new("backlog", 20), 20, Duration::from_secs(1));
}

#[test]
fn what_waits_for_a_very_slow_client_is_what_it_takes_in_two_seconds() {
    read_until(&Rig::new("backlog-slow", 4), 4, Duration::from_secs(2));
}
