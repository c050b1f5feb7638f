//! Alternative routes through the mesh, and the direct path as the last resort.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use taut_relay::config::Config;
use taut_relay::node::Node;

use crate::mesh_rig::*;
use crate::rig::*;

const FIRST: u8 = 5;

/// A near relay whose first route leads through the relay `first` and the second one through `far`.
struct Ways {
    ids: Identities,
    near: Node,
    far: Node,
    server: TcpListener,
}

impl Ways {
    /// `first` is dialled at this address and expected to have key [`FIRST`].
    fn new(first: SocketAddr, ids: Identities, adjust: impl FnOnce(&mut Config)) -> Self {
        let server = listen();
        let far = Node::start(&far_config(ids.mesh("far", FAR, &known_to_far()), |_| {})).unwrap();
        let known = [
            member("near", &[NEAR]),
            member("first", &[FIRST]).at(first),
            member("far", &[FAR]).at(mesh_addr(&far)),
        ];
        let mesh = ids.mesh("near", NEAR, &known);
        let to = destination(server.local_addr().unwrap());
        let config = near_config(mesh, &[&["first"], &["far"]], to, adjust);
        let near = Node::start(&config).unwrap();
        Self {
            ids,
            near,
            far,
            server,
        }
    }

    /// Asserts that sessions work, and that the second route carries them.
    fn expect_the_second(&self) {
        for done in 1..=3 {
            let mut client = connect(&self.near);
            exchange(&mut client, &mut accept_at(&self.server), 10_000);
            assert_eq!(self.far.metrics().mesh_hellos(), done);
            assert_eq!(count(&self.near, "taut_relay_fall_backs_total"), done);
        }
    }
}

/// Starts the relay `first` with this key, which knows these members besides itself.
fn start_first(ids: &Identities, key: u8, members: Vec<Entry>) -> Node {
    let mut known = members;
    known.push(member("first", &[key]));
    Node::start(&far_config(ids.mesh("first", key, &known), |_| {})).unwrap()
}

/// Drains a relay, and waits until it accepts no more, also on the connections in the pools of others.
fn drain(relay: &mut Node) {
    let addr = mesh_addr(relay);
    relay.drain();
    wait_until("the end of its port", || {
        std::net::TcpStream::connect(addr).is_err()
    });
    // In this order: a connection of another worker that was accepted last becomes ready first, and a session
    // that takes it is served.
    wait_until("the end of its connections", || {
        count(relay, "taut_relay_mesh_unproven") == 0 && count(relay, "taut_relay_mesh_ready") == 0
    });
}

#[test]
fn the_first_route_that_works_is_taken() {
    let ids = Identities::new();
    let first = start_first(&ids, FIRST, vec![member("near", &[NEAR])]);
    let ways = Ways::new(mesh_addr(&first), ids, |near| {
        near.mesh.as_mut().unwrap().pool.patience = PATIENCE;
    });
    let mut client = connect(&ways.near);
    exchange(&mut client, &mut accept_at(&ways.server), 10_000);
    assert_eq!(first.metrics().mesh_hellos(), 1);
    assert_eq!(ways.far.metrics().mesh_hellos(), 0);
    assert_eq!(count(&ways.near, "taut_relay_fall_backs_total"), 0);
}

#[test]
fn a_session_goes_around_a_relay_that_is_dead() {
    let ways = Ways::new(refusing(), Identities::new(), |_| {});
    ways.expect_the_second();
}

#[test]
fn a_session_goes_around_a_relay_that_does_not_answer() {
    // The kernel accepts; nobody else does.
    let silent = listen();
    let ways = Ways::new(silent.local_addr().unwrap(), Identities::new(), |near| {
        // Of a dial; the last route has all the time that it needs.
        near.mesh.as_mut().unwrap().pool.patience = Duration::from_millis(250);
        near.timeouts.connect = Duration::from_secs(600);
    });
    ways.expect_the_second();
}

