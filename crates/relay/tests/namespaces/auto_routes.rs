//! Automatic routes: four machines in namespaces, two of them relays beside that of the client, and delays
//! between them by which one route is the best.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::world::{World, WorldBuilder};
use taut_relay::access::Sources;
use taut_relay::config::{Config, Forward, MeshConfig, PeerRule};
use taut_relay::control::protocol::MeshStatus;
use taut_relay::node::Node;

use crate::PATIENCE;
use crate::members::{Identities, member};
use crate::wait::wait_until;

const PORT: u16 = 8080;

/// A relay near the clients, one on the way, one near the server, and the server. The way from `near` to
/// `far` is short through `mid` and long without it; the direct one to the server is the longest.
struct Rig {
    near: Option<Node>,
    /// The configuration of `near`.
    of_near: (MeshConfig, Forward),
    mid: Option<Node>,
    far: Option<Node>,
    listener: Arc<TcpListener>,
    listen: SocketAddrV4,
    world: World,
    _ids: Identities,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
    }
}

/// What differs between rigs.
#[derive(Clone, Copy)]
struct Variant {
    /// `mid` passes sessions on.
    mid_passes_on: bool,
    /// The one-way delay between `near` and the server, in milliseconds.
    direct_ms: u64,
    /// The connections that `near` holds ready to each relay.
    pool: (u32, u32),
    /// Sessions may take the direct path.
    direct: bool,
    /// `far` lets `mid` speak for no client that there is.
    far_refuses_clients_of_mid: bool,
    /// The list names an address of `far` at which nothing listens before the one that works.
    far_has_a_dead_address: bool,
}

impl Default for Variant {
    fn default() -> Self {
        Self {
            mid_passes_on: true,
            direct_ms: 90,
            pool: (2, 4),
            direct: true,
            far_refuses_clients_of_mid: false,
            far_has_a_dead_address: false,
        }
    }
}

impl Rig {
    fn new(name: &str, variant: Variant) -> Self {
        let link = |ms| LinkSpec::both(Shape::delay(Duration::from_millis(ms)));
        let world = WorldBuilder::new(name)
            .host("near")
            .host("mid")
            .host("far")
            .host("server")
            .link("near", "mid", link(10))
            .link("mid", "far", link(10))
            .link("near", "far", link(60))
            .link("far", "server", link(1))
            .link("near", "server", link(variant.direct_ms))
            .build()
            .unwrap();
        let to = SocketAddrV4::new(world.addr("server"), 80);
        let listener = world.host("server").run(|| TcpListener::bind(to).unwrap());
        let listener = Arc::new(listener.unwrap());
        std::thread::spawn({
            let listener = listener.clone();
            move || serve(&listener)
        });

        let ids = Identities::new();
        let at = |name: &str| format!("{}:7000", world.addr(name));
        let far = match variant.far_has_a_dead_address {
            true => member("far", &[3]).at(format!("{}:7001", world.addr("far"))),
            false => member("far", &[3]),
        };
        let known = [
            member("near", &[1]),
            member("mid", &[2]).at(at("mid")),
            far.at(at("far")),
        ];
        let measuring = |name: &str, key: u8| {
            let mut mesh = ids.mesh(name, key, &known);
            mesh.measure = true;
            mesh.turbo = None;
            (mesh.pool.min, mesh.pool.max) = (2, 4);
            mesh
        };
        let relay = |name: &str, mut mesh: MeshConfig| {
            mesh.listen = vec![at(name).parse().unwrap()];
            start(&world, name, mesh, Vec::new())
        };
        let mut of_mid = measuring("mid", 2);
        of_mid.pass_to_all = variant.mid_passes_on;
        let mid = relay("mid", of_mid);
        let mut of_far = measuring("far", 3);
        of_far.allow = vec![format!("{}/32:80", to.ip()).parse().unwrap()];
        if variant.far_refuses_clients_of_mid {
            let elsewhere = Some(vec!["198.51.100.0/24".parse().unwrap()]);
            of_far.rules = vec![PeerRule {
                name: "mid".parse().unwrap(),
                allow: None,
                deny: Vec::new(),
                clients: Sources::new(elsewhere, Vec::new()).unwrap(),
                leg: None,
            }];
        }
        let far = relay("far", of_far);

        let listen = SocketAddrV4::new(world.addr("near"), PORT);
        let to = to.to_string().parse().unwrap();
        let mut forward = Forward::new(vec![listen.to_string().parse().unwrap()], to);
        forward.name = Some("web".to_owned());
        forward.auto = true;
        forward.direct = variant.direct;
        let mut of_near = measuring("near", 1);
        (of_near.pool.min, of_near.pool.max) = variant.pool;
        of_near.routes_file = Some(ids.path("routes"));
        let near = start(&world, "near", of_near.clone(), vec![forward.clone()]);
        Self {
            near: Some(near),
            of_near: (of_near, forward),
            mid: Some(mid),
            far: Some(far),
            listener,
            listen,
            world,
            _ids: ids,
        }
    }

