//! A flood of forged SYNs, and how many of them reach each stage.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Instant;

use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto};
use taut_relay::early_syn::{Devices, Exit, Limiter, Limits};

use super::rig::{LINK, Net, RELAY};
use crate::wait::wait_until;

/// Sends a SYN from each of `count` unused addresses from number `first` on, in prefixes of their own, and in
/// place of each that the relay's device drops, from another one. Returns the first number that is not used.
pub(crate) fn forge(net: &Net, to: SocketAddrV4, first: u32, count: u32) -> u32 {
    let before = net.dropped();
    let send = || send_syns(to, unused_clients(first, count));
    net.client.run(send).unwrap();
    match net.dropped() - before {
        0 => first + count,
        dropped => forge(net, to, first + count, dropped),
    }
}

/// Returns `count` clients at addresses that no host has, in prefixes of their own.
pub(crate) fn unused_clients(first: u32, count: u32) -> impl Iterator<Item = SocketAddrV4> + Send {
    let addr = |n: u32| Ipv4Addr::from_bits(0x2000_0000 + (n << 8));
    (first..first + count).map(move |n| SocketAddrV4::new(addr(n), 5000))
}

/// Sends a SYN from each of `clients` out of the namespace of the calling thread.
pub(crate) fn send_syns(to: SocketAddrV4, clients: impl IntoIterator<Item = SocketAddrV4>) {
    let raw = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW));
    let raw = raw.unwrap();
    for from in clients {
        // The kernel fills in the length and checksum of IPv4; the one of TCP is wrong, which a
        // program at a device does not check.
        let mut packet = [0u8; 40];
        packet[0] = 0x45;
        packet[8] = 64;
        packet[9] = 6;
        packet[12..16].copy_from_slice(&from.ip().octets());
        packet[16..20].copy_from_slice(&to.ip().octets());
        packet[20..22].copy_from_slice(&from.port().to_be_bytes());
        packet[22..24].copy_from_slice(&to.port().to_be_bytes());
        packet[32] = 5 << 4;
        packet[33] = 0x02;
        let sent = rustix::net::sendto(&raw, &packet, SendFlags::empty(), &to);
        assert_eq!(sent, Ok(packet.len()));
    }
}

#[test]
fn a_flood_of_forged_syns_is_bounded_at_the_device_and_again_by_the_limiter() {
    const FORGED: u32 = 20_000;
    const CEILING: u32 = 1000;
    let net = Net::new();
    let to = SocketAddrV4::new(RELAY, 80);
    let _listener = net.listen(SocketAddr::V4(to));
    let devices = Devices::Named(vec![LINK.to_owned()]);
    let mut watch = net.watch_on(devices, &[to.into()], CEILING);
    let start = Instant::now();
    forge(&net, to, 0, FORGED);
    let mut exits = watch.0.exits().unwrap();
    wait_until("the last of them", || {
        exits = watch.0.exits().unwrap();
        let looked_at = [Exit::Emitted, Exit::OverCeiling, Exit::RingFull];
        looked_at.map(|exit| exits.get(exit)).iter().sum::<u64>() == u64::from(FORGED)
    });
    // The ceiling applies to seconds of the clock, of which one may end in between.
    let seconds = u32::try_from(start.elapsed().as_secs()).unwrap() + 2;
    assert!(
        exits.get(Exit::Emitted) <= u64::from(CEILING * seconds),
        "{exits:?} in at most {seconds} s"
    );

    let events = watch.events(exits.get(Exit::Emitted) as usize);
    let limits = Limits::default();
    let mut limiter = Limiter::new(limits);
    let now = Instant::now();
    for event in &events {
        limiter.admit(event, now);
    }
    assert_eq!(limiter.pending(), limits.pending);
    assert_eq!(limiter.counts().admitted, limits.pending as u64);
}
