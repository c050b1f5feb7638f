//! The relays of a world: which processes, with which configuration, for which ways.

use std::net::SocketAddr;
use std::path::Path;

use super::download::Way;
use crate::peer::relay::{self, Forward, Node};
use crate::peer::{PeerError, Service};
use crate::world::{Host, World};

/// Relay processes, and where the ways through them begin. A process ends when this is dropped.
#[derive(Default)]
pub(super) struct Relays {
    pub(super) entrances: Vec<(Way, SocketAddr)>,
    _services: Vec<Service>,
}

/// What relays are started with.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) world: &'a World,
    /// The binary.
    pub(super) taut: &'a Path,
    /// Where sessions end.
    pub(super) server: SocketAddr,
}

impl Relays {
    /// Starts what `ways` need, the far relays first.
    pub(super) fn start(site: Site<'_>, ways: &[Way]) -> Result<Self, PeerError> {
        let mut relays = Self::default();
        relays.chain(site, ways)?;
        Ok(relays)
    }

    /// Two relays that dial the next when a client has come, with a forward for each way.
    fn chain(&mut self, site: Site<'_>, ways: &[Way]) -> Result<(), PeerError> {
        let ways: Vec<Way> = ways
            .iter()
            .copied()
            .filter(|way| port(*way).is_some())
            .collect();
        let mut to = vec![site.server; ways.len()];
        for host in ["far", "near"] {
            let host = site.world.host(host);
            let entrances: Vec<SocketAddr> = ways.iter().filter_map(|way| at(host, *way)).collect();
            let Some(&first) = entrances.first() else {
                return Ok(());
            };
            let forwards = entrances.iter().zip(&to);
            let node = Node {
                metrics: relay::METRICS,
                forwards: forwards
                    .map(|(listen, to)| Forward::new(*listen, *to))
                    .collect(),
            };
            self.run(site, host, "relay", node, first)?;
            to = entrances;
        }
        self.entrances.extend(ways.into_iter().zip(to));
        Ok(())
    }

    fn run(
        &mut self,
        site: Site<'_>,
        host: &Host,
        name: &str,
        node: Node,
        addr: SocketAddr,
    ) -> Result<(), PeerError> {
        let service = relay::start(host, site.taut, name, node, addr, site.world.dir())?;
        self._services.push(service);
        Ok(())
    }
}

/// The port of a way's forward, on whichever relay; `None` for ways without `taut`.
fn port(way: Way) -> Option<u16> {
    match way {
        Way::EndToEnd | Way::Routed | Way::Ssh => None,
        Way::Split => Some(relay::PORT),
    }
}

fn at(host: &Host, way: Way) -> Option<SocketAddr> {
    Some(SocketAddr::from((host.addr(), port(way)?)))
}