#[test]
fn a_relay_that_answers_no_dial_is_avoided_before_a_session_has_waited_for_it() {
    let silent = listen();
    let mut of_both = None;
    let ways = Ways::new(silent.local_addr().unwrap(), Identities::new(), |near| {
        let patience = Duration::from_secs(600);
        near.timeouts.connect = patience;
        near.workers = Some(1);
        near.mesh.as_mut().unwrap().pool.patience = patience;
        of_both = Some(near.clone());
        // The relay loses its patience before it knows of the second route: a handshake of a busy machine
        // may take as long.
        near.forwards[0].via.truncate(1);
        near.mesh.as_mut().unwrap().pool.patience = Duration::from_millis(50);
    });
    wait_until("a doubt", || {
        count(&ways.near, "taut_relay_pool_dials_slow_total") > 0
    });
    ways.near.reload(&of_both.unwrap()).unwrap();
    wait_until("the pool of the second", || {
        ways.near.metrics().pool_ready() >= 2
    });
    ways.expect_the_second();
    let of_the_second = count(&ways.near, "taut_relay_pool_hits_total")
        + count(&ways.near, "taut_relay_pool_misses_total");
    assert_eq!(of_the_second, 3, "no session has asked for the first");
}

#[test]
fn a_session_goes_around_a_relay_with_another_key() {
    let ids = Identities::new();
    let first = start_first(&ids, 77, vec![member("near", &[NEAR])]);
    let ways = Ways::new(mesh_addr(&first), ids, |_| {});
    ways.expect_the_second();
    assert_eq!(first.metrics().mesh_hellos(), 0);
}

#[test]
fn a_session_goes_around_a_relay_that_does_not_know_this_one() {
    let ids = Identities::new();
    let first = start_first(&ids, FIRST, Vec::new());
    let ways = Ways::new(mesh_addr(&first), ids, |_| {});
    ways.expect_the_second();
    assert_eq!(first.metrics().mesh_hellos(), 0);
}

#[test]
fn a_session_goes_around_a_relay_that_drains() {
    let ids = Identities::new();
    let mut first = start_first(&ids, FIRST, vec![member("near", &[NEAR])]);
    let ways = Ways::new(mesh_addr(&first), ids, |_| {});
    let mut client = connect(&ways.near);
    let mut server = accept_at(&ways.server);
    assert_eq!(first.metrics().mesh_hellos(), 1);
    drain(&mut first);
    ways.expect_the_second();
    // Its sessions end by themselves.
    exchange(&mut client, &mut server, 1 << 20);
}

#[test]
fn a_session_of_a_route_that_fails_keeps_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let [near, far] = ["near", "far"].map(|name| dir.path().join(name));
    let ids = Identities::new();
    let server = listen();
    let at_far = far_config(ids.mesh("far", FAR, &known_to_far()), |config| {
        log_to(config, &far);
    });
    let far_relay = Node::start(&at_far).unwrap();
    let known = [
        member("near", &[NEAR]),
        member("first", &[FIRST]).at(refusing()),
        member("far", &[FAR]).at(mesh_addr(&far_relay)),
    ];
    let to = destination(server.local_addr().unwrap());
    let mesh = ids.mesh("near", NEAR, &known);
    let config = near_config(mesh, &[&["first"], &["far"]], to, |config| {
        log_to(config, &near);
    });
    let near_relay = Node::start(&config).unwrap();
    exchange(&mut connect(&near_relay), &mut accept_at(&server), 1000);
    let [near, far] = [near, far].map(|path| crate::session_log::records(&path, 1).remove(0));
    assert_eq!(near["session"], far["session"]);
    // The relay that carried it, not the one that was tried first.
    assert_eq!(near["relay"], "far");
    assert_eq!(near["address"], mesh_addr(&far_relay).to_string());
}

#[test]
fn the_direct_path_is_the_last_resort() {
    let ids = Identities::new();
    let mut ways = Ways::new(refusing(), ids, |near| near.forwards[0].direct = true);
    ways.expect_the_second();
    drain(&mut ways.far);
    for _ in 0..2 {
        let mut client = connect(&ways.near);
        exchange(&mut client, &mut accept_at(&ways.server), 10_000);
    }
    assert_eq!(ways.far.metrics().mesh_hellos(), 3);
    // Three to the second route, and two from there to the direct path.
    let past_first = 3 + 2;
    assert_eq!(
        count(&ways.near, "taut_relay_fall_backs_total"),
        past_first + 2
    );
    drop(ways.ids);
}

#[test]
fn without_a_route_that_works_the_client_is_reset() {
    let mut ways = Ways::new(refusing(), Identities::new(), |_| {});
    drain(&mut ways.far);
    expect_reset(ways.near.listen_addrs()[0].0);
    wait_until("the end", || ways.near.metrics().sessions() == 0);
}
