use std::net::TcpListener;
use std::sync::mpsc;

use taut_sys::scm_rights::SeqpacketSocket;
use taut_sys_testing::network::enter_private_network;

use super::super::{Taken, take};
use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

struct Old {
    giver: Giver,
    path: PathBuf,
    addrs: Vec<SocketAddr>,
    taken: mpsc::Receiver<()>,
    _dir: tempfile::TempDir,
}

fn old(n: usize, start: Duration) -> Old {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("handover");
    let first = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = first.local_addr().unwrap();
    // Many descriptors of one socket count as that many sockets.
    let sockets: Vec<OwnedFd> = (0..n).map(|_| first.try_clone().unwrap().into()).collect();
    let (tell, taken) = mpsc::channel();
    let giver = Giver::with(&path, sockets, Weak::new(), start, move |by| {
        tell.send(()).unwrap();
        by.draining();
    })
    .unwrap();
    Old {
        giver,
        path,
        addrs: vec![addr; n],
        taken,
        _dir: dir,
    }
}

fn addrs(taken: &mut Taken) -> Vec<SocketAddr> {
    taken
        .take_inherited()
        .sockets
        .iter()
        .map(|s| s.addr)
        .collect()
}

fn failed(old: &Old, times: u64) {
    let start = std::time::Instant::now();
    while old.giver.events().failed < times {
        assert!(start.elapsed() < PATIENCE, "the giver has not noticed");
        std::thread::yield_now();
    }
    assert!(
        old.taken.try_recv().is_err(),
        "the old process was told to drain"
    );
}

#[test]
fn sockets_come_in_batches_and_the_old_process_drains_when_told() {
    for n in [0, 1, 253, 254, 600] {
        let old = old(n, PATIENCE);
        let mut taken = take(&old.path).unwrap().unwrap();
        assert_eq!(addrs(&mut taken), old.addrs);
        assert!(old.taken.try_recv().is_err());
        taken.serving().unwrap();
        old.taken.recv_timeout(PATIENCE).unwrap();
        assert_eq!(
            old.giver.events(),
            Events {
                failed: 0,
                handed_over: 1
            }
        );
    }
}

#[test]
fn a_new_process_that_fails_before_it_serves_changes_nothing() {
    let old = old(2, PATIENCE);
    let taken = take(&old.path).unwrap().unwrap();
    drop(taken);
    failed(&old, 1);
    // The first is silent, the second sends garbage, the third has another version.
    drop(
        SeqpacketSocket::connect(&old.path, PATIENCE)
            .unwrap()
            .unwrap(),
    );
    failed(&old, 2);
    for (times, says) in [
        (3, &b"nonsense"[..]),
        (4, br#"{"say":"take","version":7}"#),
        (5, br#"{"say":"serving"}"#),
    ] {
        let channel = SeqpacketSocket::connect(&old.path, PATIENCE)
            .unwrap()
            .unwrap();
        channel.send(says, &[]).unwrap();
        failed(&old, times);
    }
    let mut taken = take(&old.path).unwrap().unwrap();
    assert_eq!(addrs(&mut taken), old.addrs);
    taken.serving().unwrap();
    old.taken.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn a_new_process_that_takes_too_long_is_given_up() {
    let old = old(1, Duration::from_millis(1));
    let taken = take(&old.path).unwrap().unwrap();
    failed(&old, 1);
    assert!(taken.serving().is_err());
    failed(&old, 1);
}

#[test]
fn a_path_without_a_process_is_not_an_error_and_neither_is_a_stopped_giver() {
    enter_private_network();
    let old = old(1, PATIENCE);
    let (path, addr) = (old.path.clone(), old.addrs[0]);
    drop(old.giver);
    assert!(take(&path).unwrap().is_none());
    // The giver holds no socket: the port is free.
    TcpListener::bind(addr).unwrap();
}

#[test]
fn other_sockets_may_be_offered_later() {
    let old = old(3, PATIENCE);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = other.local_addr().unwrap();
    old.giver.offer(vec![other.into()]).unwrap();
    let not_listening = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(old.giver.offer(vec![not_listening.into()]).is_err());
    assert_eq!(addrs(&mut take(&old.path).unwrap().unwrap()), [addr]);
}
