//! Lists of members: keys that are replaced, members that are removed, what single members may do, and
//! networks in which relays need no TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use taut_mesh::hello::Hello;
use taut_mesh::members::Members;
use taut_relay::access::Sources;
use taut_relay::config::{Config, PeerRule, Removed};
use taut_relay::node::Node;
use taut_relay::outcome::session_end::End;

use crate::mesh_rig::*;
use crate::rig::*;

/// Returns whether the far relay refuses a dialler with key `own` that expects key `far`.
fn is_refused(mesh: &Mesh, own: u8, far: u8) -> bool {
    let to = mesh.server.local_addr().unwrap();
    // The dialler may have sent its hello before it is told.
    match dial(mesh.mesh_port(), &private_key(own), &private_key(far)) {
        Err(_) => true,
        Ok(mut peer) => {
            let record = peer.seal(&hello(to).encode());
            let _ = peer.stream.write_all(&record);
            peer.read_to_end().is_err()
        }
    }
}

// === keys ===

#[test]
fn the_keys_of_both_relays_are_replaced_without_a_session_lost() {
    let mesh = Mesh::new();
    mesh.wait_for_pool();
    let (mut client, mut server) = mesh.pair();
    let addr = mesh_addr(&mesh.far);
    let go_on = || {
        let (mut client, mut server) = mesh.pair();
        exchange(&mut client, &mut server, 10_000);
    };
    let list = |near: &[u8], far: &[u8]| {
        let played = member("played", &[PLAYED]);
        mesh.list_at_far(&[member("near", near), member("far", far), played]);
        go_on();
        mesh.list_at_near(&[member("near", near), member("far", far).at(addr)]);
        go_on();
    };
    // The accepting relay: its second key is added, it changes to that, and the first one is removed.
    list(&[NEAR], &[FAR, NEW_FAR]);
    mesh.ids.write_key("far.key", NEW_FAR);
    mesh.far.reload(&mesh.at_far).unwrap();
    go_on();
    list(&[NEAR], &[NEW_FAR]);
    // The dialling one.
    list(&[NEAR, NEW_NEAR], &[NEW_FAR]);
    mesh.ids.write_key("near.key", NEW_NEAR);
    mesh.near.reload(&mesh.at_near).unwrap();
    go_on();
    list(&[NEW_NEAR], &[NEW_FAR]);

    assert_eq!(mesh.far.metrics().mesh_rejected(), 0);
    assert_eq!(mesh_addr(&mesh.far), addr);
    // The session from before continues.
    exchange(&mut client, &mut server, 1 << 20);
    // The old keys are worthless now, at either end.
    assert!(is_refused(&mesh, NEAR, NEW_FAR));
    wait_until("the count", || rejected(&mesh.far, "unknown_key") == 1);
    assert!(is_refused(&mesh, PLAYED, FAR));
    mesh.nothing_dialled();
    assert!(mesh.far.metrics().ended(End::MemberRemoved) == 0);
}

#[test]
fn a_relay_keeps_its_key_and_its_list_if_the_new_files_are_faulty() {
    let mesh = Mesh::new();
    mesh.wait_for_pool();
    std::fs::write(mesh.ids.path("far.key"), "what?").unwrap();
    assert!(mesh.far.reload(&mesh.at_far).is_err());
    mesh.ids.write_key("far.key", FAR);
    for list in [
        "[[member]]\nname = \"far\"\n".to_owned(),
        // Nobody would be left, not even this relay.
        String::new(),
        member("near", &[NEAR]).to_string(),
    ] {
        std::fs::write(mesh.ids.path("far.toml"), list).unwrap();
        assert!(mesh.far.reload(&mesh.at_far).is_err());
    }
    let (mut client, mut server) = mesh.pair();
    exchange(&mut client, &mut server, 1000);
}

// === removal ===

