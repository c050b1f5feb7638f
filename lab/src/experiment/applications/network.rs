//! The network of the world: a client and two hosts at a switch of 1 Gbit/s, each host with two
//! guests.
//!
//! ```text
//! client --1 Gbit/s-- switch --1 Gbit/s-- wire-a --driver domain-- host-a: bridge + 2 guests' taps
//!                            --1 Gbit/s-- wire-b --driver domain-- host-b: bridge + 2 guests' taps
//! ```

use std::io;
use std::net::Ipv4Addr;

use crate::experiment::ExperimentError;
use crate::experiment::guests::network::{DriverEnds, bridge, held, ip, join, standing, tap, wire};
use taut_netlab::world::{World, WorldBuilder};

pub(super) const CLIENT: &str = "client";
const SWITCH: &str = "switch";
const WIRES: [&str; 2] = ["wire-a", "wire-b"];
pub(super) const HOSTS: [&str; 2] = ["host-a", "host-b"];

/// The number of guests of each host.
pub(super) const EACH: usize = 2;
/// The number of all guests.
pub(super) const GUESTS: usize = HOSTS.len() * EACH;

/// The numbers of the guests of a host.
pub(super) fn guests_of(host: usize) -> std::ops::Range<usize> {
    host * EACH..(host + 1) * EACH
}

/// The client's address. It is outside 10.77.0.0/16, which worlds use.
pub(super) const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const CLIENT_MAC: [u8; 6] = [2, 0x78, 0, 0, 0, 1];

fn number(guest: usize) -> u8 {
    u8::try_from(guest).unwrap_or(u8::MAX).saturating_add(10)
}

pub(super) fn address(guest: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, 0, number(guest))
}

pub(super) fn mac(guest: usize) -> [u8; 6] {
    [2, 0x78, 0, 0, 0, number(guest)]
}

/// Returns all members of the network except this guest.
pub(super) fn neighbours(guest: usize) -> Vec<(Ipv4Addr, [u8; 6])> {
    let others = (0..GUESTS).filter(|other| *other != guest);
    let others = others.map(|other| (address(other), mac(other)));
    others.chain([(CLIENT_ADDRESS, CLIENT_MAC)]).collect()
}

/// Builds the world, without processes.
pub(super) fn build() -> Result<(World, Vec<DriverEnds>), ExperimentError> {
    let mut builder = WorldBuilder::new("applications")
        .host(CLIENT)
        .host(SWITCH)
        .link(CLIENT, SWITCH, wire());
    for (wire_name, host) in WIRES.into_iter().zip(HOSTS) {
        builder = builder
            .host(wire_name)
            .host(host)
            .link(SWITCH, wire_name, wire());
    }
    let world = builder.build()?;
    let ends = lay_out(&world);
    let ends = ends.map_err(ExperimentError::machine("set up the guests' network"))?;
    Ok((world, ends))
}

fn lay_out(world: &World) -> io::Result<Vec<DriverEnds>> {
    let client = world.host(CLIENT);
    let device = &client.devices()[0];
    let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    ip(
        client,
        &format!("link set dev {device} address {}", text(CLIENT_MAC)),
    )?;
    ip(
        client,
        &format!("addr add {CLIENT_ADDRESS}/24 dev {device}"),
    )?;
    for guest in 0..GUESTS {
        let (address, mac) = (address(guest), text(mac(guest)));
        ip(
            client,
            &format!("neigh replace {address} lladdr {mac} dev {device} nud permanent"),
        )?;
    }
    for name in [SWITCH].into_iter().chain(WIRES) {
        let host = world.host(name);
        bridge(host)?;
        for device in host.devices() {
            join(host, device)?;
        }
    }
    let mut ends = Vec::new();
    for (number, (wire, host)) in WIRES.into_iter().zip(HOSTS).enumerate() {
        let (wire, host) = (world.host(wire), world.host(host));
        let wire = held(wire, "driver")?;
        bridge(host)?;
        let uplink = held(host, "uplink")?;
        for guest in guests_of(number) {
            standing(host, &tap(guest))?;
        }
        ends.push(DriverEnds {
            wire: wire.into(),
            uplink: uplink.into(),
        });
    }
    Ok(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_guest_is_on_one_host() {
        let all: Vec<usize> = (0..HOSTS.len()).flat_map(guests_of).collect();
        assert_eq!(all, (0..GUESTS).collect::<Vec<_>>());
    }

    #[test]
    fn a_guest_knows_all_others_and_the_client() {
        let known = neighbours(1);
        assert_eq!(known.len(), GUESTS);
        assert!(!known.contains(&(address(1), mac(1))));
    }
}
