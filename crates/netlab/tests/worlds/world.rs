//! Worlds through their public interface.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use taut_netlab::link::counters::LinkReport;
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::link::{LinkBackend, LinkError};
use taut_netlab::units::{BitsPerSecond, Bytes};
use taut_netlab::world::{World, WorldBuilder, WorldError};

use crate::root;

fn ms(delay: u64) -> Shape {
    Shape::delay(Duration::from_millis(delay))
}

fn chain() -> World {
    let link = LinkSpec::both(ms(1));
    WorldBuilder::new("chain")
        .host("client")
        .host("relay")
        .host("server")
        .link("client", "relay", link)
        .link("relay", "server", link)
        .build()
        .unwrap()
}

/// Sends `data` from one host to another; returns the bytes that arrived and the sender's address.
fn carry(world: &World, from: &str, to: &str, v6: bool, data: &[u8]) -> (Vec<u8>, SocketAddr) {
    let host = world.host(to);
    let address: SocketAddr = match v6 {
        true => (host.addr6(), 7777).into(),
        false => (host.addr(), 7777).into(),
    };
    let listener = host.run(|| TcpListener::bind(address)).unwrap().unwrap();
    let mut sender = world
        .host(from)
        .run(|| TcpStream::connect(address))
        .unwrap()
        .unwrap();
    let (mut receiver, peer) = listener.accept().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || sender.write_all(data).unwrap());
        let mut arrived = Vec::new();
        receiver.read_to_end(&mut arrived).unwrap();
        (arrived, peer)
    })
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn bytes_cross_a_router_unchanged_over_ipv4_and_ipv6() {
    root::required();
    let world = chain();
    // A report of its groups (RFC 3810) that a host sends as its device comes up is refused if the device
    // of the other end is still down.
    carry(&world, "client", "server", false, b"x");
    let at_start = world.link_reports().unwrap();
    let data = pattern(3_000_000);
    for v6 in [false, true] {
        let (arrived, peer) = carry(&world, "client", "server", v6, &data);
        assert!(
            arrived == data,
            "{} of {} bytes arrived",
            arrived.len(),
            data.len()
        );
        let client = world.host("client");
        let own: std::net::IpAddr = if v6 {
            client.addr6().into()
        } else {
            client.addr().into()
        };
        assert_eq!(peer.ip(), own, "traffic comes from the host's own address");
    }
    for (report, at_start) in world.link_reports().unwrap().iter().zip(&at_start) {
        let report = report.since(at_start);
        assert_eq!(
            report.a_to_b.device.malformed + report.b_to_a.device.malformed,
            0
        );
        assert_eq!(
            report.a_to_b.device.refused + report.b_to_a.device.refused,
            0
        );
    }
}

#[test]
fn bytes_survive_loss_and_a_short_queue() {
    root::required();
    let rough = ms(1)
        .rate(BitsPerSecond::mega(200))
        .queue(Bytes::kilo(60))
        .loss(0.01);
    let world = WorldBuilder::new("rough")
        .host("a")
        .host("b")
        .link("a", "b", LinkSpec::both(rough).seed(7))
        .build()
        .unwrap();
    let data = pattern(4_000_000);
    for v6 in [false, true] {
        let (arrived, _) = carry(&world, "a", "b", v6, &data);
        assert!(
            arrived == data,
            "{} of {} bytes arrived",
            arrived.len(),
            data.len()
        );
    }
    let report = &world.link_reports().unwrap()[0];
    assert!(report.a_to_b.path.loss_drops > 0, "{report:?}");
}

#[test]
fn hosts_send_no_neighbour_requests() {
    root::required();
    let world = chain();
    carry(&world, "client", "server", false, b"x");
    carry(&world, "client", "server", true, b"x");
    let mut list = Command::new("ip");
    list.args(["neigh", "show"]).stdout(Stdio::piped());
    let mut list = world.host("client").spawn(list).unwrap();
    let mut text = String::new();
    list.pipes()
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(list.wait().unwrap().success());
    let resolved = text
        .lines()
        .find(|line| !line.contains("PERMANENT") && !line.contains("NOARP"));
    assert_eq!(resolved, None);
}

#[test]
fn a_process_runs_in_its_host_and_is_killed_when_its_handle_is_dropped() {
    root::required();
    let world = chain();
    let mut sleep = Command::new("sleep");
    sleep.arg("60");
    let child = world.host("relay").spawn(sleep).unwrap();
    let pid = child.id();
    let home = taut_sys::netns::NetnsId::of_process(pid);
    assert_eq!(home, Some(world.host("relay").netns().id()));
    drop(child);
    assert_eq!(taut_sys::netns::NetnsId::of_process(pid), None);
}

