//! Draining, and being killed.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use crate::relay::rig::{PATIENCE, Running, pair, server};

#[test]
fn sigterm_lets_the_open_session_end_before_the_process() {
    let (server, addr) = server();
    let relay = Running::start(addr, &[]);
    let (mut client, mut far) = pair(&relay, &server);
    relay.signal(Signal::TERM);
    client.write_all(b"last words").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = Vec::new();
    far.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"last words");
    drop(far);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    let (code, said) = relay.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("all sessions have ended"), "{said}");
}

/// Returns the number of connections that the kernel has accepted for the listeners at `addr`, and they
/// have not.
fn accept_queue(addr: SocketAddr) -> usize {
    let table = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let local = format!("0100007F:{:04X}", addr.port());
    let rows = table.lines().map(|row| row.split_whitespace().collect());
    // The receive queue of a listener (state 0A) is its accept queue.
    let queues = rows.filter_map(|row: Vec<&str>| {
        let (_, queue) = row[4].split_once(':')?;
        (row[1] == local && row[3] == "0A").then(|| usize::from_str_radix(queue, 16).unwrap())
    });
    queues.sum()
}

#[test]
fn draining_serves_every_connection_that_the_kernel_has_accepted() {
    const CLIENTS: usize = 300;
    let (server, addr) = server();
    let relay = Running::start(addr, &[]);
    // While it is stopped, the kernel completes handshakes for its listener.
    relay.signal(Signal::STOP);
    let stopped = waitpid(Some(Pid::from_child(&relay.child)), WaitOptions::UNTRACED);
    assert!(stopped.unwrap().unwrap().1.stopped());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| TcpStream::connect(relay.listen).unwrap())
        .collect();
    // A client sees the end of its handshake before the kernel of the relay does.
    let deadline = Instant::now() + PATIENCE;
    while accept_queue(relay.listen) < CLIENTS {
        assert!(Instant::now() < deadline, "handshakes do not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    relay.signal(Signal::TERM);
    relay.signal(Signal::CONT);
    let served = std::thread::spawn(move || {
        for _ in 0..CLIENTS {
            let (mut far, _) = server.accept().unwrap();
            far.write_all(b"welcome").unwrap();
        }
    });
    for mut client in clients {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"welcome");
    }
    served.join().unwrap();
    assert_eq!(relay.end().0, Some(0));
}

#[test]
fn a_second_signal_resets_the_remaining_sessions() {
    let (server, addr) = server();
    let relay = Running::start(addr, &[]);
    let (mut client, mut far) = pair(&relay, &server);
    relay.signal(Signal::TERM);
    relay.signal(Signal::INT);
    for end in [&mut client, &mut far] {
        assert_eq!(
            end.read(&mut [0]).unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
    }
    let (code, said) = relay.end();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_killed_relay_resets_its_sessions_and_never_ends_them_in_order() {
    let (server, addr) = server();
    let relay = Running::start(addr, &[]);
    let (mut client, mut far) = pair(&relay, &server);
    far.write_all(b"half of a fi").unwrap();
    let mut got = [0; 12];
    client.read_exact(&mut got).unwrap();
    relay.signal(Signal::KILL);
    for end in [&mut client, &mut far] {
        assert_eq!(
            end.read(&mut [0]).unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
    }
}

#[test]
fn ended_sessions_leave_no_open_descriptor() {
    let (server, addr) = server();
    let mut relay = Running::start(addr, &["--metrics", "127.0.0.1:0"]);
    // The metrics listener is the last socket that it opens.
    relay.wait_for_log("serving OpenMetrics");
    let before = relay.sockets();
    let bulk = vec![7; 4 << 20];
    for round in 0..30 {
        let (mut client, mut far) = pair(&relay, &server);
        match round % 3 {
            // A complete session, with enough data for a pipe.
            0 => std::thread::scope(|s| {
                s.spawn(|| {
                    client.write_all(&bulk).unwrap();
                    client.shutdown(std::net::Shutdown::Write).unwrap();
                });
                let mut got = Vec::new();
                far.read_to_end(&mut got).unwrap();
                assert_eq!(got.len(), bulk.len());
            }),
            // The receiver closes during a transfer, while a pipe contains bytes.
            1 => {
                client.set_nonblocking(true).unwrap();
                while client.write(&bulk).is_ok() {}
                drop(far);
                continue;
            }
            // The sender closes during a transfer.
            _ => {
                client.set_nonblocking(true).unwrap();
                while client.write(&bulk).is_ok() {}
                drop(client);
                let _ = far.read_to_end(&mut Vec::new());
                continue;
            }
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while relay.sockets() > before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    // One that was only open for the start may have been counted before.
    let after = relay.sockets();
    assert!(after <= before, "{after} sockets are open, {before} before");
}
