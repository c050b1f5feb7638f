//! Which SYNs are seen, and which are not.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use taut_relay::early_syn::{Devices, EarlySyn, EarlySynError, Exit, FourTuple, Watch};
use taut_sys::tap::{Tap, VnetHeader};

use super::rig::{LINK, Net, PATIENCE, RELAY, RELAY6, event_of};

#[test]
fn a_syn_is_seen_before_its_connection_is_accepted_and_names_it() {
    let net = Net::new();
    for addr in [SocketAddr::from((RELAY, 80)), (RELAY6, 80).into()] {
        let listener = net.listen(addr);
        let mut watch = net.watch(&[addr]);
        let client = net.connect(addr);
        let events = watch.events(1);
        assert_eq!(events, [event_of(&client)]);
        let (accepted, peer) = listener.accept().unwrap();
        let joined = FourTuple::new(peer, accepted.local_addr().unwrap());
        assert_eq!(events[0].connection(), joined);
    }
}

#[test]
fn link_local_clients_are_joined_though_accept_names_their_device_and_a_syn_does_not() {
    let net = Net::new();
    net.ip(
        &net.client,
        &format!("address add fe80::9:1/64 dev {LINK} nodad"),
    );
    net.ip(
        &net.relay,
        &format!("address add fe80::9:2/64 dev {LINK} nodad"),
    );
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 80));
    let listener = net.listen(any);
    let mut watch = net.watch(&[any]);
    let index = net
        .client
        .run(|| nix::net::if_::if_nametoindex(LINK))
        .unwrap()
        .unwrap();
    let relay = format!("[fe80::9:2%{index}]:80").parse().unwrap();
    let _client = net.connect(relay);
    let events = watch.events(1);
    let (accepted, peer) = listener.accept().unwrap();
    let joined = FourTuple::new(peer, accepted.local_addr().unwrap());
    assert_eq!(events[0].connection(), joined);
}

#[test]
fn a_listener_on_every_address_sees_only_syns_to_this_machine() {
    let net = Net::new();
    // The relay is also a router: forwarded packets are not its own.
    net.relay
        .run(|| {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        })
        .unwrap();
    net.ip(&net.relay, "link add far type veth peer name other");
    net.ip(&net.relay, "link set far up");
    net.ip(&net.relay, "link set other up");
    net.ip(&net.relay, "address add 10.9.200.1/24 dev far");
    net.ip(&net.relay, "address add fd09:200::1/64 dev far nodad");
    net.ip(&net.client, "route add 10.9.200.0/24 via 10.9.0.2");
    net.ip(&net.client, "route add fd09:200::/64 via fd09::2");

    let any = [
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 80)),
        (Ipv6Addr::UNSPECIFIED, 80).into(),
    ];
    // Two sockets, as the relay binds: IPv6 without IPv4.
    let v4 = net.listen(any[0]);
    let mut watch = net.watch(&any);
    for far in ["10.9.200.9:80", "[fd09:200::9]:80"] {
        let far: SocketAddr = far.parse().unwrap();
        // No host answers there.
        let connect = || TcpStream::connect_timeout(&far, Duration::from_millis(50));
        assert!(net.client.run(connect).unwrap().is_err());
    }
    let near = net.connect((RELAY, 80).into());
    assert_eq!(watch.events(1), [event_of(&near)]);
    let deadline = Instant::now() + PATIENCE;
    while watch.0.exits().unwrap().get(Exit::NotLocal) < 2 {
        assert!(Instant::now() < deadline, "{:?}", watch.0.exits());
        std::thread::yield_now();
    }
    drop(v4);
    let _v6 = net.listen(any[1]);
    let near = net.connect((RELAY6, 80).into());
    assert_eq!(watch.events(1), [event_of(&near)]);
}

#[test]
fn syn_acks_other_ports_and_other_protocols_are_not_seen() {
    let net = Net::new();
    let addr = SocketAddr::from((RELAY, 80));
    let listener = net.listen(addr);
    let other = net.listen((RELAY, 81));
    let mut watch = net.watch(&[addr]);

    // A SYN to another port, and a whole connection after it.
    drop(net.connect(other.local_addr().unwrap()));
    // A datagram to the same port.
    let datagram = || {
        UdpSocket::bind("10.9.0.1:0")
            .unwrap()
            .send_to(b"x", addr)
            .unwrap()
    };
    net.client.run(datagram).unwrap();
    // A SYN-ACK, and an RST in answer to a SYN, when the relay itself dials upstream from that
    // port.
    let far = net
        .client
        .run(|| TcpListener::bind("10.9.0.1:9000"))
        .unwrap()
        .unwrap();
    let upstream = |port: u16| move || TcpStream::connect(("10.9.0.1", port));
    net.relay.run(upstream(9000)).unwrap().unwrap();
    drop(far);
    assert!(net.relay.run(upstream(9001)).unwrap().is_err());

    // Only the last one is seen, and its bytes are not SYNs either.
    let mut client = net.connect(addr);
    let (mut accepted, _) = listener.accept().unwrap();
    client.write_all(b"ping").unwrap();
    accepted.read_exact(&mut [0; 4]).unwrap();
    assert_eq!(watch.events(1), [event_of(&client)]);
    let exits = watch.0.exits().unwrap();
    assert_eq!(
        (exits.get(Exit::Emitted), exits.get(Exit::NotWatched)),
        (1, 1),
        "{exits:?}"
    );
    assert!(
        exits.get(Exit::NotTcp) >= 1 && exits.get(Exit::NotSyn) >= 4,
        "{exits:?}"
    );
    assert_eq!(exits.get(Exit::Malformed), 0, "{exits:?}");
}

