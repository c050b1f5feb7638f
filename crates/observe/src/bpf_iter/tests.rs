//! Tests the BPF programs in the running kernel.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use rustix::net::sockopt;
use taut_sys::netns::Netns;
use taut_sys::sock_diag::{Connection, Events, Internals, SockDiag, SocketId};

use taut_sys_testing::network::enter_private_network;
use taut_sys_testing::skip::skip;

use super::*;

/// Returns the two ends of a connection: the client's and the server's.
fn pair(any: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(any).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// A namespace that is deleted when the value is dropped.
struct Space(Netns);

impl Drop for Space {
    fn drop(&mut self) {
        let _ = Netns::delete(self.0.name());
    }
}

/// A namespace whose loopback interface is up.
fn space(name: &str) -> Space {
    let name = format!("taut-{name}-{}", std::process::id());
    let space = Space(Netns::create(&name).unwrap());
    let up = std::process::Command::new("ip")
        .args(["-n", &name, "link", "set", "lo", "up"])
        .status();
    assert!(up.unwrap().success());
    space
}

/// Moves this thread into a namespace of its own and returns its inode: a scan of it alone gives other
/// tests' connections no slots, so their ends take no room in the ring buffer.
fn own_space() -> u32 {
    enter_private_network();
    let own = rustix::fs::stat("/proc/thread-self/ns/net").unwrap();
    u32::try_from(own.st_ino).unwrap()
}

/// A connection that an iterator lists.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Listed {
    cookie: u64,
    netns: u32,
    since: Option<std::num::NonZeroU64>,
    details: Option<Details>,
}

fn read(mut list: List) -> Vec<Listed> {
    let mut read = Vec::new();
    while let Some(found) = list.next() {
        let found = found.unwrap();
        read.push(Listed {
            cookie: found.cookie,
            netns: found.netns,
            since: found.since,
            details: list.details().unwrap().map(|(details, _)| details),
        });
    }
    read
}

fn all(iterator: &TcpIter) -> Vec<Listed> {
    read(iterator.list().unwrap())
}

fn by_slot(iterator: &TcpIter) -> Vec<Listed> {
    read(iterator.slots().unwrap().unwrap())
}

/// Whether slots can be listed; otherwise the test is skipped.
fn lists_slots(iterator: &TcpIter) -> bool {
    let lists = iterator.lists_slots();
    if !lists {
        skip("the kernel does not allow a BPF iterator over socket storage");
    }
    lists
}

fn is_of(id: &SocketId, end: &TcpStream) -> bool {
    let ports = [end.local_addr(), end.peer_addr()].map(|address| address.unwrap().port());
    [id.local_port, id.remote_port] == ports
}

fn of(iterator: &TcpIter, end: &TcpStream) -> Listed {
    let all = all(iterator);
    let is_it = |found: &&Listed| is_of(&found.details.unwrap().id, end);
    *all.iter().find(is_it).unwrap()
}

fn internals(iterator: &TcpIter, end: &TcpStream) -> Internals {
    of(iterator, end).details.unwrap().internals.unwrap()
}

#[test]
fn buffers_with_a_set_size_are_recognised() {
    let (client, server) = pair("127.0.0.1:0");
    sockopt::set_socket_recv_buffer_size(&client, 50_000).unwrap();
    sockopt::set_socket_send_buffer_size(&server, 50_000).unwrap();
    let iterator = TcpIter::load(Wants::default()).unwrap();
    let locks = [&client, &server].map(|end| {
        let internals = internals(&iterator, end);
        (internals.rcvbuf_locked, internals.sndbuf_locked)
    });
    assert_eq!(locks, [(true, false), (false, true)]);
}

#[test]
fn each_connection_is_found_again_by_its_identity() {
    for any in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
        let listener = TcpListener::bind(any).unwrap();
        let port = listener.local_addr().unwrap().port();
        // The last case is an IPv6 socket with an IPv4 peer.
        let to: SocketAddr = match any {
            "[::1]:0" => format!("[::1]:{port}").parse().unwrap(),
            _ => format!("127.0.0.1:{port}").parse().unwrap(),
        };
        let client = TcpStream::connect(to).unwrap();
        let (server, _) = listener.accept().unwrap();
        let iterator = TcpIter::load(Wants::EVENTS).unwrap();
        let mut ids = [&client, &server].map(|end| of(&iterator, end).details.unwrap().id);
        let read = |ids: &[SocketId]| {
            let mut read: Vec<Connection> = Vec::new();
            let mut diag = SockDiag::open().unwrap();
            let listed = diag.query(ids, |connection| read.push(connection)).unwrap();
            assert_eq!((listed.connections, listed.unknown), (read.len(), 0));
            read.into_iter()
                .map(|connection| (connection.cookie, connection.local))
                .collect::<Vec<_>>()
        };
        let canonical = |end: &TcpStream| {
            let address = end.local_addr().unwrap();
            SocketAddr::new(address.ip().to_canonical(), address.port())
        };
        assert_eq!(
            read(&ids),
            [
                (ids[0].cookie, canonical(&client)),
                (ids[1].cookie, canonical(&server))
            ]
        );
        // Another socket with the same addresses is not found.
        ids[0].cookie += 1 << 40;
        assert_eq!(read(&ids).len(), 1);
        ids[0].local_port = 1;
        assert_eq!(read(&ids).len(), 1);
    }
}

