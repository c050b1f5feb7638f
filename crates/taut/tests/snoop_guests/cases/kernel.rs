//! What a guest's kernel and its applications can do to what is in the ring and was acknowledged early.

use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use taut_sys::socket::receiver::{drop_input, set_window_clamp};

use super::{BEGUN, GOES_ON, MUCH, PORT, TAP};
use crate::namespace::{Namespace, Receiver};
use crate::snoop::Snoop;
use crate::stream::Stream;
use crate::world::World;

/// Less than any kernel gives: it takes its least instead.
const LEAST: usize = 1;

/// Enough for what a stream has on its way.
const ENOUGH: usize = 1 << 20;

struct Rig {
    guest: Namespace,
    snoop: Snoop,
    world: World,
}

// === impl Rig ===

impl Rig {
    fn new() -> Self {
        let world = World::new(&[]);
        let guest = Namespace::new(&world, TAP);
        let snoop = Snoop::start(&world);
        Self {
            guest,
            snoop,
            world,
        }
    }

    fn stream(&self) -> (Receiver, Stream) {
        let connect = || Stream::start(&self.world, PORT);
        let (receiver, stream) = self.guest.receive(PORT, connect);
        stream.moves_on(BEGUN);
        (receiver, stream)
    }

    /// Does `harm` while much was acknowledged early and the guest has taken none of it, and `end` when it has taken
    /// some. Everything has to arrive all the same.
    fn survives(
        &self,
        receiver: Receiver,
        stream: Stream,
        harm: impl FnOnce(&Receiver),
        end: impl FnOnce(&Receiver),
    ) {
        let waits = self.guest.waits();
        self.snoop.owes(TAP, MUCH);
        harm(&receiver);
        drop(waits);
        // Not all: most come as super-frames of many segments.
        self.guest.takes(3);
        end(&receiver);
        stream.moves_on(GOES_ON);
        assert_eq!(stream.end(), receiver.digest());
    }

    /// Whether the host has retransmitted something to the guest.
    fn has_repaired(&self) -> bool {
        self.snoop.status(TAP)["repaired"] != 0
    }
}

#[test]
fn what_a_smaller_receive_buffer_drops_is_repaired() {
    for shrinks in ["0", "1"] {
        let rig = Rig::new();
        rig.guest.set("ipv4/tcp_shrink_window", shrinks);
        let (receiver, stream) = rig.stream();
        let harm = |receiver: &Receiver| {
            set_socket_recv_buffer_size(&receiver.socket, LEAST).unwrap();
        };
        let end = |receiver: &Receiver| {
            set_socket_recv_buffer_size(&receiver.socket, ENOUGH).unwrap();
        };
        rig.survives(receiver, stream, harm, end);
        assert!(rig.has_repaired());
        rig.snoop.stop();
    }
}

#[test]
fn a_window_that_is_clamped_takes_nothing_back() {
    let rig = Rig::new();
    let (receiver, stream) = rig.stream();
    let harm = |receiver: &Receiver| set_window_clamp(&receiver.socket, 4096).unwrap();
    let end = |receiver: &Receiver| set_window_clamp(&receiver.socket, 1 << 20).unwrap();
    rig.survives(receiver, stream, harm, end);
    rig.snoop.stop();
}

#[test]
fn what_a_sockets_filter_drops_is_repaired() {
    let rig = Rig::new();
    let (receiver, stream) = rig.stream();
    let harm = |receiver: &Receiver| drop_input(&receiver.socket, true).unwrap();
    let end = |receiver: &Receiver| drop_input(&receiver.socket, false).unwrap();
    rig.survives(receiver, stream, harm, end);
    assert!(rig.has_repaired());
    rig.snoop.stop();
}

#[test]
fn what_a_firewall_drops_is_repaired() {
    let rig = Rig::new();
    let (receiver, stream) = rig.stream();
    let harm = |_: &Receiver| {
        rig.guest.run("nft", "add table inet t");
        let chain = "add chain inet t input { type filter hook input priority 0 ; }";
        rig.guest.run("nft", chain);
        rig.guest.run(
            "nft",
            &format!("add rule inet t input tcp dport {PORT} drop"),
        );
    };
    let end = |_: &Receiver| rig.guest.run("nft", "delete table inet t");
    rig.survives(receiver, stream, harm, end);
    assert!(rig.has_repaired());
    rig.snoop.stop();
}

#[test]
fn a_guest_that_goes_breaks_the_connection_and_nothing_else() {
    let Rig {
        guest,
        snoop,
        world,
    } = Rig::new();
    let connect = || Stream::with_timeout(&world, PORT, Duration::from_secs(3));
    let (_receiver, stream) = guest.receive(PORT, connect);
    stream.moves_on(BEGUN);
    let waits = guest.waits();
    snoop.owes(TAP, MUCH);
    // What the sender was told is bounded, so that it learns of it.
    assert_eq!(stream.breaks().kind(), std::io::ErrorKind::TimedOut);
    drop(waits);
    drop(guest);
    snoop.says("gone");
    assert!(snoop.taps().is_empty());
    snoop.stop();
}
