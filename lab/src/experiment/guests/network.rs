//! The parts of guests' networks: a wire, bridges, and taps.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use taut_sys::tap::Tap;

use super::configuration::RING;
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::{BitsPerSecond, Bytes};
use taut_netlab::world::Host;

/// The length of the rings through which frames reach the driver domain. It is that of a network
/// card and its driver; these rings are not measured.
const DRIVER_RING: u32 = 4096;

/// The kernel's default length of a tap's ring (TUN_READQ_SIZE).
const RING_AS_IT_COMES: u32 = 500;

/// The address of the server that serves a guest alone. It is outside 10.77.0.0/16, which worlds
/// use.
pub(in crate::experiment) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
pub(in crate::experiment) const SERVER_MAC: [u8; 6] = [2, 0x78, 0, 0, 0, 1];
/// The address and the MAC address of the guest that is alone with the server.
pub(in crate::experiment) const ALONE: (Ipv4Addr, [u8; 6]) =
    (Ipv4Addr::new(10, 78, 0, 10), [2, 0x78, 0, 0, 0, 10]);
/// The tap of that guest.
pub(in crate::experiment) const TAP: &str = "guest0";

/// Returns the name of a guest's tap.
pub(in crate::experiment) fn tap(guest: usize) -> String {
    format!("guest{guest}")
}

/// Returns a Gigabit Ethernet link with the latency of a switch.
pub(in crate::experiment) fn wire() -> LinkSpec {
    let shape = Shape::delay(Duration::from_micros(50))
        .rate(BitsPerSecond::giga(1))
        .queue(Bytes::mega(2));
    LinkSpec::both(shape)
}

/// The driver domain's TAPs.
pub(in crate::experiment) struct DriverEnds {
    pub(in crate::experiment) wire: OwnedFd,
    pub(in crate::experiment) uplink: OwnedFd,
}

/// Creates a bridge that forwards as switches do and sends no frames of its own.
pub(in crate::experiment) fn bridge(host: &Host) -> io::Result<()> {
    for key in ["all", "default"] {
        let key = format!("net.ipv6.conf.{key}.disable_ipv6");
        host.set_sysctl(&key, "1").map_err(io::Error::other)?;
    }
    // Addresses must not expire within a run: the bridge sends frames for unknown addresses to all
    // guests.
    ip(
        host,
        "link add name switch type bridge mcast_snooping 0 ageing_time 3600000",
    )?;
    ip(host, "link set dev switch up")
}

pub(in crate::experiment) fn join(host: &Host, device: &str) -> io::Result<()> {
    ip(host, &format!("link set dev {device} master switch up"))
}

/// Creates a TAP on the bridge, and returns the TAP's other side.
pub(in crate::experiment) fn held(host: &Host, name: &str) -> io::Result<Tap> {
    let tap = host.run(|| Tap::create(name)).map_err(io::Error::other)?;
    let tap = tap.map_err(io::Error::other)?;
    ip(
        host,
        &format!("link set dev {name} txqueuelen {DRIVER_RING}"),
    )?;
    join(host, name)?;
    Ok(tap)
}

/// Creates a TAP on the bridge for a guest to open.
pub(in crate::experiment) fn standing(host: &Host, name: &str) -> io::Result<()> {
    let tap = host.run(|| Tap::create(name)).map_err(io::Error::other)?;
    tap.map_err(io::Error::other)?.persist()?;
    join(host, name)
}

/// Gives a guest's tap a long ring without a queueing discipline, or restores the defaults.
pub(in crate::experiment) fn tune(host: &Host, tap: &str, tuned: bool) -> io::Result<()> {
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

pub(in crate::experiment) fn ip(host: &Host, what: &str) -> io::Result<()> {
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

/// Sets up a guest alone with a server: its tap on a bridge with the link of `client`.
pub(in crate::experiment) fn lay_out_alone(server: &Host, client: &Host) -> io::Result<()> {
    let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    let device = &server.devices()[0];
    ip(
        server,
        &format!("link set dev {device} address {}", mac(SERVER_MAC)),
    )?;
    ip(server, &format!("addr add {SERVER}/24 dev {device}"))?;
    ip(
        server,
        &format!(
            "neigh replace {} lladdr {} dev {device} nud permanent",
            ALONE.0,
            mac(ALONE.1)
        ),
    )?;
    bridge(client)?;
    join(client, &client.devices()[0])?;
    standing(client, TAP)
}