#[test]
fn an_unchanged_connection_is_recognised() {
    let (client, server) = pair("127.0.0.1:0");
    client.set_nodelay(true).unwrap();
    let iterator = TcpIter::load(Wants::EVENTS).unwrap();
    let mut scan = 0;
    let mut since = || {
        scan += 1;
        iterator.begin(scan, None);
        let since = of(&iterator, &client).since.unwrap().get();
        (scan, since)
    };
    // Acknowledgements may be late; once a connection is unchanged, it stays unchanged.
    let mut settle = || loop {
        let (scan, since) = since();
        if since < scan {
            return since;
        }
    };
    let first = settle();
    assert_eq!(settle(), first);
    (&client).write_all(&[7]).unwrap();
    let sent = settle();
    assert!(sent > first);
    assert_eq!(settle(), sent);
    (&server).write_all(&[7]).unwrap();
    let came = settle();
    assert!(came > sent);
    (&client).read_exact(&mut [0]).unwrap();
    let read = settle();
    assert!(read > came);
    sockopt::set_socket_recv_buffer_size(&client, 50_000).unwrap();
    let set = settle();
    assert!(set > read);
    server.shutdown(Shutdown::Write).unwrap();
    assert!(settle() > set);
}

/// Lists the connections of a namespace with sock_diag.
fn by_sock_diag(netns: &Netns) -> Vec<Connection> {
    let list = || {
        let mut all = Vec::new();
        let mut diag = SockDiag::open().unwrap();
        diag.dump(|connection| all.push(connection)).unwrap();
        all
    };
    netns.run(list).unwrap()
}

/// Returns the reading with other idle times.
fn with_idle_times_of(mut reading: Connection, other: &Connection) -> Connection {
    let times = other.info.as_ref().unwrap().idle_times();
    reading.info.as_mut().unwrap().set_idle_times(times);
    reading
}

#[test]
fn the_program_reads_the_same_figures_as_sock_diag() {
    compare_figures("reno");
}

#[test]
fn the_program_reads_the_same_figures_of_bbr_as_sock_diag() {
    compare_figures("bbr");
}

/// Compares what the program over slots and sock_diag read of the same quiet connection.
fn compare_figures(congestion_control: &str) {
    let space = space(congestion_control);
    let netns = &space.0;
    let only = u32::try_from(netns.id().inode()).unwrap();
    // A short queue, which drops segments.
    let limited = std::process::Command::new("tc")
        .args(["-n", netns.name(), "qdisc", "add", "dev", "lo", "root"])
        .args(["tbf", "rate", "50mbit", "burst", "70000", "limit", "100000"])
        .status();
    assert!(limited.unwrap().success());
    let (client, server) = netns.run(|| pair("127.0.0.1:0")).unwrap();
    // The kernel loads the module of BBR now, so that the program knows it.
    for end in [&client, &server] {
        sockopt::set_tcp_congestion(end, congestion_control).unwrap();
    }
    let iterator = TcpIter::load(Wants::EVENTS).unwrap();
    if !lists_slots(&iterator) {
        return;
    }
    iterator.begin(1, Some(only));
    netns.run(|| all(&iterator)).unwrap();
    let first = by_sock_diag(netns);
    // Both ends send, and lose segments; at last the client has data to read.
    for _ in 0..10 {
        for (mut from, mut to) in [(&client, &server), (&server, &client)] {
            let sent = std::thread::scope(|threads| {
                let sent = threads.spawn(move || from.write_all(&[7; 300_000]));
                to.read_exact(&mut [0; 300_000]).unwrap();
                sent.join().unwrap()
            });
            sent.unwrap();
        }
    }
    (&server).write_all(&[7; 3000]).unwrap();
    let mut compared = std::collections::HashSet::new();
    let began = std::time::Instant::now();
    for scan in 2.. {
        let seconds = began.elapsed().as_secs();
        // A connection without a change has no figures.
        for end in [&client, &server] {
            sockopt::set_socket_recv_buffer_size(end, 50_000 + scan).unwrap();
        }
        iterator.begin(scan as u64, Some(only));
        let before = by_sock_diag(netns);
        let mut list = iterator.slots().unwrap().unwrap();
        let mut figures = Vec::new();
        while let Some(found) = list.next() {
            if let Some((_, Some(of))) = list.details().unwrap() {
                figures.push((found.unwrap().cookie, of));
            }
        }
        let after = by_sock_diag(netns);
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before.cookie, after.cookie);
            let figures = figures.iter().find(|(cookie, _)| *cookie == after.cookie);
            let is_quiet = with_idle_times_of(before.clone(), after) == *after;
            let has_figures = figures.is_some();
            assert!(seconds < 60, "{has_figures} {before:?} {after:?}");
            let (Some((_, figures)), true) = (figures, is_quiet) else {
                continue;
            };
            let read = first.iter().find(|first| first.cookie == after.cookie);
            let mut read = read.unwrap().clone();
            assert!(figures.update(&mut read));
            let idle = |of: &Connection| {
                let info = of.info.as_ref().unwrap();
                [info.last_data_sent, info.last_data_recv, info.last_ack_recv]
            };
            for ((is, least), most) in idle(&read).iter().zip(idle(before)).zip(idle(after)) {
                assert!((least..=most).contains(is), "{least:?} {is:?} {most:?}");
            }
            assert_eq!(with_idle_times_of(read, after), *after);
            compared.insert(after.cookie);
        }
        if compared.len() == 2 {
            break;
        }
    }
}

