use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use super::*;
use crate::ended::tests::ended;

#[test]
fn the_connections_that_have_ended_last_are_remembered_for_a_time_that_follows_their_rate() {
    // Ends a second, and how many are remembered at least.
    let rates = [
        (100, REMEMBERED),
        (17_000, 5 * 17_000),
        (1_000_000, REMEMBERED_MOST),
    ];
    for (rate, least) in rates {
        let mut remembered = Remembered::default();
        for cookie in 0..3 * least as u64 {
            let now = Duration::from_secs(1) * u32::try_from(cookie).unwrap() / rate;
            remembered.insert(ended(|end| end.cookie = cookie), now);
            let oldest = (cookie + 1).saturating_sub(least as u64);
            assert!(remembered.get(oldest).is_some() && remembered.get(cookie).is_some());
            let all = remembered.newest.len() + remembered.before.len();
            assert!(all <= 2 * REMEMBERED_MOST);
        }
        assert!(remembered.get(0).is_none(), "{rate}");
    }
}

const KEEP: Retention = Retention {
    connections: 100_000,
    samples: 6,
};

fn cookies(observer: &Observer, end: &TcpStream) -> Vec<u64> {
    let local = end.local_addr().unwrap();
    let all = Filter::all();
    let seen = observer.connections(&all);
    seen.filter(|seen| seen.tracked.last().connection.local == local)
        .map(|seen| seen.cookie)
        .collect()
}

#[test]
fn scans_miss_nothing_and_notice_ends() {
    miss_nothing(Observer::new(Scope::Own, KEEP, Wants::EVENTS));
    let mut walking = Observer::new(Scope::Own, KEEP, Wants::EVENTS);
    walking.scanner.forbid_lists_of_slots();
    miss_nothing(walking);
}

fn miss_nothing(mut observer: Observer) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let open = || {
        (
            TcpStream::connect(to).unwrap(),
            listener.accept().unwrap().0,
        )
    };
    let filter = Filter::all();
    let (mut first, mut peer) = open();
    observer.scan(&filter).unwrap();
    let [cookie] = cookies(&observer, &first)[..] else {
        panic!("it was there");
    };
    // The next scan, a quick one if slots can be listed, finds a connection that was opened since, and the data
    // that the first one has sent.
    let second = open();
    first.write_all(&[7; 100]).unwrap();
    peer.read_exact(&mut [0; 100]).unwrap();
    observer.scan(&filter).unwrap();
    assert!(!observer.scanner.has_quick_failed());
    assert_eq!(cookies(&observer, &second.0).len(), 1);
    let sent = |observer: &Observer| {
        let seen = observer.get(cookie).unwrap();
        seen.tracked.last().info().unwrap().bytes_sent
    };
    assert_eq!(sent(&observer), Some(100));
    // The scan queries a connection that the lists leave out.
    observer.scanner.bpf().take_slot(&first);
    first.write_all(&[7; 100]).unwrap();
    for _ in 0..3 {
        observer.scan(&filter).unwrap();
        assert_eq!(sent(&observer), Some(200));
        assert!(
            observer
                .get(cookie)
                .unwrap()
                .tracked
                .last()
                .connection
                .internals
                .is_some()
        );
    }
    // A connection that has ended is reported as ended.
    let mut ended = Vec::new();
    drop((first, peer));
    while observer.get(cookie).is_some() {
        observer
            .scan_and(&filter, |cookie, _, _| ended.push(cookie))
            .unwrap();
    }
    assert!(ended.contains(&cookie));
    assert!(!observer.scanner.has_quick_failed());
    assert_eq!(cookies(&observer, &second.0).len(), 1);
}

#[test]
fn a_full_table_leaves_out_as_many_with_every_kind_of_scan() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let _ends: Vec<_> = (0..4)
        .map(|_| (TcpStream::connect(to).unwrap(), listener.accept().unwrap()))
        .collect();
    let keep = Retention {
        connections: 3,
        samples: 6,
    };
    let filter: Filter = format!("port {}", to.port()).parse().unwrap();
    let mut observer = Observer::new(Scope::Own, keep, Wants::EVENTS);
    for _ in 0..4 {
        observer.scan(&filter).unwrap();
        assert_eq!((observer.kept(), observer.left_out()), (3, 5));
    }
}