#[test]
fn a_world_starts_from_fixed_settings_and_applies_its_own() {
    root::required();
    let world = WorldBuilder::new("settings")
        .host("plain")
        .host("tuned")
        .link("plain", "tuned", LinkSpec::both(ms(1)))
        .sysctl_everywhere("net.ipv4.tcp_sack", "0")
        .sysctl("tuned", "net.ipv4.tcp_rmem", "4096 1000000 64000000")
        .build()
        .unwrap();
    let get = |host: &str, key: &str| world.host(host).sysctl(key).unwrap();
    assert_eq!(get("plain", "net.ipv4.tcp_rmem"), "4096 131072 6291456");
    assert_eq!(get("plain", "net.ipv4.tcp_congestion_control"), "cubic");
    assert_eq!(get("plain", "net.ipv4.ip_forward"), "0");
    assert_eq!(get("plain", "net.ipv4.tcp_sack"), "0");
    assert_eq!(get("tuned", "net.ipv4.tcp_sack"), "0");
    assert_eq!(get("tuned", "net.ipv4.tcp_rmem"), "4096 1000000 64000000");
}

#[test]
fn sysctls_of_the_whole_machine_are_rejected() {
    root::required();
    let world = chain();
    for key in [
        "kernel.hostname",
        "net.ipv4/../../kernel.hostname",
        "vm.swappiness",
    ] {
        let refused = world.host("client").set_sysctl(key, "x");
        assert!(
            matches!(refused, Err(WorldError::Sysctl { .. })),
            "{key}: {refused:?}"
        );
    }
}

#[test]
fn an_invalid_description_is_rejected_with_a_reason_before_anything_is_created() {
    let spec = LinkSpec::both(ms(1));
    let with = |shape: Shape| {
        WorldBuilder::new("w")
            .host("a")
            .host("b")
            .link("a", "b", LinkSpec::both(shape))
    };
    let builders = [
        (WorldBuilder::new("w").host("Über"), "lower-case"),
        (
            WorldBuilder::new("w").host("a").host("a"),
            "two hosts called a",
        ),
        (
            WorldBuilder::new("w").host("a").link("a", "b", spec),
            "not a host of this world",
        ),
        (
            WorldBuilder::new("w").host("a").link("a", "a", spec),
            "to itself",
        ),
        (
            WorldBuilder::new("w").sysctl("a", "net.x", "1"),
            "not a host of this world",
        ),
        (with(ms(1).loss(1.5)), "between 0 and 1"),
        (with(ms(1).rate(BitsPerSecond(0))), "carries nothing"),
        (
            with(ms(1).rate(BitsPerSecond::mega(1)).queue(Bytes(1000))),
            "one frame",
        ),
    ];
    for (builder, reason) in builders {
        match builder.build() {
            Err(WorldError::Impossible { why, .. }) => assert!(why.contains(reason), "{why}"),
            other => panic!("expected {reason:?}, got {other:?}"),
        }
    }
}

#[test]
fn netem_carries_a_world_or_the_error_names_the_link() {
    root::required();
    let shape = ms(2).rate(BitsPerSecond::mega(200));
    let built = WorldBuilder::new("netem")
        .host("a")
        .host("b")
        .link("a", "b", LinkSpec::both(shape))
        .backend(LinkBackend::Netem)
        .build();
    match built {
        Ok(world) => {
            let data = pattern(300_000);
            assert!(carry(&world, "a", "b", false, &data).0 == data);
            assert_eq!(world.link_reports().unwrap()[0].backend, "netem");
        }
        Err(WorldError::Link(LinkError::NoNetem { name, .. })) => assert_eq!(name, "a-b"),
        Err(other) => panic!("{other}"),
    }
}

/// Sends "lost" and other datagrams behind it, until so many frames are dropped that "lost" was one of them:
/// the links carry in order, and the few frames that the kernel sends of itself, such as reports of multicast
/// groups, are fewer.
fn send_until_lost(socket: &UdpSocket, to: SocketAddr, dropped: impl Fn() -> u64) {
    let enough = dropped() + 50;
    socket.send_to(b"lost", to).unwrap();
    for _ in 0..100 {
        socket.send_to(b"behind", to).unwrap();
    }
    while dropped() < enough {
        std::thread::yield_now();
    }
}

/// The first datagram that was not sent behind a lost one: those at the end may pass a restored link.
fn first_but_behind(receive: impl Fn() -> Vec<u8>) -> Vec<u8> {
    std::iter::repeat_with(receive)
        .find(|word| word != b"behind")
        .expect("receives until there is one")
}

