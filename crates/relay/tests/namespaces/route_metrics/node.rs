//! Nodes that may not load `taut_pipe`.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use taut_relay::config::{Config, Forward, MeshConfig, Turbo};
use taut_relay::node::Node;
use taut_relay::turbo::route_metrics::{PRIORITY, PROTOCOL, TABLE, segments_of};

use super::rig::*;

use crate::members::{Identities, member};

pub(crate) fn config(forwards: Vec<Forward>, mesh: MeshConfig) -> Config {
    let mut config = Config::new(forwards);
    config.workers = Some(1);
    config.max_sessions = Some(64);
    config.mesh = Some(mesh);
    config
}

/// Starts a node at a host, on a thread that may do everything but load BPF programs.
pub(crate) fn start(relays: &Relays, host: &str, config: &Config) -> Node {
    let start = || {
        let mut sets = capabilities(None).unwrap();
        let bpf = CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN;
        sets.effective.remove(bpf);
        sets.permitted.remove(bpf);
        sets.inheritable.remove(bpf);
        set_capabilities(None, sets).unwrap();
        Node::start(config)
    };
    relays.world.host(host).run(start).unwrap().unwrap()
}

pub(crate) fn figure(node: &Node, name: &str) -> String {
    let text = node.metrics().encode().unwrap();
    let line = text.lines().find(|l| l.split(' ').next() == Some(name));
    line.and_then(|l| l.split(' ').nth(1))
        .unwrap_or_else(|| panic!("no {name} in:\n{text}"))
        .to_owned()
}

fn has_window(relays: &Relays, host: &str, to: IpAddr) -> bool {
    let segments = segments_of(Turbo::default().initial_window());
    let route = relays.ip(host, &format!("route get fibmatch {to} ipproto tcp"));
    route.contains(&format!("initcwnd {segments}"))
}

/// Also a node that does not use them itself.
#[test]
fn a_node_with_a_mesh_removes_the_remains_of_a_killed_one() {
    let relays = Relays::new("route-stale");
    let [far, _] = relays.far();
    let left = format!("{far} dev lo table {TABLE} proto {PROTOCOL} initcwnd 99");
    relays.ip("near", &format!("route add {left}"));
    let rule = format!("iif lo ipproto tcp priority {PRIORITY} protocol {PROTOCOL}");
    relays.ip("near", &format!("rule add {rule} lookup {TABLE}"));
    assert_eq!(relays.traces().len(), 2);
    let ids = Identities::new();
    let mut mesh = ids.mesh("near", 1, &[member("near", &[1])]);
    mesh.turbo = None;
    mesh.listen = vec!["127.0.0.1:4000".parse().unwrap()];
    let _node = start(&relays, "near", &config(Vec::new(), mesh));
    assert_eq!(relays.traces(), [""; 0]);
}

#[test]
fn relays_without_struct_ops_give_each_others_routes_the_window_until_they_drain() {
    let relays = Relays::new("route-node");
    let ids = Identities::new();
    let turbo = Some(Turbo::default());
    let [far_ip, _] = relays.far();
    let near_ip: IpAddr = relays.world.addr("near").into();

    let server = SocketAddr::new(far_ip, 9000);
    let bind = || TcpListener::bind(server);
    let server_listener = relays.world.host("far").run(bind).unwrap().unwrap();
    let members = || {
        [
            member("near", &[1]),
            member("far", &[2]).at(format!("{far_ip}:4000")),
        ]
    };
    let mut mesh = ids.mesh("far", 2, &members());
    mesh.turbo = turbo;
    mesh.listen = vec![format!("{far_ip}:4000").parse().unwrap()];
    mesh.allow = vec![format!("{far_ip}/32:*").parse().unwrap()];
    let mut far = start(&relays, "far", &config(Vec::new(), mesh));
    assert!(!has_window(&relays, "far", near_ip), "nobody has come yet");
    assert_eq!(figure(&far, "taut_relay_route_metrics"), "0");

    let listen = vec!["127.0.0.1:8000".parse().unwrap()];
    let mut forward = Forward::new(listen, server.to_string().parse().unwrap());
    forward.via = vec![vec!["far".parse().unwrap()]];
    let mut mesh = ids.mesh("near", 1, &members());
    mesh.turbo = turbo;
    mesh.pool.min = 1;
    let without = config(Vec::new(), mesh.clone());
    let near = start(&relays, "near", &config(vec![forward], mesh));
    // The dialler's is there from the start, the acceptor's after the dialler has proven its key.
    assert!(has_window(&relays, "near", far_ip));
    assert_eq!(figure(&near, "taut_relay_route_metrics"), "1");
    wait_until("the other way", || has_window(&relays, "far", near_ip));
    wait_until("the figure", || {
        figure(&far, "taut_relay_route_metrics") == "1"
    });

    let address: SocketAddr = "127.0.0.1:8000".parse().unwrap();
    let connect = || TcpStream::connect(address);
    let mut client = relays.world.host("near").run(connect).unwrap().unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut accepted, _) = server_listener.accept().unwrap();
    accepted.write_all(b"all of it").unwrap();
    let mut said = [0; 9];
    client.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"all of it");

    // A reload may remove a relay.
    near.reload(&without).unwrap();
    wait_until("the dialler's end", || !has_window(&relays, "near", far_ip));
    wait_until("its figure", || {
        figure(&near, "taut_relay_route_metrics") == "0"
    });

    far.drain();
    assert!(!has_window(&relays, "far", near_ip));
    drop(near);
    assert_eq!(relays.traces(), [""; 0]);
}