#[test]
fn a_removed_member_loses_its_unused_connections_and_its_sessions_at_once() {
    let mesh = Mesh::new();
    mesh.wait_for_pool();
    let (mut client, mut server) = mesh.pair();
    ping(&mut client, &mut server);
    // A session of another member.
    let mut other = mesh.played();
    other.ask(&hello(mesh.server.local_addr().unwrap()));
    let mut server_of_other = accept_at(&mesh.server);

    mesh.list_at_far(&[member("far", &[FAR]), member("played", &[PLAYED])]);
    assert_eq!(read_to_rst(&mut client), b"");
    assert_eq!(read_to_rst(&mut server), b"");
    assert_eq!(mesh.far.metrics().ended(End::MemberRemoved), 1);
    wait_until("the end of its unused connections", || {
        count(&mesh.far, "taut_relay_mesh_ready") == 0
    });
    wait_until("the same at the other end", || {
        mesh.near.metrics().pool_ready() == 0
    });
    mesh.expect_reset();
    mesh.nothing_dialled();
    exchange_played(&mut other, &mut server_of_other, 100_000);
}

#[test]
fn a_member_is_removed_from_a_relay_that_drains_too() {
    let mut mesh = Mesh::new();
    mesh.wait_for_pool();
    let (mut client, mut server) = mesh.pair();
    ping(&mut client, &mut server);
    let mut other = mesh.played();
    other.ask(&hello(mesh.server.local_addr().unwrap()));
    let mut server_of_other = accept_at(&mesh.server);
    mesh.far.drain();
    mesh.list_at_far(&[member("far", &[FAR]), member("played", &[PLAYED])]);
    assert_eq!(read_to_rst(&mut client), b"");
    assert_eq!(read_to_rst(&mut server), b"");
    exchange_played(&mut other, &mut server_of_other, 100_000);
}

#[test]
fn sessions_of_a_removed_member_may_end_by_themselves() {
    let mesh = Mesh::with(
        |_| {},
        |far| far.mesh.as_mut().unwrap().removed = Removed::Drain,
    );
    mesh.wait_for_pool();
    let (mut client, mut server) = mesh.pair();
    mesh.list_at_far(&[member("far", &[FAR]), member("played", &[PLAYED])]);
    wait_until("the end of its unused connections", || {
        count(&mesh.far, "taut_relay_mesh_ready") == 0
    });
    mesh.expect_reset();
    mesh.nothing_dialled();
    exchange(&mut client, &mut server, 1 << 20);
    assert_eq!(mesh.far.metrics().ended(End::MemberRemoved), 0);
}

#[test]
fn a_relay_ends_its_sessions_through_a_member_that_is_removed() {
    let mesh = Mesh::new();
    mesh.wait_for_pool();
    let (mut client, mut server) = mesh.pair();
    ping(&mut client, &mut server);
    // A forward cannot lead through a relay that does not exist.
    mesh.ids
        .write_members("near.toml", &[member("near", &[NEAR])]);
    assert!(mesh.near.reload(&mesh.at_near).is_err());
    ping(&mut client, &mut server);
    let mut direct = mesh.at_near.clone();
    direct.forwards[0].via.clear();
    mesh.near.reload(&direct).unwrap();
    assert_eq!(read_to_rst(&mut client), b"");
    assert_eq!(read_to_rst(&mut server), b"");
    assert_eq!(mesh.near.metrics().ended(End::MemberRemoved), 1);
    wait_until("the end of its pool", || {
        mesh.near.metrics().pool_ready() == 0
    });
    let before = mesh.far.metrics().mesh_hellos();
    let (mut client, mut server) = mesh.pair();
    exchange(&mut client, &mut server, 1000);
    assert_eq!(mesh.far.metrics().mesh_hellos(), before);
}

#[test]
fn a_handshake_that_ends_after_its_key_was_removed_gives_no_connection_to_the_pool() {
    let ids = Identities::new();
    let port = listen();
    let addr = port.local_addr().unwrap();
    let known = |key| [member("near", &[NEAR]), member("far", &[key]).at(addr)];
    let mesh = ids.mesh("near", NEAR, &known(FAR));
    let config = near_config(
        mesh,
        &[&["far"]],
        "127.0.0.1:9".parse().unwrap(),
        |config| {
            let pool = &mut config.mesh.as_mut().unwrap().pool;
            (pool.min, pool.max) = (1, 1);
        },
    );
    let near = Node::start(&config).unwrap();
    let members = Members::parse(&known(FAR).map(|m| m.to_string()).concat()).unwrap();
    let late = accept_at(&port);
    late.peek(&mut [0]).unwrap();
    // The list changes while the far relay's greeting is on its way.
    ids.write_members("near.toml", &known(NEW_FAR));
    near.reload(&config).unwrap();
    // The near relay may close the connection before this end has sent all of its part.
    if let Ok(late) = accept(late, &private_key(FAR), Arc::new(members)) {
        assert!(is_closed(late));
    }
    wait_until("the end of the connection", || {
        count(&near, "taut_relay_pool_dials_outdated_total") == 1
    });
    assert_eq!(near.metrics().pool_ready(), 0);
}