    fn near(&self) -> &Node {
        self.near.as_ref().unwrap()
    }

    /// Ends `near` and starts it again.
    fn restart_near(&mut self) {
        self.near = None;
        let (mesh, forward) = self.of_near.clone();
        self.near = Some(start(&self.world, "near", mesh, vec![forward]));
    }

    /// Returns the relays of the route that sessions try first.
    fn choice(&self) -> Vec<String> {
        let status = self.near().mesh_status().unwrap();
        status.routes[0].choice.clone()
    }

    fn wait_for(&self, choice: &[&str]) -> Duration {
        let begun = Instant::now();
        wait_until(&format!("the route {choice:?}"), || self.choice() == choice);
        begun.elapsed()
    }

    /// Waits until sessions may fall back to this route.
    fn wait_for_another(&self, relays: &[&str]) {
        wait_until("another route", || {
            let status = self.near().mesh_status().unwrap();
            let mut others = status.routes[0].others.iter();
            others.any(|route| route.relays == relays)
        });
    }

    /// Returns the sessions that took their next way, and those that reached `far`.
    fn fall_backs_and_sessions_of_far(&self) -> (u64, u64) {
        let text = self.near().metrics().encode().unwrap();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix("taut_relay_fall_backs_total "));
        let fall_backs = value.unwrap().parse().unwrap();
        (
            fall_backs,
            self.far.as_ref().unwrap().metrics().mesh_hellos(),
        )
    }

    /// Sends bytes to the server and back.
    fn talk(&self) {
        self.try_to_talk().unwrap();
    }

    fn try_to_talk(&self) -> std::io::Result<()> {
        let connect = || TcpStream::connect(self.listen).unwrap();
        let mut stream = self.world.host("near").run(connect).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"there and back")?;
        stream.shutdown(Shutdown::Write)?;
        let mut back = Vec::new();
        stream.read_to_end(&mut back)?;
        assert_eq!(back, b"there and back");
        Ok(())
    }

    /// Talks until a session goes through. Those that were given a connection to a relay in the moment of its
    /// death are reset.
    fn talk_around(&self) {
        let (begun, mut reset) = (Instant::now(), 0);
        wait_until("a session that goes around", || {
            let talked = self.try_to_talk();
            reset += u32::from(talked.is_err());
            talked.is_ok()
        });
        println!(
            "auto: {reset} sessions were reset; one went around after {:?}",
            begun.elapsed()
        );
    }
}

fn serve(listener: &TcpListener) {
    while let Ok((mut stream, _)) = listener.accept() {
        std::thread::spawn(move || {
            let mut heard = Vec::new();
            if stream.read_to_end(&mut heard).is_ok() {
                let _ = stream.write_all(&heard);
            }
        });
    }
}

fn start(world: &World, host: &str, mesh: MeshConfig, forwards: Vec<Forward>) -> Node {
    let mut config = Config::new(forwards);
    config.workers = Some(1);
    config.max_sessions = Some(64);
    config.mesh = Some(mesh);
    let start = || Node::start(&config);
    world.host(host).run(start).unwrap().unwrap()
}

/// Returns the paths that a relay knows, as text.
fn paths(status: &MeshStatus) -> Vec<String> {
    let paths = status.paths.iter();
    paths
        .map(|path| format!("{} {}", path.from, path.to))
        .collect()
}

#[test]
fn sessions_take_the_short_detour_and_go_around_relays_that_are_killed() {
    let mut rig = Rig::new("auto-detour", Variant::default());
    let found = rig.wait_for(&["near", "mid", "far"]);
    println!("auto: the detour was chosen {found:?} after the start");
    rig.talk();
    for node in [&rig.mid, &rig.far] {
        assert_eq!(node.as_ref().unwrap().metrics().mesh_hellos(), 1);
    }
    // Each relay has what each has measured. No relay dials `near`, which has no address, but `near` has
    // made the links to both.
    let all = [
        "far mid", "far near", "mid far", "mid near", "near far", "near mid",
    ];
    for node in [Some(rig.near()), rig.mid.as_ref(), rig.far.as_ref()] {
        let node = node.unwrap();
        wait_until("the rows of all", || {
            paths(&node.mesh_status().unwrap()) == all
        });
    }
    // A link that waits for a processor makes a round trip longer; another one is measured.
    wait_until("the round trip of the long path, 120 ms", || {
        let status = rig.near().mesh_status().unwrap();
        let mut paths = status.paths.iter();
        let long = paths.find(|p| (&*p.from, &*p.to) == ("near", "far"));
        (110.0..170.0).contains(&long.unwrap().rtt_ms)
    });

    rig.mid = None;
    rig.talk_around();
    let around = rig.wait_for(&["near", "far"]);
    println!("auto: the way around a killed relay was chosen after {around:?}");
    rig.talk();
    rig.far = None;
    rig.talk_around();
    rig.wait_for(&["near"]);
    rig.talk();
}

