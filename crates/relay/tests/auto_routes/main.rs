//! Automatic routes: four machines in namespaces, two of them relays beside that of the client, and delays
//! between them by which one route is the best.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::world::{World, WorldBuilder};
use taut_relay::config::{Config, Forward, MeshConfig};
use taut_relay::control::protocol::MeshStatus;
use taut_relay::node::Node;

#[path = "../shared/members.rs"]
mod members;
#[path = "../shared/wait.rs"]
mod wait;

use members::{Identities, member};
use wait::wait_until;

const PATIENCE: Duration = Duration::from_secs(30);
const PORT: u16 = 8080;

/// A relay near the clients, one on the way, one near the server, and the server. The way from `near` to
/// `far` is short through `mid` and long without it; the direct one to the server is the longest.
struct Rig {
    near: Node,
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

impl Rig {
    /// `mid` passes sessions on if its configuration says so.
    fn new(name: &str, mid_passes_on: bool) -> Self {
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
            .link("near", "server", link(90))
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
        let known = [
            member("near", &[1]),
            member("mid", &[2]).at(at("mid")),
            member("far", &[3]).at(at("far")),
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
        of_mid.pass_to_all = mid_passes_on;
        let mid = relay("mid", of_mid);
        let mut of_far = measuring("far", 3);
        of_far.allow = vec![format!("{}/32:80", to.ip()).parse().unwrap()];
        let far = relay("far", of_far);

        let listen = SocketAddrV4::new(world.addr("near"), PORT);
        let to = to.to_string().parse().unwrap();
        let mut forward = Forward::new(vec![listen.to_string().parse().unwrap()], to);
        forward.name = Some("web".to_owned());
        forward.auto = true;
        forward.direct = true;
        let near = start(&world, "near", measuring("near", 1), vec![forward]);
        Self {
            near,
            mid: Some(mid),
            far: Some(far),
            listener,
            listen,
            world,
            _ids: ids,
        }
    }

    /// Returns the relays of the route that sessions try first.
    fn choice(&self) -> Vec<String> {
        let status = self.near.mesh_status().unwrap();
        status.routes[0].choice.clone()
    }

    fn wait_for(&self, choice: &[&str]) -> Duration {
        let begun = Instant::now();
        wait_until(&format!("the route {choice:?}"), || self.choice() == choice);
        begun.elapsed()
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
    let mut rig = Rig::new("auto-detour", true);
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
    for node in [Some(&rig.near), rig.mid.as_ref(), rig.far.as_ref()] {
        let node = node.unwrap();
        wait_until("the rows of all", || {
            paths(&node.mesh_status().unwrap()) == all
        });
    }
    let status = rig.near.mesh_status().unwrap();
    let long = status
        .paths
        .iter()
        .find(|p| (&*p.from, &*p.to) == ("near", "far"))
        .unwrap();
    assert!((110.0..170.0).contains(&long.rtt_ms), "{long:?}");

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
    let mut rig = Rig::new("auto-behind", true);
    rig.wait_for(&["near", "mid", "far"]);
    rig.talk();
    rig.far = None;
    rig.talk_around();
    rig.wait_for(&["near"]);
    rig.talk();
}

#[test]
fn no_route_leads_through_a_relay_that_does_not_pass_sessions_on() {
    let rig = Rig::new("auto-refused", false);
    rig.wait_for(&["near", "far"]);
    let knows_all = || paths(&rig.near.mesh_status().unwrap()).len() == 6;
    wait_until("the rows of all", knows_all);
    rig.talk();
    assert_eq!(rig.choice(), ["near", "far"]);
    assert_eq!(rig.mid.as_ref().unwrap().metrics().mesh_hellos(), 0);
}