#[test]
fn round_trips_are_counted_from_the_first_scan_on() {
    let (mut client, mut server) = pair("127.0.0.1:0");
    let watched = client.try_clone().unwrap();
    let mut talk = || {
        for _ in 0..50 {
            client.write_all(&[7]).unwrap();
            server.read_exact(&mut [0]).unwrap();
            server.write_all(&[7]).unwrap();
            client.read_exact(&mut [0]).unwrap();
        }
    };
    let seen = |iterator: &TcpIter| internals(iterator, &watched).events;
    let iterator = TcpIter::load(Wants::EVENTS).unwrap();
    assert!(iterator.counts_events());
    talk();
    assert_eq!(seen(&iterator), None, "no scan has begun");
    iterator.begin(1, None);
    assert_eq!(seen(&iterator), Some(Events::default()));
    talk();
    let events = seen(&iterator).unwrap();
    // The last round trip is counted when the next segment arrives; on a descheduled machine some
    // are not measured.
    assert!((10..=51).contains(&events.rtts), "{events:?}");
    assert!(events.rtt_sum >= events.rtt_most && !events.rtt_most.is_zero());
    let without = TcpIter::load(Wants::default()).unwrap();
    assert_eq!(seen(&without), None);
    assert_eq!(of(&without, &watched).since, None);
}

#[test]
fn a_connection_that_is_opened_has_a_slot_without_a_walk() {
    let iterator = TcpIter::load(Wants::EVENTS).unwrap();
    if !lists_slots(&iterator) {
        return;
    }
    iterator.begin(1, None);
    let (client, server) = pair("127.0.0.1:0");
    let own = rustix::fs::stat("/proc/self/ns/net").unwrap().st_ino;
    let cookies = [&client, &server].map(|end| {
        let is_it = |found: &&Listed| found.details.is_some_and(|details| is_of(&details.id, end));
        let found = *by_slot(&iterator).iter().find(is_it).unwrap();
        assert_eq!(u64::from(found.netns), own);
        assert_eq!(found, of(&iterator, end));
        found.cookie
    });
    // Once the connections are unchanged, only their heads are listed.
    let mut scan = 1;
    while {
        scan += 1;
        iterator.begin(scan, None);
        let found = by_slot(&iterator);
        let mut mine = found.iter().filter(|found| cookies.contains(&found.cookie));
        mine.any(|found| found.details.is_some())
    } {}
    // Connections of another namespace get no slot.
    iterator.begin(scan + 1, Some(1));
    let (other, _server) = pair("127.0.0.1:0");
    let is_other = |found: &Listed| {
        found
            .details
            .is_some_and(|details| is_of(&details.id, &other))
    };
    assert!(!by_slot(&iterator).iter().any(is_other));
    // A connection that has ended loses its slot.
    drop((client, server));
    while by_slot(&iterator)
        .iter()
        .any(|found| cookies.contains(&found.cookie))
    {}
}

