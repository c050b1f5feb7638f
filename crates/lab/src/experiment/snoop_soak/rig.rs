//! The world: a peer, a guest, and a host between them that has the guest's tap at its bridge.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use taut_sys::tap::{Tap, TapError};

use super::plan::{GROWN_RMEM, Options, Phase, Side, USUAL_RMEM};
use crate::experiment::ExperimentError;
use crate::experiment::commands::ip;
use crate::world::{Host, World, WorldBuilder};

/// The guest's tap.
pub(super) const TAP: &str = "guest0";
/// The tap towards the peer.
const UP: &str = "up0";
/// The device of the peer, and of the guest.
const DEVICE: &str = "eth0";
/// Places of all rings but the guest's: nothing is to be lost in them.
const AMPLE: u32 = 16_384;

/// The world with nothing running in it.
pub(super) struct Rig {
    pub(super) taps: Taps,
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
    pub(super) fn build(taut: &Path) -> Result<Self, ExperimentError> {
        let world = WorldBuilder::new("snoop-soak")
            .host("peer")
            .host("host")
            .host("guest")
            .build()?;
        let tap = |host: &str, name: &str| -> Result<Tap, ExperimentError> {
            let made = world.host(host).run(|| Tap::create(name))?;
            made.map_err(|e: TapError| ExperimentError::Machine {
                action: "make a tap".into(),
                source: io::Error::other(e),
            })
        };
        let taps = Taps {
            peer: tap("peer", DEVICE)?,
            up: tap("host", UP)?,
            ring: tap("host", TAP)?,
            guest: tap("guest", DEVICE)?,
        };
        let rig = Self {
            taps,
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
        for side in [Side::Peer, Side::Guest] {
            let name = side.host();
            self.ip(name, &format!("link set {DEVICE} txqueuelen {AMPLE} up"))?;
            for v6 in [false, true] {
                let prefix = if v6 { "64 nodad" } else { "24" };
                let addr = addr(side, v6);
                self.ip(name, &format!("addr add {addr}/{prefix} dev {DEVICE}"))?;
            }
        }
        Ok(())
    }

    pub(super) fn host(&self, side: Side) -> &Host {
        self.world.host(side.host())
    }

    /// Sets what the phase has of its own. There is no connection, and no `taut snoop`.
    pub(super) fn prepare(&self, phase: &Phase) -> Result<(), ExperimentError> {
        self.ip("host", &format!("link set {TAP} txqueuelen {}", phase.ring))?;
        let rmem = match phase.options {
            Options::Grow => GROWN_RMEM,
            _ => USUAL_RMEM,
        };
        let guest = self.host(Side::Guest);
        guest.set_sysctl("net.ipv4.tcp_rmem", rmem)?;
        let ecn = if phase.options == Options::Ecn {
            "1"
        } else {
            "0"
        };
        for side in [Side::Peer, Side::Guest] {
            self.host(side).set_sysctl("net.ipv4.tcp_ecn", ecn)?;
        }
        Ok(())
    }

    /// Frames that the guest's ring has refused.
    pub(super) fn dropped(&self) -> Result<u64, ExperimentError> {
        let text = self.ip("host", &format!("-s -j link show {TAP}"))?;
        let links: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        Ok(links[0]["stats64"]["tx"]["dropped"].as_u64().unwrap_or(0))
    }

    /// Where `taut snoop` answers.
    pub(super) fn control(&self) -> PathBuf {
        self.world.dir().join("snoop.sock")
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

/// The address of a side.
pub(super) fn addr(side: Side, v6: bool) -> IpAddr {
    let last = match side {
        Side::Peer => 1,
        Side::Guest => 2,
    };
    match v6 {
        false => Ipv4Addr::new(10, 66, 0, last).into(),
        true => Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, last.into()).into(),
    }
}
