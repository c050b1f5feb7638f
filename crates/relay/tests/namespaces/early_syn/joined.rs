//! Upstream legs that are dialled at the SYN, and joined with their clients.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::world::{World, WorldBuilder};
use taut_relay::config::{Config, Forward};
use taut_relay::early_syn::Limits;
use taut_relay::metrics::Metrics;
use taut_relay::node::Node;

use super::flood::forge;
use super::rig::{LINK, Net, PATIENCE, RELAY};

use crate::members::{Identities, member};
use crate::wait::wait_until;

const PORT: u16 = 8080;

/// Returns a metric of the node, summed over its labels.
pub(crate) fn figure(metrics: &Metrics, name: &str) -> u64 {
    let text = metrics.encode().unwrap();
    text.lines()
        .filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|l| l.starts_with([' ', '{']))
        })
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

/// Returns how many SYNs the program has reported, or had no room to report.
fn events(metrics: &Metrics) -> u64 {
    figure(metrics, "taut_relay_early_syns_total")
        + figure(
            metrics,
            "taut_relay_early_packets_total{exit=\"ring_full\"}",
        )
}

/// Starts a relay with early SYN in front of `server`.
fn relay(listen: SocketAddr, server: SocketAddr, workers: u16) -> Node {
    let to = server.to_string().parse().unwrap();
    let mut forward = Forward::new(vec![listen.to_string().parse().unwrap()], to);
    forward.early_syn = true;
    let mut config = Config::new(vec![forward]);
    config.workers = Some(workers);
    config.max_sessions = Some(256);
    config.max_sessions_per_source = config.max_sessions;
    Node::start(&config).unwrap()
}

/// A client so far away that its handshake takes longer than anything the relay does.
fn world(name: &str) -> World {
    let link = LinkSpec::both(Shape::delay(Duration::from_millis(150)));
    WorldBuilder::new(name)
        .host("client")
        .host("relay")
        .link("client", "relay", link)
        .build()
        .unwrap()
}

#[test]
fn the_server_is_connected_to_before_the_client_is_accepted_and_every_byte_arrives() {
    const CLIENTS: usize = 40;
    let world = world("early-joined");
    let (client, host) = (world.host("client"), world.host("relay"));
    let listen = SocketAddr::from((host.addr(), PORT));
    let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
    let server = host.run(bind).unwrap();
    let to = server.local_addr().unwrap();
    // More than one worker, so that most clients are accepted by another worker than the one that
    // has their leg.
    let node = host.run(|| relay(listen, to, 4)).unwrap();

    std::thread::scope(|s| {
        let served = s.spawn(|| {
            for _ in 0..CLIENTS {
                let (mut stream, _) = server.accept().unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut said = Vec::new();
                stream.read_to_end(&mut said).unwrap();
                stream.write_all(&said).unwrap();
            }
        });
        let connect = |i: usize| {
            let mut stream = TcpStream::connect(listen).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let said = vec![i as u8; 1000 + i];
            stream.write_all(&said).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).unwrap();
            assert_eq!(heard, said);
        };
        let all: Vec<_> = (0..CLIENTS)
            .map(|i| s.spawn(move || client.run(|| connect(i)).unwrap()))
            .collect();
        all.into_iter().for_each(|one| one.join().unwrap());
        served.join().unwrap();
    });
    let metrics = node.metrics();
    assert_eq!(
        figure(&metrics, "taut_relay_early_begun_total"),
        CLIENTS as u64
    );
    assert_eq!(
        figure(&metrics, "taut_relay_early_joined_total"),
        CLIENTS as u64
    );
    assert_eq!(
        figure(&metrics, "taut_relay_accepted_total"),
        CLIENTS as u64
    );
    wait_until("the end of all", || metrics.sessions() == 0);
}

#[test]
fn a_server_that_refuses_resets_the_client_and_leaves_no_session() {
    let world = world("early-refused");
    let (client, host) = (world.host("client"), world.host("relay"));
    let listen = SocketAddr::from((host.addr(), PORT));
    // Nobody listens there.
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    let node = host.run(|| relay(listen, nobody, 2)).unwrap();
    let connect = || {
        let mut stream = TcpStream::connect(listen).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read(&mut [0]).unwrap_err().kind()
    };
    let end = client.run(connect).unwrap();
    assert_eq!(end, std::io::ErrorKind::ConnectionReset);
    let metrics = node.metrics();
    wait_until("the end", || metrics.sessions() == 0);
}