#[test]
fn a_cut_link_carries_nothing_and_a_stream_resumes_when_it_is_restored() {
    root::required();
    let world = chain();
    let from = SocketAddr::from((world.addr("client"), 7778));
    let socket = |host, at| world.host(host).run(|| UdpSocket::bind(at)).unwrap();
    let sender = socket("client", from).unwrap();
    let at = SocketAddr::from((world.addr("server"), 7778));
    let receiver = socket("server", at).unwrap();
    let receive = || {
        let mut word = [0; 8];
        let (n, _) = receiver.recv_from(&mut word).unwrap();
        word[..n].to_vec()
    };
    sender.send_to(b"before", at).unwrap();
    assert_eq!(receive(), b"before");
    // The order of the names does not matter.
    world.cut("server", "relay", true);
    let dropped = || {
        let reports = world.link_reports().unwrap();
        reports.iter().map(|r| r.a_to_b.path.cut_drops).sum::<u64>()
    };
    send_until_lost(&sender, at, dropped);
    world.cut("relay", "server", false);
    sender.send_to(b"after", at).unwrap();
    assert_eq!(first_but_behind(receive), b"after");
    // A stream waits until the link is restored, and arrives complete.
    world.cut("relay", "server", true);
    let data = pattern(100_000);
    std::thread::scope(|scope| {
        let carried = scope.spawn(|| carry(&world, "client", "server", false, &data));
        let before = dropped();
        while dropped() == before {
            std::thread::yield_now();
        }
        world.cut("relay", "server", false);
        assert_eq!(carried.join().unwrap().0, data);
    });
}

#[test]
fn a_link_that_is_cut_one_way_carries_the_other_way() {
    root::required();
    let world = chain();
    let names = ["client", "server"];
    let at = names.map(|name| SocketAddr::from((world.addr(name), 7779)));
    let sockets = [0, 1].map(|n| {
        let bound = world.host(names[n]).run(|| UdpSocket::bind(at[n]));
        let socket = bound.unwrap().unwrap();
        // A datagram that was wrongly dropped fails the test instead of hanging it.
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        socket
    });
    let receive = |end: usize| {
        let mut word = [0; 8];
        let (n, _) = sockets[end].recv_from(&mut word).unwrap();
        word[..n].to_vec()
    };
    let drops = || {
        let reports = world.link_reports().unwrap();
        let sum = |of: fn(&LinkReport) -> u64| reports.iter().map(of).sum::<u64>();
        [
            sum(|r| r.a_to_b.path.cut_drops),
            sum(|r| r.b_to_a.path.cut_drops),
        ]
    };
    // The link was made from the relay to the server; the names are given in both orders.
    for (from, to, deaf) in [("relay", "server", 1), ("server", "relay", 0)] {
        let other = 1 - deaf;
        world.cut_one_way(from, to, true);
        send_until_lost(&sockets[other], at[deaf], || drops()[other]);
        sockets[deaf].send_to(b"heard", at[other]).unwrap();
        assert_eq!(receive(other), b"heard");
        world.cut_one_way(from, to, false);
        sockets[other].send_to(b"after", at[deaf]).unwrap();
        assert_eq!(first_but_behind(|| receive(deaf)), b"after");
    }
}

#[test]
fn sockets_without_memory_drop_segments_inside_their_window_and_take_them_once_there_is_memory() {
    root::required();
    let world = WorldBuilder::new("memory").host("a").build().unwrap();
    let Some(memory) = world.tcp_memory().unwrap() else {
        taut_sys_testing::skip::skip("no memory cgroups of version 1");
        return;
    };
    let exchange = || {
        let listener = TcpListener::bind((world.addr("a"), 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // Sockets from here on are counted in the group.
        memory.join().unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&pattern(3_000)).unwrap();
        while server.peek(&mut [0; 3_000]).unwrap() < 3_000 {}
        memory.exhaust().unwrap();
        client.write_all(&pattern(40_000)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        while dropped() == 0 {
            std::thread::yield_now();
        }
        memory.release().unwrap();
        let mut got = Vec::new();
        server.read_to_end(&mut got).unwrap();
        assert!(got == [pattern(3_000), pattern(40_000)].concat());
    };
    world.host("a").run(exchange).unwrap();
}

/// Returns how many segments the calling thread's network namespace has dropped for lack of memory.
fn dropped() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split(' ').collect()).collect();
    let at = rows[0].iter().position(|name| *name == "TCPRcvQDrop");
    rows[1][at.unwrap()].parse().unwrap()
}

#[test]
fn a_world_may_keep_the_machines_congestion_control() {
    root::required();
    let setting = "net.ipv4.tcp_congestion_control";
    let machine = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    let builder = WorldBuilder::new("control").host("client");
    let of = |builder: WorldBuilder| {
        let world = builder.build().unwrap();
        world.host("client").sysctl(setting).unwrap()
    };
    assert_eq!(of(builder.clone()), "cubic");
    assert_eq!(of(builder.keep_congestion_control()), machine.trim_end());
}