#[test]
fn records_that_a_read_cuts_are_complete() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    // Opens more connections than fit into one read.
    let ends: Vec<_> = (0..400)
        .map(|_| {
            let client = TcpStream::connect(to).unwrap();
            (client, listener.accept().unwrap().0)
        })
        .collect();
    let all = all(&TcpIter::load(Wants::default()).unwrap());
    assert!(all.len() >= 2 * ends.len(), "{}", all.len());
}

#[test]
fn arriving_segments_and_new_connections_are_activity() {
    let space = space("stir");
    let netns = &space.0;
    let iterator = TcpIter::load(Wants::EVENTS).unwrap();
    let only = u32::try_from(netns.id().inode()).unwrap();
    let (mut client, mut server) = netns.run(|| pair("127.0.0.1:0")).unwrap();
    // Up to the first, connections of the whole machine count.
    iterator.begin(1, Some(only)).unwrap();
    iterator.begin(2, Some(only)).unwrap();
    netns.run(|| all(&iterator)).unwrap();
    assert_eq!(iterator.has_activity(), Some(false));
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    assert_eq!(iterator.has_activity(), Some(true));
    // The new programs have not listed connections yet, so no connection has a slot.
    let iterator = TcpIter::load(Wants::EVENTS).unwrap();
    iterator.begin(1, Some(only)).unwrap();
    iterator.begin(2, Some(only)).unwrap();
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    assert_eq!(iterator.has_activity(), Some(false));
    let opened = netns.run(|| pair("127.0.0.1:0"));
    assert_eq!(iterator.has_activity(), Some(true));
    drop(opened);
    let silent = TcpIter::load(Wants::default()).unwrap();
    assert_eq!(silent.has_activity(), None);
}

/// Opens and closes a connection to a server of this process, which sends `reply` bytes. Returns
/// the client's address. `is_reset`: the client ends it, so that no process closes the server's end
/// before it is over.
fn short_connection(listener: &TcpListener, reply: usize, is_reset: bool) -> SocketAddr {
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"request").unwrap();
    server.read_exact(&mut [0; 7]).unwrap();
    server.write_all(&vec![7; reply]).unwrap();
    let near = client.local_addr().unwrap();
    if is_reset {
        client.read_exact(&mut vec![0; reply]).unwrap();
        sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
        drop(client);
        // The reset has arrived.
        server.read_exact(&mut [0]).unwrap_err();
    } else {
        drop(server);
        client.read_to_end(&mut Vec::new()).unwrap();
    }
    near
}

#[test]
fn each_end_is_reported_once_with_its_owner_whichever_program_notes_who_accepts() {
    let own = own_space();
    for accept in ACCEPT {
        let Ok(iterator) = TcpIter::load_with(Wants::ALL, Some((accept, false))) else {
            // The other number of arguments.
            assert!(accept.starts_with("taut_accept_of"), "{accept}");
            continue;
        };
        let mut reader = iterator.ends().unwrap().unwrap();
        iterator.begin(1, Some(own));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let clients: Vec<_> = (0..50)
            .map(|i| short_connection(&listener, 1000 + i, i % 2 == 1))
            .collect();
        let mut ends = Vec::new();
        let mut of_clients = 0;
        // The last acknowledgement ends the server's side a moment later.
        while of_clients < 2 * clients.len() {
            let missed = reader.read(|end| ends.push(end));
            assert_eq!(missed, 0);
            let is_ours =
                |end: &&EndRecord| clients.contains(&end.local) || clients.contains(&end.remote);
            of_clients = ends.iter().filter(is_ours).count();
            std::thread::yield_now();
        }
        for (index, client) in clients.iter().enumerate() {
            let of = |of: fn(&EndRecord) -> SocketAddr| {
                let [end] = &ends
                    .iter()
                    .filter(|end| of(end) == *client)
                    .collect::<Vec<_>>()[..]
                else {
                    panic!("each once");
                };
                (*end).clone()
            };
            let (near, far) = (of(|end| end.local), of(|end| end.remote));
            for end in [&near, &far] {
                let owner = end.owner.as_ref().unwrap();
                assert_eq!(owner.pid, std::process::id(), "{accept}");
                assert!(
                    end.flags.followed && end.since_established.is_some(),
                    "{end:?}"
                );
            }
            assert!(near.flags.opened_here && !far.flags.opened_here);
            assert_eq!(
                near.bytes_received - u64::from(near.flags.fin_received),
                1000 + index as u64
            );
            assert_eq!(far.bytes_received - u64::from(far.flags.fin_received), 7);
        }
    }
}

