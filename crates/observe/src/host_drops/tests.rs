//! Tests the BPF program in the running kernel.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionbio;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use taut_sys::netns::Netns;
use taut_sys::tap::Tap;
use taut_sys::tcp_info::TcpInfo;
use taut_sys_testing::stalled_receive::StalledReceive;

use super::*;

/// How long to wait for what should happen at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// A window that is twice as much as fits into the backlog of a socket with small buffers.
const WINDOW: u32 = 150_000;

/// Two namespaces joined by a veth pair, each with a device `veth`. Deleted when dropped.
struct Spaces([Netns; 2]);

impl Spaces {
    fn new(name: &str) -> Self {
        let names = [0, 1].map(|end| format!("taut-{name}{end}-{}", std::process::id()));
        let spaces = Self(names.each_ref().map(|name| Netns::create(name).unwrap()));
        let [near, far] = &names;
        run(&format!(
            "ip link add veth netns {near} type veth peer name veth netns {far}"
        ));
        for (end, name) in names.iter().enumerate() {
            run(&format!("ip -n {name} link set lo up"));
            run(&format!(
                "ip -n {name} addr add 192.0.2.{}/24 dev veth",
                end + 1
            ));
            run(&format!(
                "ip -n {name} addr add 2001:db8::{}/64 dev veth nodad",
                end + 1
            ));
            run(&format!("ip -n {name} link set veth up"));
        }
        spaces
    }

    /// Returns both ends of a connection from the first namespace to the second.
    fn connection(&self, to: &str) -> [TcpStream; 2] {
        let [near, far] = &self.0;
        let listener = far.run(|| TcpListener::bind(to).unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        let client = near.run(|| TcpStream::connect(to).unwrap()).unwrap();
        client.set_nonblocking(true).unwrap();
        [client, listener.accept().unwrap().0]
    }

    /// Adds a rule to what comes in at an end.
    fn nft(&self, end: usize, rule: &str) {
        let mut nft = Command::new("nft");
        nft.arg(format!(
            "add table inet t; add chain inet t c {{ type filter hook input priority 0; }}; add rule inet t c {rule}"
        ));
        let output = self.0[end].run(move || nft.output().unwrap()).unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        for space in &self.0 {
            let _ = Netns::delete(space.name());
        }
    }
}

fn run(line: &str) {
    let (program, arguments) = line.split_once(' ').unwrap();
    let status = Command::new(program).args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "{line}");
}

/// The ends of a connection.
fn ends([client, server]: &[TcpStream; 2]) -> [Followed; 2] {
    [client, server].map(|end| Followed {
        cookie: sockopt::socket_cookie(end).unwrap(),
        local: end.local_addr().unwrap(),
        remote: end.peer_addr().unwrap(),
        netns: 0,
    })
}

/// Calls `act` until packets of the first end are dropped for which `is_it` holds, and returns them, and
/// what the second end has of them.
fn wait(
    drops: &mut HostDrops,
    followed: &[Followed],
    mut act: impl FnMut(),
    is_it: impl Fn(&HostDrop) -> bool,
) -> [HostDrop; 2] {
    let began = Instant::now();
    drops.update(followed.iter().copied(), Duration::ZERO);
    loop {
        drops.update(followed.iter().copied(), Duration::ZERO);
        act();
        drops.update(followed.iter().copied(), Duration::ZERO);
        let of = |cookie| {
            let all = drops.of(cookie, |inode| Some(inode.to_string().into()));
            all.into_iter().find(&is_it)
        };
        if let Some(of_first) = of(followed[0].cookie) {
            let of_second = followed.get(1).and_then(|second| of(second.cookie));
            return [of_first.clone(), of_second.unwrap_or(of_first)];
        }
        assert!(began.elapsed() < PATIENCE, "nothing was dropped");
        std::thread::yield_now();
    }
}

/// Sends as much as there is room for.
fn send(mut client: &TcpStream) {
    while client.write(&[7; 10_000]).is_ok() {}
}

