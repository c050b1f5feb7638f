//! The network of the world: a client, a wire of 1 Gbit/s, a host with a bridge and a tap for each guest.
//!
//! ```text
//! client --1 Gbit/s-- wire --driver domain-- uplink + bridge + guests' taps
//! ```
//!
//! `wire` has nothing but a bridge between the link's end and the TAP whose other side the driver domain
//! holds: the link's own ends are the lab's, and the driver domain is to be a process that can be stopped.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use taut_sys::tap::Tap;

use super::plan::RING;
use crate::experiment::ExperimentError;
use crate::link::shape::{LinkSpec, Shape};
use crate::units::{BitsPerSecond, Bytes};
use crate::world::{Host, World, WorldBuilder};

pub(super) const CLIENT: &str = "client";
pub(super) const WIRE: &str = "wire";
pub(super) const HOST: &str = "host";
pub(super) const SENDER: &str = "sender";

/// Places of the rings through which frames come to the driver domain: what a network card and its
/// driver have room for. They are not what is measured.
const DRIVER_RING: u32 = 4096;

/// Places that the kernel gives a tap's ring by itself (TUN_READQ_SIZE).
const RING_AS_IT_COMES: u32 = 500;

/// Where a guest's packets go in and out.
pub(super) fn tap(guest: usize) -> String {
    format!("guest{guest}")
}

/// Who is in the network of guests.
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

    /// Beside those of worlds, which are of 10.77.0.0/16.
    pub(super) fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, 0, self.number())
    }

    pub(super) fn mac(self) -> [u8; 6] {
        [2, 0x78, 0, 0, 0, self.number()]
    }
}

/// What the driver domain holds.
pub(super) struct DriverEnds {
    pub(super) wire: OwnedFd,
    pub(super) uplink: OwnedFd,
}

/// A Gigabit Ethernet, with the latency of a switch.
fn wire() -> LinkSpec {
    let shape = Shape::delay(Duration::from_micros(50))
        .rate(BitsPerSecond::giga(1))
        .queue(Bytes::mega(2));
    LinkSpec::both(shape)
}

/// The world, without processes yet. `sender` is another host with a guest that sends.
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
    let ends = ends.map_err(ExperimentError::machine("lay out the guests' network"))?;
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

/// A bridge that does what switches do, and says nothing itself.
fn bridge(host: &Host) -> io::Result<()> {
    for key in ["all", "default"] {
        let key = format!("net.ipv6.conf.{key}.disable_ipv6");
        host.set_sysctl(&key, "1").map_err(io::Error::other)?;
    }
    // It forgets nobody within a run: what it does not know goes to all guests.
    ip(
        host,
        "link add name switch type bridge mcast_snooping 0 ageing_time 3600000",
    )?;
    ip(host, "link set dev switch up")
}

fn join(host: &Host, device: &str) -> io::Result<()> {
    ip(host, &format!("link set dev {device} master switch up"))
}

/// A TAP on the bridge whose other side is held here.
fn held(host: &Host, name: &str) -> io::Result<Tap> {
    let tap = host.run(|| Tap::create(name)).map_err(io::Error::other)?;
    let tap = tap.map_err(io::Error::other)?;
    ip(
        host,
        &format!("link set dev {name} txqueuelen {DRIVER_RING}"),
    )?;
    join(host, name)?;
    Ok(tap)
}

/// A TAP on the bridge for a guest to open.
fn standing(host: &Host, name: &str) -> io::Result<()> {
    let tap = host.run(|| Tap::create(name)).map_err(io::Error::other)?;
    tap.map_err(io::Error::other)?.stay()?;
    join(host, name)
}

/// Gives a guest's tap a long ring with no queue before it, or what it had by itself.
pub(super) fn tune(host: &Host, tap: &str, tuned: bool) -> io::Result<()> {
    let ring = if tuned { RING } else { RING_AS_IT_COMES };
    ip(host, &format!("link set dev {tap} txqueuelen {ring}"))?;
    let discipline = match tuned {
        true => "noqueue".to_owned(),
        false => std::fs::read_to_string("/proc/sys/net/core/default_qdisc")?,
    };
    let netns = host.netns().name();
    let discipline = discipline.trim();
    run(
        "tc",
        &format!("-n {netns} qdisc replace dev {tap} root {discipline}"),
    )
}

fn ip(host: &Host, what: &str) -> io::Result<()> {
    run("ip", &format!("-n {} {what}", host.netns().name()))
}

fn run(program: &str, line: &str) -> io::Result<()> {
    let output = Command::new(program)
        .args(line.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .map_err(|e| io::Error::other(format!("{program}: {e} (Debian package iproute2)")))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(format!(
                "{program} {line}: {}",
                said.trim()
            )))
        }
    }
}