#[test]
fn a_session_that_waits_for_a_relay_leaves_it_when_it_is_removed() {
    let ids = Identities::new();
    let port = listen();
    let far = member("far", &[FAR]).at(port.local_addr().unwrap());
    let mesh = ids.mesh("near", NEAR, &[member("near", &[NEAR]), far]);
    let config = near_config(
        mesh,
        &[&["far"]],
        "127.0.0.1:9".parse().unwrap(),
        |config| {
            // The dial takes longer than the test waits.
            config.timeouts.connect = 10 * PATIENCE;
            let mesh = config.mesh.as_mut().unwrap();
            (mesh.pool.min, mesh.pool.max) = (0, 0);
            mesh.removed = Removed::Drain;
        },
    );
    let near = Node::start(&config).unwrap();
    let mut client = connect(&near);
    // The handshake has begun, and is never answered.
    let silent = accept_at(&port);
    silent.peek(&mut [0]).unwrap();
    ids.write_members("near.toml", &[member("near", &[NEAR])]);
    let mut direct = config.clone();
    direct.forwards[0].via.clear();
    near.reload(&direct).unwrap();
    assert_eq!(read_to_rst(&mut client), b"");
    assert_eq!(near.metrics().ended(End::ConnectUnreachable), 1);
}

/// Waits for the end of a connection to the near relay.
fn is_closed(mut peer: Peer) -> bool {
    let waited = |e: std::io::Error| e.kind() == ErrorKind::WouldBlock;
    !peer.read_to_end().is_err_and(waited)
}

/// A relay with one client whose next relay the test plays. A key is changed while the next relay is dialled.
struct Overtaken {
    near: Node,
    next: TcpListener,
    client: TcpStream,
    /// The list of members after the change.
    members: Arc<Members>,
    /// Connections to the next relay on which the near relay began the handshake before the change.
    begun: Vec<TcpStream>,
    _ids: Identities,
}

/// The relay whose key is changed.
enum Changed {
    OfNear,
    OfNext,
}

impl Overtaken {
    fn new(key: Changed, begun: usize, adjust: impl FnOnce(&mut Config)) -> Self {
        let ids = Identities::new();
        let next = listen();
        let addr = next.local_addr().unwrap();
        let known = |near: &[u8], far: &[u8]| [member("near", near), member("far", far).at(addr)];
        let mesh = ids.mesh("near", NEAR, &known(&[NEAR], &[FAR]));
        let to = "127.0.0.1:9".parse().unwrap();
        let config = near_config(mesh, &[&["far"]], to, adjust);
        let near = Node::start(&config).unwrap();
        let client = connect(&near);
        let begun: Vec<_> = (0..begun).map(|_| accept_at(&next)).collect();
        for stream in &begun {
            stream.peek(&mut [0]).unwrap();
        }
        let both = match key {
            Changed::OfNear => {
                ids.write_key("near.key", NEW_NEAR);
                known(&[NEAR, NEW_NEAR], &[FAR])
            }
            Changed::OfNext => known(&[NEAR], &[FAR, NEW_FAR]),
        };
        ids.write_members("near.toml", &both);
        near.reload(&config).unwrap();
        let members = Members::parse(&both.map(|m| m.to_string()).concat());
        Self {
            near,
            next,
            client,
            members: Arc::new(members.unwrap()),
            begun,
            _ids: ids,
        }
    }

    /// Answers the next dial with this key.
    fn answer(&self, key: u8) -> std::io::Result<Peer> {
        self.answer_at(accept_at(&self.next), key)
    }