#[test]
fn a_drop_by_a_rule_of_nftables_is_counted_for_both_ends_with_its_device() {
    for any in ["192.0.2.2:0", "[2001:db8::2]:0"] {
        let spaces = Spaces::new("nft");
        let pair = spaces.connection(any);
        let mut drops = HostDrops::start().unwrap();
        spaces.nft(1, "meta l4proto tcp drop");
        let of_netfilter =
            |drop: &HostDrop| drop.place == DropPlace::Netfilter && drop.data_segments > 0;
        let [sent, received] = wait(&mut drops, &ends(&pair), || send(&pair[0]), of_netfilter);
        let function = sent.function.as_deref().unwrap();
        assert!(
            function.starts_with("nf_") || function.starts_with("nft_"),
            "{sent:?}"
        );
        assert_eq!(&*sent.reason, "NETFILTER_DROP");
        assert_eq!(sent.device.as_deref(), Some("veth"));
        let inode = spaces.0[1].id().inode().to_string();
        assert_eq!(sent.netns.as_deref(), Some(&*inode));
        assert_eq!(
            (sent.direction, received.direction),
            (Direction::Sent, Direction::Received)
        );
        // A packet that arrives is no socket's yet.
        assert!(!sent.is_own && !received.is_own);
        assert_eq!(drops.missed(), 0);
    }
}

#[test]
fn a_full_queue_of_a_queueing_discipline_is_named_with_its_device() {
    let spaces = Spaces::new("queue");
    let pair = spaces.connection("192.0.2.2:0");
    let mut drops = HostDrops::start().unwrap();
    run(&format!(
        "tc -n {} qdisc add dev veth root tbf rate 1mbit burst 3000 limit 3000",
        spaces.0[0].name()
    ));
    let [sent, _] = wait(
        &mut drops,
        &ends(&pair),
        || send(&pair[0]),
        |drop| drop.place == DropPlace::Qdisc,
    );
    assert_eq!(sent.device.as_deref(), Some("veth"));
    assert_eq!(sent.direction, Direction::Sent);
    assert!(sent.is_own, "{sent:?}");
}

#[test]
fn a_full_receive_buffer_is_named() {
    let spaces = Spaces::new("rcvbuf");
    let pair = spaces.connection("192.0.2.2:0");
    let mut drops = HostDrops::start().unwrap();
    // The window that the peer was offered is wider than that.
    sockopt::set_socket_recv_buffer_size(&pair[1], 1).unwrap();
    let [sent, received] = wait(
        &mut drops,
        &ends(&pair),
        || send(&pair[0]),
        |drop| drop.place == DropPlace::ReceiveBuffer,
    );
    assert_eq!(
        (&sent.device, received.direction),
        (&None, Direction::Received)
    );
    assert!(sent.data_segments > 0, "{sent:?}");
}

#[test]
fn the_full_backlog_of_a_socket_that_its_application_uses_is_named() {
    let spaces = Spaces::new("backlog");
    // The congestion window does not limit the sender.
    run(&format!(
        "ip -n {} route change 192.0.2.0/24 dev veth initcwnd 1000",
        spaces.0[0].name()
    ));
    let pair = spaces.connection("192.0.2.2:0");
    let [mut client, mut server] = pair.each_ref();
    let followed = ends(&pair);
    let began = Instant::now();
    while TcpInfo::of(client).unwrap().snd_wnd.unwrap() < WINDOW {
        assert!(began.elapsed() < PATIENCE, "the window stays small");
        client.write_all(&[7; 10_000]).unwrap();
        server.read_exact(&mut [0; 10_000]).unwrap();
    }
    // The backlog may hold the buffers and 64 KiB. That is now less than the window that the peer
    // was offered.
    sockopt::set_socket_recv_buffer_size(server, 1).unwrap();
    sockopt::set_socket_send_buffer_size(server, 1).unwrap();
    client.write_all(&[7]).unwrap();
    let stalled = StalledReceive::start(server).unwrap();
    let mut drops = HostDrops::start().unwrap();
    let [sent, received] = wait(
        &mut drops,
        &followed,
        || send(client),
        |drop| drop.place == DropPlace::SocketBacklog,
    );
    drop(stalled);
    assert_eq!((&*sent.reason, &sent.device), ("SOCKET_BACKLOG", &None));
    assert_eq!(
        (sent.direction, received.direction),
        (Direction::Sent, Direction::Received)
    );
    assert!(received.data_segments > 0, "{received:?}");
    // The packet had reached the receiver's socket, which the kernel tells since Linux 6.11.
    let release = taut_sys::probe::kernel_release();
    let version = release
        .split(['.', '-'])
        .filter_map(|part| part.parse::<u32>().ok());
    let tells_socket = version.take(2).ge([6, 11]);
    assert_eq!((sent.is_own, received.is_own), (false, tells_socket));
}

