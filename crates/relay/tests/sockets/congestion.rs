//! The congestion controls of all legs of a session through two relays.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};

use taut_relay::config::{LegConfig, PeerRule, Turbo};
use taut_relay::node::Node;
use taut_sys::sock_diag::{Connection, SockDiag, State};

use crate::mesh_rig::{Identities, far_config, member, mesh_addr, near_config};
use crate::rig::{listen, wait_until};

const NEAR: u8 = 1;
const FAR: u8 = 2;

/// Returns the established connections that `is_one` selects.
fn connections(is_one: impl Fn(&Connection) -> bool) -> Vec<Connection> {
    let mut found = Vec::new();
    let mut each = |connection: Connection| {
        if connection.state == State::Established && is_one(&connection) {
            found.push(connection);
        }
    };
    SockDiag::open().unwrap().dump(&mut each).unwrap();
    found
}

/// Returns the congestion controls of the sockets that lead from or to this address.
fn controls(is_one: impl Fn(&Connection) -> bool) -> BTreeSet<String> {
    let all = connections(is_one).into_iter();
    all.filter_map(|c| Some(c.congestion_control?.as_str().to_owned()))
        .collect()
}

/// Returns a control that every kernel has and that is not the default.
fn other_than_default() -> String {
    let default = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    let other = if default.trim() == "reno" {
        "cubic"
    } else {
        "reno"
    };
    other.to_owned()
}

fn rule(leg: LegConfig) -> PeerRule {
    PeerRule {
        name: "near".parse().unwrap(),
        allow: None,
        deny: Vec::new(),
        clients: Default::default(),
        leg: Some(leg),
    }
}

fn plain(congestion: Option<&str>) -> LegConfig {
    LegConfig {
        turbo: None,
        congestion: congestion.map(str::to_owned),
        max_rate: None,
    }
}

#[test]
fn each_leg_of_a_session_through_two_relays_has_its_own_congestion_control() {
    let chosen = other_than_default();
    let server = listen();
    let to = server.local_addr().unwrap();
    let ids = Identities::new();
    let mut mesh = ids.mesh(
        "far",
        FAR,
        &[member("near", &[NEAR]), member("far", &[FAR])],
    );
    mesh.turbo = None;
    mesh.upstream_congestion = Some(chosen.clone());
    mesh.rules = vec![rule(plain(Some(&chosen)))];
    let far = Node::start(&far_config(mesh, |_| {})).unwrap();
    let at = mesh_addr(&far);
    let members = [member("near", &[NEAR]), member("far", &[FAR]).at(at)];
    let mut mesh = ids.mesh("near", NEAR, &members);
    mesh.turbo = None;
    mesh.congestion = Some(chosen.clone());
    let config = near_config(
        mesh,
        &[&["far"]],
        to.to_string().parse().unwrap(),
        |config| {
            config.forwards[0].client_congestion = Some(chosen.clone());
        },
    );
    let near = Node::start(&config).unwrap();
    let listen: SocketAddr = near.listen_addrs()[0].0;
    let _client = TcpStream::connect(listen).unwrap();
    let _served = server.accept().unwrap();
    let only = BTreeSet::from([chosen]);
    assert_eq!(controls(|c| c.local == listen), only, "the client leg");
    assert_eq!(controls(|c| c.remote == at), only, "from near to far");
    // The far relay knows who has connected after the handshake.
    wait_until("the options from far to near", || {
        controls(|c| c.local == at) == only
    });
    assert_eq!(controls(|c| c.remote == to), only, "to the destination");
}

#[test]
fn a_reload_changes_the_congestion_control_and_the_rate_of_new_legs() {
    let chosen = other_than_default();
    let ids = Identities::new();
    let mut mesh = ids.mesh(
        "far",
        FAR,
        &[member("near", &[NEAR]), member("far", &[FAR])],
    );
    mesh.turbo = None;
    let far = Node::start(&far_config(mesh, |_| {})).unwrap();
    let at = mesh_addr(&far);
    let members = [member("near", &[NEAR]), member("far", &[FAR]).at(at)];
    let mut mesh = ids.mesh("near", NEAR, &members);
    mesh.turbo = None;
    let to = "127.0.0.1:9".parse().unwrap();
    let mut config = near_config(mesh, &[&["far"]], to, |config| {
        // Each step below adds two; one above this number would be closed as soon as it is ready.
        config.mesh.as_mut().unwrap().pool.max = 8;
    });
    let near = Node::start(&config).unwrap();
    wait_until("the pool", || near.metrics().pool_ready() >= 2);
    assert!(!controls(|c| c.remote == at).contains(&chosen));

    let mesh = config.mesh.as_mut().unwrap();
    mesh.congestion = Some(chosen.clone());
    mesh.pool.min = 3;
    near.reload(&config).unwrap();
    wait_until("new connections", || {
        controls(|c| c.remote == at).contains(&chosen)
    });

    // Connections that are set up at the same time share the rate.
    let paced_at = |rate: u64| {
        let paced = connections(|c| c.remote == at);
        paced.iter().any(|c| {
            let pacing = c.info.as_ref().and_then(|i| i.pacing_rate);
            pacing.is_some_and(|pacing| (rate / 16..=rate).contains(&pacing))
        })
    };
    let mesh = config.mesh.as_mut().unwrap();
    mesh.congestion = None;
    mesh.turbo = Some(Turbo {
        rate: 7_000_000,
        ..Turbo::default()
    });
    mesh.pool.min = 5;
    near.reload(&config).unwrap();
    wait_until("connections at the rate", || paced_at(7_000_000));

    let mesh = config.mesh.as_mut().unwrap();
    mesh.rules = vec![PeerRule {
        name: "far".parse().unwrap(),
        ..rule(LegConfig {
            turbo: Some(Turbo {
                rate: 400_000,
                ..Turbo::default()
            }),
            congestion: None,
            max_rate: None,
        })
    }];
    mesh.pool.min = 7;
    near.reload(&config).unwrap();
    wait_until("connections at the peer's rate", || paced_at(400_000));
    let text = near.metrics().encode().unwrap();
    assert!(text.contains("taut_relay_pipe_events_total"), "{text}");
}

#[test]
fn a_congestion_control_that_the_kernel_lacks_is_refused_by_name() {
    let ids = Identities::new();
    let mesh = || {
        let mut mesh = ids.mesh(
            "far",
            FAR,
            &[member("near", &[NEAR]), member("far", &[FAR])],
        );
        mesh.turbo = None;
        mesh
    };
    let mut upstream = mesh();
    upstream.upstream_congestion = Some("no-such".to_owned());
    let mut default = mesh();
    default.congestion = Some("no-such".to_owned());
    let mut of_peer = mesh();
    of_peer.rules = vec![rule(plain(Some("no-such")))];
    for mesh in [upstream, default, of_peer] {
        let config = far_config(mesh, |_| {});
        let error = Node::start(&config).unwrap_err().to_string();
        assert!(error.contains("`no-such`"), "{error}");
        let errors = taut_relay::node::check(&config).errors;
        assert!(errors.iter().any(|e| e.contains("`no-such`")), "{errors:?}");
    }
}
