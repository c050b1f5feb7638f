//! The world: a peer, a guest, a host between them that bridges the guest's tap, and a host behind
//! the guest.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;
use taut_sys::tap::Tap;

use super::plan::{AT_ONCE, GROWN_RMEM, Options, Phase, Side, USUAL_RMEM};
use crate::experiment::ExperimentError;
use crate::experiment::commands::{add_neighbour, ip};
use crate::experiment::guests::snooping;
use crate::experiment::peer_networks::{LANS, PREFIXES, guest_addr, peer_addr};
use crate::experiment::tap_frames::make_tap;
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::world::{Host, TcpMemory, World, WorldBuilder};

/// The guest's tap.
pub(super) const TAP: &str = "guest0";
/// The tap towards the peer.
const UP: &str = "up0";
/// The device of the peer, and of the guest.
const DEVICE: &str = "eth0";
/// The length of all other rings, which must lose no frame.
const AMPLE: u32 = 16_384;

/// Counters of segments that a kernel drops for lack of memory or window.
const DROPS: [&str; 5] = [
    "TCPRcvQDrop",
    "TCPZeroWindowDrop",
    "TCPOFODrop",
    "OfoPruned",
    "RcvPruned",
];
/// The share of segments lost behind the guest, each way.
const LOSS_BEHIND: f64 = 0.005;

/// The world without processes.
pub(super) struct Rig {
    pub(super) taps: Taps,
    /// The limit of the TCP memory of the guest's sockets, if this machine supports such a limit.
    pub(super) memory: Option<TcpMemory>,
    pub(super) world: World,
    pub(super) taut: PathBuf,
}

/// The ends of all wires.
pub(super) struct Taps {
    pub(super) peer: Tap,
    pub(super) up: Tap,
    pub(super) ring: Tap,
    pub(super) guest: Tap,
}

// === impl Rig ===

impl Rig {
    pub(super) fn build(taut: &Path, seed: u64) -> Result<Self, ExperimentError> {
        let inner = LinkSpec::both(Shape::default().loss(LOSS_BEHIND)).seed(seed);
        let world = WorldBuilder::new("snoop-soak")
            .host("peer")
            .host("host")
            .host("guest")
            .host("behind")
            .link("guest", "behind", inner)
            .sysctl("guest", "net.ipv4.ip_forward", "1")
            .sysctl("guest", "net.ipv6.conf.all.forwarding", "1")
            .build()?;
        let tap = |host, name| make_tap(&world, host, name);
        let taps = Taps {
            peer: tap("peer", DEVICE)?,
            up: tap("host", UP)?,
            ring: tap("host", TAP)?,
            guest: tap("guest", DEVICE)?,
        };
        let memory = world.tcp_memory();
        let rig = Self {
            taps,
            memory: memory.map_err(ExperimentError::machine("limit the guest's TCP memory"))?,
            world,
            taut: taut.to_owned(),
        };
        rig.lay()?;
        Ok(rig)
    }

    fn lay(&self) -> Result<(), ExperimentError> {
        self.ip("host", "link add bridge type bridge mcast_snooping 0")?;
        for tap in [UP, TAP] {
            self.ip("host", &format!("link set {tap} master bridge up"))?;
        }
        self.ip("host", &format!("link set {UP} txqueuelen {AMPLE}"))?;
        self.ip("host", "link set bridge up")?;
        let [peer, guest] = ["peer", "guest"].map(|name| self.world.host(name));
        for host in [peer, guest] {
            ip(host, &format!("link set {DEVICE} txqueuelen {AMPLE} up"))?;
        }
        for v6 in [false, true] {
            let prefix = PREFIXES[usize::from(v6)];
            let own = guest_addr(v6);
            ip(guest, &format!("addr add {own}/{prefix} dev {DEVICE}"))?;
            for worker in 0..AT_ONCE {
                let own = peer_addr(worker as u16, v6);
                ip(peer, &format!("addr add {own}/{prefix} dev {DEVICE}"))?;
                add_neighbour(guest, DEVICE, own, (peer, DEVICE))?;
            }
        }
        for v6 in [false, true] {
            self.lay_behind(v6)?;
        }
        Ok(())
    }

    /// Sets up routes between the peer and the host behind the guest.
    fn lay_behind(&self, v6: bool) -> Result<(), ExperimentError> {
        let [guest, behind] = [false, true].map(|behind| self.addr(Side::Guest, behind, v6, 0));
        let inner = self.world.host("guest");
        let inner = match v6 {
            false => IpAddr::from(inner.addr()),
            true => inner.addr6().into(),
        };
        let text = self.ip("behind", &format!("-j route get {inner}"))?;
        let routes: Value = serde_json::from_str(&text).unwrap_or_default();
        let gateway = routes[0]["gateway"].as_str().unwrap_or_default();
        // Without `src` the kernel would use the address of the link, to which the peer has no
        // route.
        let lan = LANS[usize::from(v6)];
        self.ip(
            "behind",
            &format!("route add {lan} via {gateway} src {behind}"),
        )?;
        self.ip("peer", &format!("route add {behind} via {guest}"))?;
        Ok(())
    }