#[test]
fn forged_syns_cause_a_bounded_number_of_connections_which_are_closed() {
    const FORGED: u32 = 5000;
    let net = Net::new();
    let to = SocketAddrV4::new(RELAY, PORT);
    let server = net
        .relay
        .run(|| TcpListener::bind("127.0.0.1:0").unwrap())
        .unwrap();
    let addr = server.local_addr().unwrap();
    let mut node = net.relay.run(|| relay(to.into(), addr, 2)).unwrap();
    let metrics = node.metrics();
    let begun_at = Instant::now();
    forge(&net, to, 0, FORGED);
    wait_until("the events", || events(&metrics) == u64::from(FORGED));
    // A client that does not come leaves its place after this time.
    let ttl = Limits::default().ttl.as_secs();
    let places = 256 * (begun_at.elapsed().as_secs() / ttl + 1);
    // The program's counter runs ahead of the workers, and each leg that they dial is reset when
    // its client has not come.
    let begun = || figure(&metrics, "taut_relay_early_begun_total");
    wait_until("the last to be given up", || {
        let unused = figure(&metrics, "taut_relay_early_unused_total");
        unused > 0 && unused == begun()
    });
    let begun = begun();
    assert!((1..=places).contains(&begun), "{begun} set up");
    assert_eq!(metrics.sessions(), 0);
    assert_eq!(figure(&metrics, "taut_relay_accepted_total"), 0);
    node.drain();
}

#[test]
fn no_upstream_leg_outlives_its_client_also_where_accept_comes_before_the_syns_report() {
    const CLIENTS: usize = 200;
    // Without delay, the handshake is often over before the event of its SYN has been read.
    let net = Net::new();
    let server = net
        .relay
        .run(|| TcpListener::bind("127.0.0.1:0").unwrap())
        .unwrap();
    let to = server.local_addr().unwrap();
    let listen = SocketAddr::from((RELAY, PORT));
    let node = net.relay.run(|| relay(listen, to, 1)).unwrap();
    let metrics = node.metrics();
    for _ in 0..CLIENTS {
        let client = net.connect(listen);
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    }
    let all = |name: &str| figure(&metrics, &format!("taut_relay_{name}_total"));
    wait_until(
        "the clients to be accepted, and every leg joined or given up",
        || {
            all("accepted") == CLIENTS as u64
                && all("early_begun") == all("early_joined") + all("early_unused")
                && metrics.sessions() == 0
        },
    );
    // The connections that the relay made are in the listener's queue by now, and must end.
    server.set_nonblocking(true).unwrap();
    let mut met = 0;
    while let Ok((mut leg, _)) = server.accept() {
        leg.set_read_timeout(Some(PATIENCE)).unwrap();
        leg.set_nonblocking(false).unwrap();
        let end = leg.read(&mut [0]);
        assert!(
            !matches!(&end, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock),
            "a leg is left without a client"
        );
        met += 1;
    }
    assert!(met > 0, "the relay has connected to nobody");
}

#[test]
fn forged_syns_through_a_silent_relay_cause_no_more_dials_than_the_pool_may_hold() {
    const ROUNDS: u32 = 8;
    const FORGED: u32 = 500;
    const POOL: u32 = 4;
    let net = Net::new();
    // No host has this address, so the SYNs get no answer.
    net.ip(
        &net.relay,
        &format!("neigh add 10.9.0.77 lladdr 02:00:00:00:00:77 dev {LINK}"),
    );
    let ids = Identities::new();
    let silent = member("silent", &[2]).at("10.9.0.77:7000");
    let mut mesh = ids.mesh("relay", 1, &[member("relay", &[1]), silent]);
    let to = SocketAddrV4::new(RELAY, PORT);
    let mut forward = Forward::new(
        vec![to.to_string().parse().unwrap()],
        "10.0.0.1:80".parse().unwrap(),
    );
    forward.early_syn = true;
    forward.via = vec![vec!["silent".parse().unwrap()]];
    let mut config = Config::new(vec![forward]);
    config.workers = Some(1);
    config.max_sessions = Some(100);
    (mesh.pool.min, mesh.pool.max) = (0, POOL);
    mesh.turbo = None;
    config.mesh = Some(mesh);
    let node = net.relay.run(|| Node::start(&config).unwrap()).unwrap();
    let metrics = node.metrics();
    let mut next = 0;
    for round in 1..=ROUNDS {
        // From other addresses each time, so that they are not taken for retransmissions.
        next = forge(&net, to, next, FORGED);
        wait_until("the reports", || {
            events(&metrics) == u64::from(round * FORGED)
        });
        // The relay's only connections are legs to the other relay, in this network namespace.
        let mut dials = 0;
        wait_until("the first dial", || {
            dials = net.sockets(&net.relay, "syn-sent");
            dials > 0
        });
        assert!(dials <= POOL as usize, "{dials} dials under way");
    }
}

