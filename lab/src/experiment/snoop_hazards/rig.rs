//! The world: a peer, a host that bridges the guest's tap, the guest, and a receiver behind the
//! guest.

use std::net::IpAddr;
use std::path::PathBuf;

use taut_sys::tap::Tap;

use super::plan::{AT_ONCE, Cell, Hazard, PORTS, Way};
use crate::experiment::commands::{add_neighbour, ip, nft};
use crate::experiment::guests::network;
use crate::experiment::peer_networks::{LANS, PREFIXES, guest_addr, peer_addr};
use crate::experiment::tap_frames::make_tap;
use crate::experiment::{ExperimentError, Request};
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::world::{World, WorldBuilder};

/// The guest's tap.
pub(super) const TAP: &str = "guest0";
/// The guest's device.
const DEVICE: &str = "eth0";
/// The share of segments lost between the guest and the receiver behind it.
pub(super) const LOSS: f64 = 0.002;

/// The world without processes.
pub(super) struct Rig {
    pub(super) taps: Taps,
    pub(super) world: World,
    pub(super) taut: PathBuf,
}

/// The two devices between which the guest's CPU carries frames.
pub(super) struct Taps {
    /// The guest's tap on the host.
    pub(super) ring: Tap,
    /// The guest's own device.
    pub(super) guest: Tap,
}

// === impl Rig ===

impl Rig {
    pub(super) fn build(request: &Request) -> Result<Self, ExperimentError> {
        let behind = LinkSpec::both(Shape::default().loss(LOSS)).seed(request.seed);
        let world = WorldBuilder::new("snoop-hazards")
            .host("peer")
            .host("host")
            .host("guest")
            .host("behind")
            .link("peer", "host", network::wire())
            .link("guest", "behind", behind)
            .sysctl("guest", "net.ipv4.ip_forward", "1")
            .sysctl("guest", "net.ipv6.conf.all.forwarding", "1")
            .build()?;
        let tap = |host, name| make_tap(&world, host, name);
        let taps = Taps {
            ring: tap("host", TAP)?,
            guest: tap("guest", DEVICE)?,
        };
        let rig = Self {
            taps,
            world,
            taut: request.taut.clone(),
        };
        rig.lay()?;
        Ok(rig)
    }

    fn lay(&self) -> Result<(), ExperimentError> {
        let [peer, host, guest, behind] =
            ["peer", "host", "guest", "behind"].map(|name| self.world.host(name));
        let made = ExperimentError::machine;
        network::bridge(host).map_err(made("create a bridge"))?;
        for device in [host.devices()[0].as_str(), TAP] {
            network::join(host, device).map_err(made("join the bridge"))?;
        }
        let wire = peer.devices()[0].as_str();
        ip(guest, &format!("link set {DEVICE} up"))?;
        for v6 in [false, true] {
            let prefix = PREFIXES[usize::from(v6)];
            let own = self.own_addr("guest", v6);
            ip(guest, &format!("addr add {own}/{prefix} dev {DEVICE}"))?;
            for worker in 0..AT_ONCE {
                let own = peer_addr(worker, v6);
                ip(peer, &format!("addr add {own}/{prefix} dev {wire}"))?;
                add_neighbour(guest, DEVICE, own, (peer, wire))?;
            }
        }
        // Without `src` the kernel would use the address of a link, to which the other hosts have
        // no route.
        for (far, lan, v6) in [
            (IpAddr::from(behind.addr()), LANS[0], false),
            (behind.addr6().into(), LANS[1], true),
        ] {
            let guests = self.own_addr("guest", v6);
            ip(peer, &format!("route add {far} via {guests}"))?;
            let inner = if v6 {
                guest.addr6().into()
            } else {
                IpAddr::from(guest.addr())
            };
            let text = ip(behind, &format!("-j route get {inner}"))?;
            let routes: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            let gateway = routes[0]["gateway"].as_str().unwrap_or_default();
            ip(behind, &format!("route add {lan} via {gateway} src {far}"))?;
        }
        Ok(())
    }

    /// Sets up how the guest forwards in this cell, and restarts the link's losses from the cell's
    /// seed.
    pub(super) fn prepare(&self, cell: &Cell) -> Result<(), ExperimentError> {
        self.world.reseed(cell.seed);
        let behind = self.world.addr("behind");
        let ports = format!("{}-{}", PORTS.start, PORTS.end - 1);
        let rules = match cell.hazard {
            Hazard::Forwarding(Way::Nat) => format!(
                "table ip nat {{
                    chain to {{
                        type nat hook prerouting priority dstnat
                        iifname {DEVICE} tcp dport {ports} dnat to {behind}
                    }}
                    chain from {{
                        type nat hook postrouting priority srcnat
                        oifname {DEVICE} masquerade
                    }}
                }}"
            ),
            Hazard::Forwarding(Way::TtlKept) => "table inet ttl {
                    chain forward {
                        type filter hook forward priority 0
                        meta nfproto ipv4 ip ttl set 64
                        meta nfproto ipv6 ip6 hoplimit set 64
                    }
                }"
            .to_owned(),
            _ => String::new(),
        };
        nft(self.world.host("guest"), &rules)
    }

    /// Returns the name of the host that receives.
    pub(super) fn receiver(&self, cell: &Cell) -> &'static str {
        match cell.hazard {
            Hazard::Forwarding(_) => "behind",
            Hazard::Rcvbuf(_) => "guest",
        }
    }

    /// Returns the address that the peer uses for the receiver.
    pub(super) fn known_addr(&self, cell: &Cell) -> IpAddr {
        match cell.hazard {
            Hazard::Forwarding(Way::Nat) => self.own_addr("guest", cell.v6),
            _ => self.own_addr(self.receiver(cell), cell.v6),
        }
    }

    /// Returns the address that `host` itself has: the guest, or the receiver behind it.
    pub(super) fn own_addr(&self, host: &str, v6: bool) -> IpAddr {
        match (host, v6) {
            ("guest", _) => guest_addr(v6),
            (_, false) => self.world.host(host).addr().into(),
            (_, true) => self.world.host(host).addr6().into(),
        }
    }

    /// Returns the number of segments that the link behind the guest has lost.
    pub(super) fn lost(&self) -> Result<u64, ExperimentError> {
        let reports = self.world.link_reports()?;
        let lost = reports
            .iter()
            .filter(|report| report.name == "guest-behind");
        Ok(lost
            .map(|report| report.a_to_b.path.loss_drops + report.b_to_a.path.loss_drops)
            .sum())
    }
}
