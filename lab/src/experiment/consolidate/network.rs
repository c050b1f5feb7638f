//! The network of the world: a client, a wire of 1 Gbit/s, a host with a bridge and a tap for each
//! guest.
//!
//! ```text
//! client --1 Gbit/s-- wire --driver domain-- uplink + bridge + guests' taps
//! ```
//!
//! `wire` only bridges the link's end and the TAP that the driver domain holds. It is needed
//! because the link's ends belong to the lab, and the driver domain must be a process that can be
//! stopped.

use std::io;
use std::net::Ipv4Addr;

use crate::experiment::ExperimentError;
use crate::experiment::guests::network::{DriverEnds, bridge, held, ip, join, standing, tap, wire};
use taut_netlab::world::{World, WorldBuilder};

pub(super) const CLIENT: &str = "client";
pub(super) const WIRE: &str = "wire";
pub(super) const HOST: &str = "host";
pub(super) const SENDER: &str = "sender";

/// A member of the guests' network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Client,
    /// A guest that sends.
    Sender,
    /// A guest of the host.
    Guest(usize),
}

// === impl Who ===

impl Who {
    fn number(self) -> u8 {
        match self {
            Self::Client => 1,
            Self::Sender => 2,
            Self::Guest(number) => u8::try_from(number).unwrap_or(u8::MAX).saturating_add(10),
        }
    }

    /// Returns the member's address. It is outside 10.77.0.0/16, which worlds use.
    pub(super) fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, 0, self.number())
    }

    pub(super) fn mac(self) -> [u8; 6] {
        [2, 0x78, 0, 0, 0, self.number()]
    }
}

/// Builds the world, without processes. `sender` adds another host, with a sending guest.
pub(super) fn build(guests: usize, sender: bool) -> Result<(World, DriverEnds), ExperimentError> {
    let mut builder = WorldBuilder::new("consolidate")
        .host(CLIENT)
        .host(WIRE)
        .host(HOST);
    builder = builder.link(CLIENT, WIRE, wire());
    if sender {
        builder = builder.host(SENDER).link(SENDER, WIRE, wire());
    }
    let world = builder.build()?;
    let ends = lay_out(&world, guests, sender);
    let ends = ends.map_err(ExperimentError::machine("set up the guests' network"))?;
    Ok((world, ends))
}

fn lay_out(world: &World, guests: usize, sender: bool) -> io::Result<DriverEnds> {
    let [client, wire, host] = [CLIENT, WIRE, HOST].map(|name| world.host(name));
    let to_wire = &client.devices()[0];
    let mac = |who: Who| who.mac().map(|byte| format!("{byte:02x}")).join(":");
    ip(
        client,
        &format!("link set dev {to_wire} address {}", mac(Who::Client)),
    )?;
    ip(
        client,
        &format!("addr add {}/24 dev {to_wire}", Who::Client.address()),
    )?;
    for who in (0..guests).map(Who::Guest).chain([Who::Sender]) {
        let (address, mac) = (who.address(), mac(who));
        ip(
            client,
            &format!("neigh replace {address} lladdr {mac} dev {to_wire} nud permanent"),
        )?;
    }
    bridge(wire)?;
    for device in wire.devices() {
        join(wire, device)?;
    }
    let wire_end = held(wire, "driver")?;
    bridge(host)?;
    let uplink = held(host, "uplink")?;
    for guest in 0..guests {
        standing(host, &tap(guest))?;
    }
    if sender {
        let host = world.host(SENDER);
        bridge(host)?;
        join(host, &host.devices()[0])?;
        standing(host, SENDER)?;
    }
    Ok(DriverEnds {
        wire: wire_end.into(),
        uplink: uplink.into(),
    })
}