    fn answer_at(&self, stream: TcpStream, key: u8) -> std::io::Result<Peer> {
        accept(stream, &private_key(key), self.members.clone())
    }

    /// Answers the next dial with this key, and the client's session through it.
    fn serve(&mut self, key: u8) {
        let mut peer = self.answer(key).unwrap();
        assert!(!peer.read_some().unwrap().is_empty(), "no hello");
        peer.send(b"hello");
        self.client.read_exact(&mut [0; 5]).unwrap();
    }

    /// Answers the handshakes that have begun with this key, which the near relay does not expect there.
    fn answer_begun(&mut self, key: u8) {
        for stream in std::mem::take(&mut self.begun) {
            assert!(self.answer_at(stream, key).is_err());
        }
    }

    /// Returns the dials that were outdated, those that failed, and the peers that were rejected.
    fn counts(&self) -> [u64; 3] {
        ["dials_outdated", "dials_failed", "peers_rejected"]
            .map(|name| count(&self.near, &format!("taut_relay_pool_{name}_total")))
    }
}

#[test]
fn a_session_survives_dials_that_began_before_the_new_key_was_listed() {
    // Two for the pool and one for the session, which would fail with the second of them.
    let mut mesh = Overtaken::new(Changed::OfNext, 3, |config| {
        config.mesh.as_mut().unwrap().pool.max = 2;
    });
    mesh.answer_begun(NEW_FAR);
    mesh.serve(NEW_FAR);
    assert_eq!(mesh.counts(), [3, 0, 0]);
}

#[test]
fn a_session_survives_a_dial_that_began_with_the_former_key_of_its_relay() {
    let mut mesh = Overtaken::new(Changed::OfNear, 1, no_pool);
    let begun = mesh.begun.remove(0);
    // The near relay may close the connection before this end has sent all of its part.
    if let Ok(former) = mesh.answer_at(begun, FAR) {
        assert!(is_closed(former));
    }
    mesh.serve(FAR);
    assert_eq!(mesh.counts(), [1, 0, 0]);
}

#[test]
fn a_relay_that_proves_none_of_the_listed_keys_is_rejected_from_the_second_time_on() {
    let mut mesh = Overtaken::new(Changed::OfNext, 1, no_pool);
    mesh.answer_begun(PLAYED);
    // The session dials twice.
    assert!(mesh.answer(PLAYED).is_err());
    assert!(mesh.answer(PLAYED).is_err());
    assert_eq!(read_to_rst(&mut mesh.client), b"");
    assert_eq!(mesh.counts(), [1, 2, 2]);
}

// === rules ===

fn rule() -> PeerRule {
    PeerRule {
        name: "played".parse().unwrap(),
        allow: None,
        deny: Vec::new(),
        clients: Sources::default(),
        leg: None,
    }
}

/// Returns relays of which the far one has this rule for the played one.
fn with_rule(rule: PeerRule) -> Mesh {
    Mesh::with(no_pool, |far| {
        far.mesh.as_mut().unwrap().rules.push(rule);
    })
}

/// Asserts that the far relay refuses this hello of the played relay, for this cause.
fn expect_refusal(mesh: &Mesh, hello: &Hello, cause: &str) {
    let mut peer = mesh.played();
    peer.ask(hello);
    assert!(peer.read_to_end().is_err());
    let name = format!("taut_relay_mesh_refused_total{{cause=\"{cause}\"}}");
    assert_eq!(count(&mesh.far, &name), 1);
    mesh.nothing_dialled();
}

/// Asserts that the far relay grants this hello of the played relay.
fn expect_session(mesh: &Mesh, hello: &Hello) {
    let mut peer = mesh.played();
    peer.ask(hello);
    exchange_played(&mut peer, &mut accept_at(&mesh.server), 1000);
}

/// Asserts that the rule does not concern the near relay.
fn expect_session_of_near(mesh: &Mesh) {
    let (mut client, mut server) = mesh.pair();
    exchange(&mut client, &mut server, 1000);
}

