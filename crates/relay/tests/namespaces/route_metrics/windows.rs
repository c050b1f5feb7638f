//! Windows that follow what the peers need.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use taut_relay::config::{Forward, INITIAL_WINDOW};
use taut_sys::sock_diag::{Connection, SockDiag};

use super::node::{config, figure, start};
use super::rig::*;
use crate::members::{Identities, member};

/// A file that takes several round trips with the initial window.
const FILE: usize = 16 << 20;

/// Returns the widest receive window, in bytes, that a connection of a host has.
fn widest(relays: &Relays, host: &str, of_mesh: impl Fn(&Connection) -> bool + Sync) -> u64 {
    let dump = || {
        let mut widest = 0;
        let mut see = |connection: Connection| {
            let memory = connection.memory.filter(|_| of_mesh(&connection));
            // The kernel doubles what was asked for.
            widest = widest.max(memory.map_or(0, |memory| u64::from(memory.rcvbuf) / 2));
        };
        SockDiag::open().unwrap().dump(&mut see).unwrap();
        widest
    };
    relays.world.host(host).run(dump).unwrap()
}

#[test]
fn connections_that_fill_their_window_are_followed_by_ones_with_a_larger_one() {
    // A round trip of 400 ms: the initial window carries 10 MB/s, which a busy machine can fill.
    let relays = Relays::with_delay("route-windows", Duration::from_millis(100));
    let ids = Identities::new();
    let [far_ip, _] = relays.far();
    let server = SocketAddr::new(far_ip, 9000);
    let bind = || TcpListener::bind(server);
    let server_listener = relays.world.host("far").run(bind).unwrap().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = server_listener.accept() {
            let _ = client.write_all(&vec![7; FILE]);
        }
    });
    let members = [
        member("near", &[1]),
        member("far", &[2]).at(format!("{far_ip}:4000")),
    ];
    let mut mesh = ids.mesh("far", 2, &members);
    mesh.listen = vec![format!("{far_ip}:4000").parse().unwrap()];
    mesh.allow = vec![format!("{far_ip}/32:*").parse().unwrap()];
    let far = start(&relays, "far", &config(Vec::new(), mesh));

    let listen = vec!["127.0.0.1:8000".parse().unwrap()];
    let mut forward = Forward::new(listen, server.to_string().parse().unwrap());
    forward.via = vec![vec!["far".parse().unwrap()]];
    let mut mesh = ids.mesh("near", 1, &members);
    mesh.pool.min = 1;
    let near = start(&relays, "near", &config(vec![forward], mesh));
    let address: SocketAddr = "127.0.0.1:8000".parse().unwrap();
    let download = || {
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut file = Vec::new();
        client.read_to_end(&mut file).unwrap();
        assert_eq!(file.len(), FILE);
    };

    let granted = |node, peer| -> u64 {
        let name = format!("taut_relay_peer_granted_window_bytes{{peer=\"{peer}\"}}");
        figure(node, &name).parse().unwrap()
    };
    let initial = u64::from(INITIAL_WINDOW);
    assert_eq!(granted(&near, "far"), initial);
    wait_until("a larger window", || {
        relays.world.host("near").run(download).unwrap();
        granted(&near, "far") >= 2 * initial && granted(&far, "near") >= 2 * initial
    });
    // Connections that were ready are replaced, and the mesh port accepts with the larger window.
    let dialled = SocketAddr::new(far_ip, 4000);
    wait_until("a new connection of the dialler", || {
        widest(&relays, "near", |c| c.remote == dialled) >= 2 * initial
    });
    // A session is what makes the dialler connect once more.
    wait_until("a new connection of the acceptor", || {
        relays.world.host("near").run(download).unwrap();
        widest(&relays, "far", |c| c.local == dialled) >= 2 * initial
    });
    assert!(figure(&near, "taut_relay_window_promised_bytes") != "0");
}