    /// Returns the host on which a side of a transfer runs.
    pub(super) fn host(&self, side: Side, behind: bool) -> &Host {
        self.world.host(match side {
            Side::Guest if behind => "behind",
            _ => side.host(),
        })
    }

    /// Returns the address of a side of a transfer. The peer has one for each worker.
    pub(super) fn addr(&self, side: Side, behind: bool, v6: bool, worker: u16) -> IpAddr {
        let host = self.host(side, behind);
        match (side, v6) {
            (Side::Peer, _) => peer_addr(worker, v6),
            (Side::Guest, _) if !behind => guest_addr(v6),
            (Side::Guest, false) => host.addr().into(),
            (Side::Guest, true) => host.addr6().into(),
        }
    }

    /// Applies the phase's settings, while there is no connection and no `taut snoop`.
    pub(super) fn prepare(&self, phase: &Phase) -> Result<(), ExperimentError> {
        self.ip("host", &format!("link set {TAP} txqueuelen {}", phase.ring))?;
        let rmem = match phase.options {
            Options::Grow => GROWN_RMEM,
            _ => USUAL_RMEM,
        };
        let guest = self.world.host("guest");
        guest.set_sysctl("net.ipv4.tcp_rmem", rmem)?;
        let shrinks = if phase.faults.shrinks { "1" } else { "0" };
        guest.set_sysctl("net.ipv4.tcp_shrink_window", shrinks)?;
        let ecn = if phase.options == Options::Ecn {
            "1"
        } else {
            "0"
        };
        for host in ["peer", "guest", "behind"] {
            self.world.host(host).set_sysctl("net.ipv4.tcp_ecn", ecn)?;
        }
        Ok(())
    }

    /// Returns the number of segments that the guest has dropped for lack of memory or window
    /// (`TcpExt` of `nstat`).
    pub(super) fn guest_dropped(&self) -> Result<u64, ExperimentError> {
        let read = self
            .world
            .host("guest")
            .run(|| std::fs::read_to_string("/proc/thread-self/net/netstat"))?;
        let text = read.map_err(ExperimentError::machine("read the guest's counters"))?;
        Ok(DROPS.iter().map(|name| counter(&text, name)).sum())
    }

    /// Returns the number of segments that the link behind the guest has lost.
    pub(super) fn lost_behind(&self) -> Result<u64, ExperimentError> {
        let reports = self.world.link_reports()?;
        let each = reports
            .iter()
            .map(|r| r.a_to_b.path.loss_drops + r.b_to_a.path.loss_drops);
        Ok(each.sum())
    }

    /// Returns the number of frames that the guest's ring has refused.
    pub(super) fn dropped(&self) -> Result<u64, ExperimentError> {
        let text = self.ip("host", &format!("-s -j link show {TAP}"))?;
        let links: Value = serde_json::from_str(&text).unwrap_or_default();
        Ok(links[0]["stats64"]["tx"]["dropped"].as_u64().unwrap_or(0))
    }

    /// Returns the control address of `taut snoop`.
    pub(super) fn control(&self) -> PathBuf {
        self.world.dir().join("snoop.sock")
    }

    /// Returns the tap's part of `taut snoop status --json`; `Null` while no process answers.
    pub(super) fn status(&self) -> Value {
        let taps = snooping::status(&self.taut, &self.control());
        let tap = taps.ok().and_then(|taps| taps.into_iter().next());
        tap.unwrap_or_default()
    }

    fn ip(&self, host: &str, line: &str) -> Result<String, ExperimentError> {
        ip(self.world.host(host), line)
    }
}

// === impl Side ===

impl Side {
    fn host(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Guest => "guest",
        }
    }

    pub(super) fn other(self) -> Self {
        match self {
            Self::Peer => Self::Guest,
            Self::Guest => Self::Peer,
        }
    }
}

/// Returns a counter of `/proc/net/netstat`: a line of names, and a line of values below it.
fn counter(netstat: &str, name: &str) -> u64 {
    let lines: Vec<_> = netstat.lines().collect();
    let pairs = lines.chunks_exact(2);
    let found = pairs.filter_map(|pair| {
        let at = pair[0].split(' ').position(|word| word == name)?;
        pair[1].split(' ').nth(at)?.parse::<u64>().ok()
    });
    found.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_below_its_name() {
        let text = "TcpExt: A TCPRcvQDrop B\nTcpExt: 1 7 2\nIpExt: A C\nIpExt: 5 6\n";
        assert_eq!(counter(text, "TCPRcvQDrop"), 7);
        assert_eq!(counter(text, "C"), 6);
        assert_eq!(counter(text, "D"), 0);
    }
}