#[test]
fn a_socket_that_connects_in_vain_again_and_again_takes_room_once() {
    let space = space("room");
    let iterator = TcpIter::load(Wants::EVENTS).unwrap();
    let only = u32::try_from(space.0.id().inode()).unwrap();
    iterator.begin(1, Some(only)).unwrap();
    assert_eq!(iterator.room(), COUNTED);
    let in_vain = || {
        let kind = rustix::net::SocketType::STREAM;
        let socket = rustix::net::socket(rustix::net::AddressFamily::INET, kind, None).unwrap();
        let closed: SocketAddr = "127.0.0.1:9".parse().unwrap();
        for _ in 0..20 {
            rustix::net::connect(&socket, &closed).unwrap_err();
            assert_eq!(iterator.room(), COUNTED);
        }
    };
    space.0.run(in_vain).unwrap();
    // A connection takes room while it is open, and a walk that finds it takes no more.
    let connected = space.0.run(|| pair("127.0.0.1:0")).unwrap();
    assert_eq!(iterator.room(), COUNTED - 2);
    space.0.run(|| all(&iterator)).unwrap();
    assert_eq!(iterator.room(), COUNTED - 2);
    drop(connected);
}

#[test]
fn connections_without_a_slot_are_counted_beyond_the_scan() {
    let space = space("missed");
    let iterator = TcpIter::load(Wants::EVENTS).unwrap();
    let only = u32::try_from(space.0.id().inode()).unwrap();
    // There is no room before the first scan.
    let early = space.0.run(|| pair("127.0.0.1:0")).unwrap();
    assert!(iterator.begin(1, Some(only)).unwrap() >= 2);
    // Up to then, connections of the whole machine count.
    iterator.begin(2, Some(only)).unwrap();
    assert_eq!(iterator.begin(3, Some(only)), Some(0));
    drop(early);
}

#[test]
fn silence_between_two_answers_is_no_time_of_receiving() {
    let silence = std::time::Duration::from_secs(1);
    let own = own_space();
    let iterator = TcpIter::load(Wants::ALL).unwrap();
    let mut reader = iterator.ends().unwrap().unwrap();
    iterator.begin(1, Some(own));
    all(&iterator);
    reader.read(|_| ());
    let (mut client, mut server) = pair("127.0.0.1:0");
    let near = client.local_addr().unwrap();
    let answers = |client: &mut TcpStream, server: &mut TcpStream| {
        let began = std::time::Instant::now();
        while began.elapsed().as_millis() < 50 {
            client.write_all(&[7]).unwrap();
            server.read_exact(&mut [0]).unwrap();
            server.write_all(&[7]).unwrap();
            client.read_exact(&mut [0]).unwrap();
        }
    };
    answers(&mut client, &mut server);
    client.set_read_timeout(Some(silence)).unwrap();
    client.read_exact(&mut [0]).unwrap_err();
    answers(&mut client, &mut server);
    // The length of a tick follows from two walks.
    all(&iterator);
    drop(server);
    client.read_to_end(&mut Vec::new()).unwrap();
    drop(client);
    let mut end = None;
    while end.is_none() {
        reader.read(|record| end = end.take().or((record.local == near).then_some(record)));
        std::thread::yield_now();
    }
    let end = end.unwrap();
    assert!(!end.receiving.is_zero(), "{end:?}");
    assert!(
        end.receiving + silence <= end.since_established.unwrap(),
        "{end:?}"
    );
}

#[test]
fn a_handshake_whose_syn_ack_is_sent_again_tells_its_namespace() {
    let space = space("handshake");
    let inode = u32::try_from(space.0.id().inode()).unwrap();
    let iterator = TcpIter::load(Wants::EVENTS).unwrap();
    let has_noted = || iterator.take_to_walk().unwrap().contains(&inode);
    iterator.begin(1, None).unwrap();
    // A connection that is accepted is no handshake: it has a slot.
    let _pair = space.0.run(|| pair("127.0.0.1:0")).unwrap();
    assert_eq!(has_noted(), !iterator.lists_slots());
    assert!(!has_noted());
    let _waiting = space.0.run(handshake).unwrap();
    while !has_noted() {
        std::thread::yield_now();
    }
}

/// A listener and a client that drops the SYN-ACK, so that it is sent again after a second.
fn handshake() -> (TcpListener, std::os::fd::OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::NONBLOCK,
        None,
    );
    let client = client.unwrap();
    taut_sys::socket::receiver::drop_input(&client, true).unwrap();
    let begun = rustix::net::connect(&client, &listener.local_addr().unwrap());
    assert_eq!(begun, Err(taut_sys::Errno::INPROGRESS));
    (listener, client)
}
