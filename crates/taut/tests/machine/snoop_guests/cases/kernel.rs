//! What a guest's kernel and its applications can do to what is in the ring and was acknowledged early.

use std::sync::MutexGuard;
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use taut_sys::socket::receiver::{drop_input, set_window_clamp};
use taut_sys_testing::skip::has_programs;

use super::{BEGUN, GOES_ON, PORT, TAP, TRIES, is_exposed};
use crate::snoop_guests::namespace::{Namespace, Receiver};
use crate::snoop_guests::snoop::Snoop;
use crate::snoop_guests::stream::Stream;
use crate::snoop_guests::world::World;

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

    /// The guest has no processor, and much was acknowledged early of which it has taken nothing, until this is dropped.
    fn exposed(&self, stream: &Stream) -> MutexGuard<'_, ()> {
        exposed(&self.guest, &self.snoop, stream)
    }

    /// The guest runs again, and takes some of what is in its ring. (Most of it comes as frames of many segments.)
    fn takes_some(&self, waits: MutexGuard<'_, ()>) {
        drop(waits);
        self.guest.takes(3);
    }

    /// The stream goes on, and everything arrives.
    fn arrives_whole(self, receiver: Receiver, stream: Stream) {
        stream.moves_on(GOES_ON);
        assert_eq!(stream.end(), receiver.digest());
        self.snoop.stop();
    }
}

fn exposed<'a>(guest: &'a Namespace, snoop: &Snoop, stream: &Stream) -> MutexGuard<'a, ()> {
    for _ in 0..TRIES {
        let waits = guest.waits();
        if is_exposed(snoop, stream) {
            return waits;
        }
        drop(waits);
        stream.moves_on(BEGUN);
    }
    panic!("in {TRIES} tries, the sender always had to wait for the guest");
}

#[test]
fn what_a_smaller_receive_buffer_drops_is_repaired() {
    for shrinks in ["0", "1"] {
        let rig = Rig::new();
        let (receiver, stream) = rig.stream();
        let waits = rig.exposed(&stream);
        // Not earlier: a guest that takes its window back, as it may when its application reads slowly, gets no early ACKs.
        rig.guest.set("ipv4/tcp_shrink_window", shrinks);
        // The application reads nothing meanwhile, and its buffer fills.
        let rests = receiver.rests();
        set_socket_recv_buffer_size(&receiver.socket, LEAST).unwrap();
        drop(waits);
        rig.snoop.repairs(TAP);
        set_socket_recv_buffer_size(&receiver.socket, ENOUGH).unwrap();
        drop(rests);
        rig.arrives_whole(receiver, stream);
    }
}

#[test]
fn a_window_that_is_clamped_takes_nothing_back() {
    let rig = Rig::new();
    let (receiver, stream) = rig.stream();
    let waits = rig.exposed(&stream);
    set_window_clamp(&receiver.socket, 4096).unwrap();
    rig.takes_some(waits);
    set_window_clamp(&receiver.socket, 1 << 20).unwrap();
    rig.arrives_whole(receiver, stream);
}

#[test]
fn what_a_sockets_filter_drops_is_repaired() {
    let rig = Rig::new();
    let (receiver, stream) = rig.stream();
    let waits = rig.exposed(&stream);
    drop_input(&receiver.socket, true).unwrap();
    rig.takes_some(waits);
    drop_input(&receiver.socket, false).unwrap();
    rig.snoop.repairs(TAP);
    rig.arrives_whole(receiver, stream);
}

#[test]
fn what_a_firewall_drops_is_repaired() {
    if !has_programs(&["nft"]) {
        return;
    }
    let rig = Rig::new();
    let (receiver, stream) = rig.stream();
    let waits = rig.exposed(&stream);
    rig.guest.run("nft", "add table inet t");
    rig.guest.run(
        "nft",
        "add chain inet t input { type filter hook input priority 0 ; }",
    );
    rig.guest.run(
        "nft",
        &format!("add rule inet t input tcp dport {PORT} drop"),
    );
    rig.takes_some(waits);
    rig.guest.run("nft", "delete table inet t");
    rig.snoop.repairs(TAP);
    rig.arrives_whole(receiver, stream);
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
    let waits = exposed(&guest, &snoop, &stream);
    // What the sender was told is bounded, so that it learns of it.
    assert_eq!(stream.breaks().kind(), std::io::ErrorKind::TimedOut);
    drop(waits);
    drop(guest);
    snoop.says("gone");
    assert!(snoop.taps().is_empty());
    snoop.stop();
}