#[test]
fn a_member_with_destinations_of_its_own_reaches_no_others() {
    let mesh = with_rule(PeerRule {
        allow: Some(vec!["127.0.0.1/32:9".parse().unwrap()]),
        ..rule()
    });
    let to = mesh.server.local_addr().unwrap();
    expect_refusal(&mesh, &hello(to), "destination");
    expect_session_of_near(&mesh);
    // Its own may be more than those of the mesh.
    let mesh = Mesh::with(no_pool, |far| {
        let far = far.mesh.as_mut().unwrap();
        far.allow.clear();
        far.rules.push(PeerRule {
            allow: Some(vec!["127.0.0.1/32:*".parse().unwrap()]),
            ..rule()
        });
    });
    expect_session(&mesh, &hello(mesh.server.local_addr().unwrap()));
    mesh.expect_reset();
    mesh.nothing_dialled();
}

#[test]
fn a_member_may_be_denied_destinations_that_others_reach() {
    let server = listen();
    let denied = server.local_addr().unwrap();
    let mesh = with_rule(PeerRule {
        deny: vec![format!("127.0.0.1/32:{}", denied.port()).parse().unwrap()],
        ..rule()
    });
    expect_refusal(&mesh, &hello(denied), "destination");
    expect_session(&mesh, &hello(mesh.server.local_addr().unwrap()));
    expect_session_of_near(&mesh);
}

#[test]
fn a_member_speaks_only_for_the_clients_that_it_may_speak_for() {
    let clients = vec!["192.0.2.0/24".parse().unwrap()];
    let mesh = with_rule(PeerRule {
        clients: Sources::new(Some(clients), Vec::new()).unwrap(),
        ..rule()
    });
    let to = mesh.server.local_addr().unwrap();
    let of = |source: &str| Hello {
        source: source.parse().unwrap(),
        ..hello(to)
    };
    expect_refusal(&mesh, &of("198.51.100.1:1"), "client");
    expect_session(&mesh, &of("192.0.2.1:1"));
    // The clients of the near relay are on loopback.
    expect_session_of_near(&mesh);
}

#[test]
fn a_rule_that_a_reload_adds_applies_to_the_next_session() {
    let mesh = Mesh::without_pool();
    let to = mesh.server.local_addr().unwrap();
    expect_session(&mesh, &hello(to));
    let mut config = mesh.at_far.clone();
    config.mesh.as_mut().unwrap().rules.push(PeerRule {
        allow: Some(Vec::new()),
        ..rule()
    });
    mesh.far.reload(&config).unwrap();
    // Every worker adopts it in its own time.
    wait_until("the rule", || {
        mesh.played().ask(&hello(to));
        count(
            &mesh.far,
            "taut_relay_mesh_refused_total{cause=\"destination\"}",
        ) > 0
    });
}

// === trusted networks ===

/// A mesh whose relays trust loopback; the far one takes 127.0.0.1 for the near relay and 127.0.0.9
/// for the played one.
fn trusting() -> Mesh {
    let trust = |config: &mut taut_relay::config::Config| {
        let mesh = config.mesh.as_mut().unwrap();
        mesh.trusted_networks = vec!["127.0.0.0/8".parse().unwrap()];
    };
    let mesh = Mesh::with(
        |near| {
            no_pool(near);
            trust(near);
        },
        trust,
    );
    mesh.list_at_far(&[
        member("near", &[NEAR]).at("127.0.0.1:1"),
        member("far", &[FAR]),
        member("played", &[PLAYED]).at("127.0.0.9:1"),
    ]);
    mesh
}

/// Sends a hello without TLS and `ping` after it, and waits until the relay closes or sends.
fn ask_plainly(mesh: &Mesh, from: [u8; 4]) -> TcpStream {
    let mut stream = connect_from(from, mesh_addr(&mesh.far)).unwrap();
    let to = mesh.server.local_addr().unwrap();
    let _ = stream.write_all(&[&hello(to).encode()[..], b"ping"].concat());
    stream
}