#[test]
fn the_full_queue_of_a_tap_device_is_named() {
    let spaces = Spaces::new("tap");
    let near = &spaces.0[0];
    let _tap = near.run(|| Tap::create("tap0").unwrap()).unwrap();
    let name = near.name();
    run(&format!("ip -n {name} link set tap0 txqueuelen 1 up"));
    run(&format!("ip -n {name} addr add 198.51.100.1/24 dev tap0"));
    run(&format!(
        "ip -n {name} neigh add 198.51.100.2 lladdr 02:00:00:00:00:02 dev tap0"
    ));
    let mut drops = HostDrops::start().unwrap();
    let to: SocketAddr = "198.51.100.2:5201".parse().unwrap();
    let followed = Followed {
        cookie: 1,
        local: "198.51.100.1:4000".parse().unwrap(),
        remote: to,
        netns: 0,
    };
    let dial = || {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &followed.local).unwrap();
        ioctl_fionbio(&socket, true).unwrap();
        let _ = connect(&socket, &to);
    };
    let [sent, _] = wait(
        &mut drops,
        &[followed],
        || near.run(dial).unwrap(),
        |drop| drop.place == DropPlace::TapQueue,
    );
    assert_eq!(
        (&*sent.reason, sent.device.as_deref()),
        ("FULL_RING", Some("tap0"))
    );
    assert_eq!(
        (sent.data_segments, sent.function.as_deref()),
        (0, Some("tun_net_xmit"))
    );
}

#[test]
fn a_segment_for_a_closed_socket_is_no_loss() {
    let spaces = Spaces::new("close");
    let pair = spaces.connection("192.0.2.2:0");
    let followed = ends(&pair);
    let mut drops = HostDrops::start().unwrap();
    drops.update(followed.into_iter(), Duration::ZERO);
    let [client, server] = pair;
    drop(server);
    // The kernel drops it and answers with a reset.
    (&client).write_all(&[7; 1000]).unwrap();
    let began = Instant::now();
    while (&client).write(&[7]).is_ok() {
        assert!(began.elapsed() < PATIENCE, "there was no reset");
        std::thread::yield_now();
    }
    drops.update(followed.into_iter(), Duration::ZERO);
    for end in followed {
        assert_eq!(drops.of(end.cookie, |_| None), []);
    }
}

#[test]
fn a_connection_of_the_loopback_network_is_followed_in_its_namespace_alone() {
    let one = |netns| {
        let followed = Followed {
            cookie: 1,
            local: "127.0.0.1:1".parse().unwrap(),
            remote: "127.0.0.1:2".parse().unwrap(),
            netns,
        };
        followed.tuple()
    };
    assert_ne!(one(1), one(2));
}

#[test]
fn connections_that_are_not_followed_any_more_leave_nothing() {
    let mut drops = HostDrops::start().unwrap();
    let one = |cookie, port| Followed {
        cookie,
        local: SocketAddr::new("192.0.2.1".parse().unwrap(), port),
        remote: "192.0.2.2:80".parse().unwrap(),
        netns: 0,
    };
    // Two namespaces with the same addresses.
    drops.update(
        [one(1, 1000), one(2, 1000), one(3, 2000)].into_iter(),
        Duration::ZERO,
    );
    assert_eq!(drops.followed.keys().count(), 4);
    drops.update([one(2, 1000), one(3, 2000)].into_iter(), Duration::ZERO);
    // The second of two with the same addresses takes the place of the first.
    let of_second = drops
        .ends
        .values()
        .filter(|(_, ends)| [ends.from, ends.to].contains(&2));
    assert_eq!(of_second.count(), 2);
    assert_eq!(drops.followed.keys().count(), 4);
    drops.update([one(3, 2000)].into_iter(), Duration::ZERO);
    assert_eq!(drops.followed.keys().count(), 2);
    drops.update(std::iter::empty(), Duration::ZERO);
    assert_eq!((drops.followed.keys().count(), drops.ends.len()), (0, 0));
}