#[test]
fn sessions_go_around_a_relay_that_is_killed_behind_another() {
    let mut rig = Rig::new("auto-behind", Variant::default());
    rig.wait_for(&["near", "mid", "far"]);
    rig.talk();
    rig.far = None;
    rig.talk_around();
    rig.wait_for(&["near"]);
    rig.talk();
}

#[test]
fn no_route_leads_through_a_relay_that_does_not_pass_sessions_on() {
    let variant = Variant {
        mid_passes_on: false,
        ..Variant::default()
    };
    let rig = Rig::new("auto-refused", variant);
    rig.wait_for(&["near", "far"]);
    let knows_all = || paths(&rig.near().mesh_status().unwrap()).len() == 6;
    wait_until("the rows of all", knows_all);
    rig.talk();
    assert_eq!(rig.choice(), ["near", "far"]);
    assert_eq!(rig.mid.as_ref().unwrap().metrics().mesh_hellos(), 0);
}

#[test]
fn sessions_take_a_route_when_the_direct_path_that_was_chosen_fails_and_return_to_it() {
    let variant = Variant {
        direct_ms: 5,
        ..Variant::default()
    };
    let rig = Rig::new("auto-direct", variant);
    rig.wait_for(&["near"]);
    rig.talk();
    assert_eq!(rig.fall_backs_and_sessions_of_far(), (0, 0));
    // The routes behind the direct path become known with the measurements of `far`.
    wait_until("a route behind the direct path", || {
        let status = rig.near().mesh_status().unwrap();
        !status.routes[0].others.is_empty()
    });
    rig.world.cut("near", "server", true);
    rig.talk();
    assert_eq!(rig.fall_backs_and_sessions_of_far(), (1, 1));
    wait_until("a session that does not wait for the dead path", || {
        let (fall_backs, through_far) = rig.fall_backs_and_sessions_of_far();
        rig.talk();
        let after = rig.fall_backs_and_sessions_of_far();
        assert_eq!(after.1, through_far + 1);
        after.0 == fall_backs
    });
    rig.world.cut("near", "server", false);
    wait_until("a direct session", || {
        let before = rig.fall_backs_and_sessions_of_far();
        rig.talk();
        rig.fall_backs_and_sessions_of_far() == before
    });
}

#[test]
fn a_session_takes_the_next_route_when_the_first_relay_does_not_answer_a_dial() {
    let variant = Variant {
        pool: (0, 0),
        ..Variant::default()
    };
    let rig = Rig::new("auto-dial", variant);
    rig.wait_for(&["near", "mid", "far"]);
    rig.wait_for_another(&["near", "far"]);
    rig.world.cut("near", "mid", true);
    rig.talk();
    assert_eq!(rig.fall_backs_and_sessions_of_far(), (1, 1));
    assert_eq!(rig.mid.as_ref().unwrap().metrics().mesh_hellos(), 0);
}

#[test]
fn a_relay_that_starts_again_serves_sessions_at_once_by_the_routes_of_before() {
    let variant = Variant {
        direct: false,
        ..Variant::default()
    };
    let mut rig = Rig::new("auto-again", variant);
    rig.wait_for(&["near", "mid", "far"]);
    rig.talk();
    rig.restart_near();
    // Before any path has been measured again.
    rig.talk();
    let (fall_backs, through_far) = rig.fall_backs_and_sessions_of_far();
    assert_eq!((fall_backs, through_far), (0, 2));
    assert_eq!(rig.mid.as_ref().unwrap().metrics().mesh_hellos(), 2);
    rig.wait_for(&["near", "mid", "far"]);
}

#[test]
fn sessions_avoid_a_route_on_which_a_relay_refuses_their_clients() {
    let variant = Variant {
        far_refuses_clients_of_mid: true,
        ..Variant::default()
    };
    let rig = Rig::new("auto-clients", variant);
    rig.wait_for(&["near", "mid", "far"]);
    rig.wait_for_another(&["near", "far"]);
    // The first ones have sent their bytes before they are refused.
    rig.talk_around();
    let through_mid = || rig.mid.as_ref().unwrap().metrics().mesh_hellos();
    let refused = through_mid();
    rig.talk();
    rig.talk();
    assert_eq!(through_mid(), refused);
    assert_eq!(rig.choice(), ["near", "mid", "far"]);
}

#[test]
fn a_relay_is_measured_at_its_second_address_when_the_first_does_not_work() {
    let variant = Variant {
        far_has_a_dead_address: true,
        ..Variant::default()
    };
    let rig = Rig::new("auto-address", variant);
    // Nobody dials `near`, so it is the only one that can measure this path.
    wait_until("the path from `near` to `far`", || {
        let status = rig.near().mesh_status().unwrap();
        paths(&status).iter().any(|path| path == "near far")
    });
    rig.wait_for(&["near", "mid", "far"]);
    rig.talk();
}
