//! Connections between relays that fall silent: the path takes what either end sends and delivers nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::time::Duration;

use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::world::{World, WorldBuilder};
use taut_relay::config::{Config, Forward, MeshConfig};
use taut_relay::node::Node;
use taut_relay::outcome::session_end::End;

use crate::PATIENCE;
use crate::members::{Identities, member};
use crate::wait::wait_until;

/// A relay with two workers and a pool of two connections each, and the relay and the server behind it.
struct Rig {
    near: Node,
    far: Node,
    server: TcpListener,
    listen: SocketAddrV4,
    world: World,
    _ids: Identities,
}

impl Rig {
    fn new(name: &str, user_timeout: Duration) -> Self {
        let link = || LinkSpec::both(Shape::delay(Duration::from_millis(5)));
        let world = WorldBuilder::new(name)
            .host("near")
            .host("far")
            .host("server")
            .link("near", "far", link())
            .link("far", "server", link())
            .build()
            .unwrap();
        let [listen, port, to] = [("near", 8080), ("far", 7000), ("server", 80)]
            .map(|(host, port)| SocketAddrV4::new(world.addr(host), port));
        let server = world.host("server").run(|| TcpListener::bind(to).unwrap());

        let ids = Identities::new();
        let known = [
            member("near", &[1]),
            member("far", &[2]).at(port.to_string()),
        ];
        let start = |host: &str, key: u8, adjust: &dyn Fn(&mut MeshConfig), forwards| {
            let mut mesh = ids.mesh(host, key, &known);
            mesh.measure = false;
            mesh.turbo = None;
            (mesh.pool.min, mesh.pool.max) = (4, 4);
            adjust(&mut mesh);
            let mut config = Config::new(forwards);
            config.workers = Some(2);
            config.max_sessions = Some(64);
            config.timeouts.user = user_timeout;
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
        wait_until("the pool", || near.metrics().pool_ready() == 4);
        Self {
            near,
            far,
            server: server.unwrap(),
            listen,
            world,
            _ids: ids,
        }
    }

    fn connect(&self) -> TcpStream {
        let connect = || TcpStream::connect(self.listen).unwrap();
        let client = self.world.host("near").run(connect).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }

    /// Has the path between the relays take everything and deliver nothing.
    fn fall_silent(&self) {
        self.world.cut("near", "far", true);
    }
}

#[test]
fn the_sessions_of_a_leg_that_falls_silent_end_after_the_user_timeout() {
    let rig = Rig::new("silent-leg", Duration::from_secs(1));
    let mut client = rig.connect();
    client.write_all(b"?").unwrap();
    let (mut server, _) = rig.server.accept().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    server.read_exact(&mut [0]).unwrap();
    rig.fall_silent();
    client.write_all(b"?").unwrap();
    server.write_all(b"!").unwrap();
    for end in [&mut client, &mut server] {
        let error = end.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    wait_until("the end of both sessions", || {
        rig.near.metrics().ended(End::UpstreamLost) == 1
            && rig.far.metrics().ended(End::ClientLost) == 1
    });
}

#[test]
fn a_session_that_is_not_answered_empties_the_pools_of_all_workers() {
    // Far longer than the test: what ends the connections is not their own silence.
    let rig = Rig::new("silent-pool", Duration::from_secs(600));
    rig.fall_silent();
    let mut client = rig.connect();
    client.write_all(b"?").unwrap();
    wait_until("the end of the pools", || {
        rig.near.metrics().pool_ready() == 0
    });
}