#[test]
fn relays_in_a_trusted_network_need_no_tls() {
    let mesh = trusting();
    let (mut client, mut server) = mesh.pair();
    exchange(&mut client, &mut server, 1 << 20);
    let mut plain = ask_plainly(&mesh, [127, 0, 0, 9]);
    let mut server = accept_at(&mesh.server);
    server.read_exact(&mut [0; 4]).unwrap();
    exchange(&mut plain, &mut server, 100_000);
    // TLS is welcome, and then the address does not matter.
    let stream = connect_from([127, 0, 0, 10], mesh_addr(&mesh.far)).unwrap();
    let mut peer = dial(stream, &private_key(PLAYED), &private_key(FAR)).unwrap();
    peer.ask(&hello(mesh.server.local_addr().unwrap()));
    exchange_played(&mut peer, &mut accept_at(&mesh.server), 1000);
}

#[test]
fn a_network_that_is_no_longer_trusted_loses_its_unused_plain_connections() {
    let mut mesh = trusting();
    let at_far = |name| count(&mesh.far, name);
    let mut idle = connect_from([127, 0, 0, 9], mesh_addr(&mesh.far)).unwrap();
    // The address is the proof.
    wait_until("readiness", || at_far("taut_relay_mesh_ready") == 1);
    assert_eq!(at_far("taut_relay_mesh_unproven"), 0);

    // The dialler replaces its plain connections.
    let pool = &mut mesh.at_near.mesh.as_mut().unwrap().pool;
    (pool.min, pool.max) = (2, 2);
    mesh.near.reload(&mesh.at_near).unwrap();
    // The dialler may have them before the acceptor.
    wait_until("the pool", || at_far("taut_relay_mesh_ready") == 3);
    mesh.wait_for_pool();
    let before = at_far("taut_relay_mesh_accepted_total");
    mesh.at_near.mesh.as_mut().unwrap().trusted_networks.clear();
    mesh.near.reload(&mesh.at_near).unwrap();
    wait_until("other connections", || {
        at_far("taut_relay_mesh_accepted_total") == before + 2
    });
    // The acceptor closes those that are plain.
    mesh.at_far.mesh.as_mut().unwrap().trusted_networks.clear();
    mesh.far.reload(&mesh.at_far).unwrap();
    assert_eq!(read_to_rst(&mut idle), b"");
    wait_until("readiness", || {
        count(&mesh.far, "taut_relay_mesh_ready") == 2
    });
    let (mut client, mut server) = mesh.pair();
    exchange(&mut client, &mut server, 1000);
}

#[test]
fn a_hello_without_tls_from_an_address_of_no_member_is_refused() {
    let mesh = trusting();
    assert_eq!(
        read_to_the_end(&mut ask_plainly(&mesh, [127, 0, 0, 10])),
        b""
    );
    assert_eq!(rejected(&mesh.far, "unprotected"), 1);
    mesh.nothing_dialled();
}

#[test]
fn a_hello_without_tls_from_outside_of_a_trusted_network_is_refused() {
    let mesh = Mesh::without_pool();
    mesh.list_at_far(&[
        member("near", &[NEAR]),
        member("far", &[FAR]),
        member("played", &[PLAYED]).at("127.0.0.9:1"),
    ]);
    assert_eq!(
        read_to_the_end(&mut ask_plainly(&mesh, [127, 0, 0, 9])),
        b""
    );
    assert_eq!(rejected(&mesh.far, "unprotected"), 1);
    mesh.nothing_dialled();
}

#[test]
fn a_relay_dials_without_tls_only_into_a_trusted_network() {
    for (trusted, first) in [
        (vec!["127.0.0.1/32"], b'\r'),
        (vec!["127.0.0.2/32"], 22),
        (vec![], 22),
    ] {
        let ids = Identities::new();
        let port = listen();
        let far = member("far", &[FAR]).at(port.local_addr().unwrap());
        let mesh = ids.mesh("near", NEAR, &[member("near", &[NEAR]), far]);
        let to = "127.0.0.1:9".parse().unwrap();
        let config = near_config(mesh, &[&["far"]], to, |config| {
            no_pool(config);
            let trusted = trusted.iter().map(|net| net.parse().unwrap());
            config.mesh.as_mut().unwrap().trusted_networks = trusted.collect();
        });
        let near = Node::start(&config).unwrap();
        let _client = connect(&near);
        let mut begin = [0];
        accept_at(&port).read_exact(&mut begin).unwrap();
        assert_eq!(begin, [first], "{trusted:?}");
    }
}
