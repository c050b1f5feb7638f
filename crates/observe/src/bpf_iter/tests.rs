//! The programs in this kernel.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use rustix::net::sockopt;
use taut_sys::netns::Netns;
use taut_sys::sock_diag::{Connection, Events, Internals, SockDiag, SocketId};

use super::*;

/// A connection's two ends: the client's, and the server's.
fn pair(any: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(any).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// A namespace that goes with this.
struct Space(Netns);

impl Drop for Space {
    fn drop(&mut self) {
        let _ = Netns::delete(self.0.name());
    }
}

fn read(list: List) -> Vec<Found> {
    list.map(Result::unwrap).collect()
}

fn all(iterator: &TcpIter) -> Vec<Found> {
    read(iterator.list().unwrap())
}

fn by_place(iterator: &TcpIter) -> Vec<Found> {
    read(iterator.places().unwrap().unwrap())
}

fn is_of(id: &SocketId, end: &TcpStream) -> bool {
    let ports = [end.local_addr(), end.peer_addr()].map(|address| address.unwrap().port());
    [id.local_port, id.remote_port] == ports
}

fn of(iterator: &TcpIter, end: &TcpStream) -> Found {
    let all = all(iterator);
    let is_it = |found: &&Found| is_of(&found.told.unwrap().id, end);
    *all.iter().find(is_it).unwrap()
}

fn inside(iterator: &TcpIter, end: &TcpStream) -> Internals {
    of(iterator, end).told.unwrap().internals.unwrap()
}

#[test]
fn buffers_that_were_set_are_told_from_those_that_were_not() {
    let (client, server) = pair("127.0.0.1:0");
    sockopt::set_socket_recv_buffer_size(&client, 50_000).unwrap();
    sockopt::set_socket_send_buffer_size(&server, 50_000).unwrap();
    let iterator = TcpIter::load(false).unwrap();
    let locks = [&client, &server].map(|end| {
        let inside = inside(&iterator, end);
        (inside.rcvbuf_locked, inside.sndbuf_locked)
    });
    assert_eq!(locks, [(true, false), (false, true)]);
}

#[test]
fn each_is_found_again_by_its_name() {
    for any in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
        let listener = TcpListener::bind(any).unwrap();
        let port = listener.local_addr().unwrap().port();
        // Of the last, an IPv6 socket, the peer is an IPv4 one.
        let to: SocketAddr = match any {
            "[::1]:0" => format!("[::1]:{port}").parse().unwrap(),
            _ => format!("127.0.0.1:{port}").parse().unwrap(),
        };
        let client = TcpStream::connect(to).unwrap();
        let (server, _) = listener.accept().unwrap();
        let iterator = TcpIter::load(true).unwrap();
        let mut ids = [&client, &server].map(|end| of(&iterator, end).told.unwrap().id);
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
        // Another that has its addresses is not it.
        ids[0].cookie += 1 << 40;
        assert_eq!(read(&ids).len(), 1);
        ids[0].local_port = 1;
        assert_eq!(read(&ids).len(), 1);
    }
}

#[test]
fn one_that_rests_is_told_from_one_that_has_changed() {
    let (client, server) = pair("127.0.0.1:0");
    client.set_nodelay(true).unwrap();
    let iterator = TcpIter::load(true).unwrap();
    let mut look = 0;
    let mut since = || {
        look += 1;
        iterator.begin(look, None);
        let since = of(&iterator, &client).since.unwrap().get();
        (look, since)
    };
    // Acknowledgements may be late; once it rests it goes on to.
    let mut settle = || loop {
        let (look, since) = since();
        if since < look {
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

#[test]
fn round_trips_are_counted_from_the_first_look_on_where_there_is_room() {
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
    let seen = |iterator: &TcpIter| inside(iterator, &watched).events;
    let iterator = TcpIter::load(true).unwrap();
    assert!(iterator.counts_events());
    talk();
    assert_eq!(seen(&iterator), None, "no look has begun");
    iterator.begin(1, None);
    assert_eq!(seen(&iterator), Some(Events::default()));
    talk();
    let events = seen(&iterator).unwrap();
    // The last is counted when the next segment comes; on a machine that stands still some are not measured.
    assert!((10..=51).contains(&events.rtts), "{events:?}");
    assert!(events.rtt_sum >= events.rtt_most && !events.rtt_most.is_zero());
    let without = TcpIter::load(false).unwrap();
    assert_eq!(seen(&without), None);
    assert_eq!(of(&without, &watched).since, None);
}

#[test]
fn one_that_is_opened_has_a_place_without_a_walk() {
    let iterator = TcpIter::load(true).unwrap();
    iterator.begin(1, None);
    let (client, server) = pair("127.0.0.1:0");
    let own = rustix::fs::stat("/proc/self/ns/net").unwrap().st_ino;
    let cookies = [&client, &server].map(|end| {
        let is_it = |found: &&Found| found.told.is_some_and(|told| is_of(&told.id, end));
        let found = *by_place(&iterator).iter().find(is_it).unwrap();
        assert_eq!(u64::from(found.netns), own);
        assert_eq!(found, of(&iterator, end));
        found.cookie
    });
    // Once they rest nothing more is told of them.
    let mut look = 1;
    while {
        look += 1;
        iterator.begin(look, None);
        let found = by_place(&iterator);
        let mut mine = found.iter().filter(|found| cookies.contains(&found.cookie));
        mine.any(|found| found.told.is_some())
    } {}
    // Nor is there a place for those of another namespace.
    iterator.begin(look + 1, Some(1));
    let (other, _server) = pair("127.0.0.1:0");
    let is_other = |found: &Found| found.told.is_some_and(|told| is_of(&told.id, &other));
    assert!(!by_place(&iterator).iter().any(is_other));
    // And of one that has ended there is none any more.
    drop((client, server));
    while by_place(&iterator)
        .iter()
        .any(|found| cookies.contains(&found.cookie))
    {}
}

#[test]
fn records_that_are_cut_by_a_read_are_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    // More than one read has room for.
    let ends: Vec<_> = (0..400)
        .map(|_| {
            let client = TcpStream::connect(to).unwrap();
            (client, listener.accept().unwrap().0)
        })
        .collect();
    let all = all(&TcpIter::load(false).unwrap());
    assert!(all.len() >= 2 * ends.len(), "{}", all.len());
}

#[test]
fn what_comes_and_what_is_opened_stirs() {
    let name = format!("taut-stir-{}", std::process::id());
    let space = Space(Netns::create(&name).unwrap());
    let netns = &space.0;
    let up = std::process::Command::new("ip")
        .args(["-n", &name, "link", "set", "lo", "up"])
        .status();
    assert!(up.unwrap().success());
    let iterator = TcpIter::load(true).unwrap();
    let only = u32::try_from(netns.id().inode()).unwrap();
    let (mut client, mut server) = netns.run(|| pair("127.0.0.1:0")).unwrap();
    iterator.begin(1, Some(only)).unwrap();
    netns.run(|| all(&iterator)).unwrap();
    assert_eq!(iterator.has_stirred(), Some(false));
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    assert_eq!(iterator.has_stirred(), Some(true));
    // Nobody has looked since, and nothing has a place.
    let iterator = TcpIter::load(true).unwrap();
    iterator.begin(1, Some(only)).unwrap();
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    assert_eq!(iterator.has_stirred(), Some(false));
    let opened = netns.run(|| pair("127.0.0.1:0"));
    assert_eq!(iterator.has_stirred(), Some(true));
    drop(opened);
    let silent = TcpIter::load(false).unwrap();
    assert_eq!(silent.has_stirred(), None);
}