#[test]
fn tags_of_vlans_do_not_hide_a_syn() {
    let net = Net::new();
    let addr = SocketAddr::from((RELAY, 80));
    let tap = net.relay.run(|| Tap::create("tap")).unwrap().unwrap();
    net.ip(&net.relay, "link set tap address 02:00:00:00:00:01");
    net.ip(&net.relay, "link set tap up");
    let mut watch = net.watch_on(Devices::Named(vec!["tap".into()]), &[addr], u32::MAX);
    // The kernel removes the outer tag before programs see the frame, and leaves the inner one.
    for tags in [
        &[][..],
        &[0x81, 0, 0, 7],
        &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 9],
    ] {
        let mut syn = [0; 40];
        syn[0] = 0x45;
        syn[3] = 40;
        syn[8] = 64;
        syn[9] = 6;
        syn[12..16].copy_from_slice(&[10, 9, 0, 1]);
        syn[16..20].copy_from_slice(&RELAY.octets());
        syn[20..22].copy_from_slice(&5000u16.to_be_bytes());
        syn[22..24].copy_from_slice(&80u16.to_be_bytes());
        syn[32] = 5 << 4;
        syn[33] = 0x02;
        let ends = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        let header = VnetHeader::default().to_bytes();
        tap.write(&[&header[..], &ends, tags, &[8, 0], &syn].concat())
            .unwrap();
        let events = watch.events(1);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].client, "10.9.0.1:5000".parse().unwrap());
        assert_eq!(events[0].listener_addr, addr);
    }
}

#[test]
fn every_device_that_is_up_is_watched_and_later_ones_after_a_refresh() {
    let net = Net::new();
    net.ip(&net.relay, "link add later type veth peer name other");
    let addr = SocketAddr::from((RELAY, 80));
    let _listener = net.listen(addr);
    let mut watch = net.watch_on(Devices::AllUp, &[addr], u32::MAX);
    let names = |watch: &EarlySyn| {
        let mut names: Vec<_> = watch.devices().map(|d| d.name.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&watch.0), [LINK]);
    net.ip(&net.relay, "link set later up");
    net.relay.run(|| watch.0.refresh()).unwrap().unwrap();
    assert_eq!(names(&watch.0), ["later", LINK]);
    net.ip(&net.relay, "link delete later");
    net.relay.run(|| watch.0.refresh()).unwrap().unwrap();
    assert_eq!(names(&watch.0), [LINK]);
    let client = net.connect(addr);
    assert_eq!(watch.events(1), [event_of(&client)]);
}

#[test]
fn a_missing_device_is_named() {
    let net = Net::new();
    let attach = |devices| {
        let addr = SocketAddr::from((RELAY, 80));
        let watch = Watch {
            listeners: vec![(addr, 0)],
            intercepted: Vec::new(),
        };
        let attach = || EarlySyn::attach(devices, &watch, 1);
        net.relay.run(attach).unwrap().unwrap_err()
    };
    let error = attach(Devices::Named(vec![LINK.into(), "nosuch".into()]));
    assert!(matches!(&error, EarlySynError::NoSuchDevice(name) if name == "nosuch"));
    assert!(matches!(
        attach(Devices::Named(vec![])),
        EarlySynError::NoDevice
    ));
}

#[test]
fn forwarded_packets_are_not_changed() {
    let net = Net::new();
    let addr = SocketAddr::from((RELAY, 80));
    let listener = net.listen(addr);
    let watch = net.watch(&[addr]);
    let data: Vec<u8> = (0..3_000_000usize)
        .map(|i| (i * 7 + i / 251) as u8)
        .collect();
    let mut client = net.connect(addr);
    let (mut accepted, _) = listener.accept().unwrap();
    std::thread::scope(|scope| {
        let data = &data;
        scope.spawn(move || {
            client.write_all(data).unwrap();
            drop(client);
        });
        let mut arrived = Vec::new();
        accepted.read_to_end(&mut arrived).unwrap();
        assert!(arrived == *data, "{} bytes arrived", arrived.len());
    });
    assert!(watch.0.exits().unwrap().get(Exit::NotSyn) > 10);
}