/// A leg that is begun at the SYN and protected, and a route that fails before another one works.
#[test]
fn early_legs_through_relays_carry_every_byte_also_where_the_first_relay_is_dead() {
    const CLIENTS: usize = 20;
    for (name, first_is_dead) in [("early-mesh", false), ("early-ways", true)] {
        let world = world(name);
        let (client, host) = (world.host("client"), world.host("relay"));
        let listen = SocketAddr::from((host.addr(), PORT));
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let server = host.run(bind).unwrap();
        let to = server.local_addr().unwrap();

        let ids = Identities::new();
        let known = [member("near", &[1]), member("far", &[2])];
        let mut mesh = ids.mesh("far", 2, &known);
        mesh.listen = vec!["127.0.0.1:0".parse().unwrap()];
        mesh.allow = vec!["127.0.0.1/32:*".parse().unwrap()];
        mesh.turbo = None;
        let mut config = Config::new(Vec::new());
        config.workers = Some(1);
        config.max_sessions = Some(256);
        config.mesh = Some(mesh);
        let far = host.run(|| Node::start(&config).unwrap()).unwrap();

        let known = [
            member("near", &[1]),
            // Nobody listens there.
            member("first", &[3]).at("127.0.0.1:1"),
            member("far", &[2]).at(far.mesh_addrs()[0].0),
        ];
        let listeners = vec![listen.to_string().parse().unwrap()];
        let mut forward = Forward::new(listeners, to.to_string().parse().unwrap());
        forward.early_syn = true;
        let route = |relay: &str| vec![relay.parse().unwrap()];
        forward.via = match first_is_dead {
            false => vec![route("far")],
            true => vec![route("first"), route("far")],
        };
        let mut mesh = ids.mesh("near", 1, &known);
        mesh.pool.min = 4;
        mesh.turbo = None;
        config.forwards = vec![forward];
        config.workers = Some(2);
        config.mesh = Some(mesh);
        let near = host.run(|| Node::start(&config).unwrap()).unwrap();
        wait_until("the pool", || near.metrics().pool_ready() >= 4);

        std::thread::scope(|s| {
            s.spawn(|| {
                for _ in 0..CLIENTS {
                    let (mut stream, _) = server.accept().unwrap();
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    s.spawn(move || {
                        let mut said = Vec::new();
                        stream.read_to_end(&mut said).unwrap();
                        stream.write_all(&said).unwrap();
                    });
                }
            });
            let connect = |i: usize| {
                let mut stream = TcpStream::connect(listen).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let said = vec![i as u8; 1000 + i];
                stream.write_all(&said).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let mut heard = Vec::new();
                stream.read_to_end(&mut heard).unwrap();
                assert_eq!(heard, said);
            };
            for i in 0..CLIENTS {
                s.spawn(move || client.run(|| connect(i)).unwrap());
            }
        });
        assert_eq!(far.metrics().mesh_hellos(), CLIENTS as u64);
        let joined = figure(&near.metrics(), "taut_relay_early_joined_total");
        let fall_backs = figure(&near.metrics(), "taut_relay_fall_backs_total");
        match first_is_dead {
            false => assert!(joined > 0 && fall_backs == 0),
            // A relay that cannot be reached is passed over at the SYN already.
            true => assert!(joined > 0 && fall_backs == CLIENTS as u64),
        }
        wait_until("the end of all", || near.metrics().sessions() == 0);
    }
}
