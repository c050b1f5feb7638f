//! The world and its processes.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use super::contender::Contender;
use crate::experiment::workload::one_host::OneHost;
use crate::experiment::workload::{Alive, Entrance};
use crate::experiment::{ExperimentError, Request};
use crate::peer::haproxy::{self, Splice};
use crate::peer::{PeerError, nginx_stream, relay, socat, ssh};

/// The world, without a relay yet.
pub(super) struct Rig {
    pub(super) host: OneHost,
    keys: ssh::Keys,
}

// === impl Rig ===

impl Rig {
    pub(super) fn build(request: &Request) -> Result<Self, ExperimentError> {
        let host = OneHost::build("relay-peers", request)?;
        let keys = ssh::Keys::generate(host.dir())?;
        Ok(Self { host, keys })
    }

    /// Starts each of `contenders`. Each contender has its own ports.
    pub(super) fn start_all(
        &self,
        contenders: &[Contender],
    ) -> Result<BTreeMap<Contender, Entrance>, ExperimentError> {
        contenders
            .iter()
            .map(|&contender| Ok((contender, self.start(contender)?)))
            .collect()
    }

    /// Starts one contender.
    pub(super) fn start(&self, contender: Contender) -> Result<Entrance, ExperimentError> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, contender.server_port()));
        self.host.enter(to, || self.relay(contender, to))
    }

    fn relay(
        &self,
        contender: Contender,
        to: SocketAddr,
    ) -> Result<(SocketAddr, Vec<u32>, Alive), PeerError> {
        let OneHost { taut, cpus, .. } = &self.host;
        let (host, dir, cpus) = (self.host.host(), self.host.dir(), *cpus);
        let service = match contender {
            Contender::Direct => return Ok((to, Vec::new(), Box::new(()))),
            Contender::Ssh => {
                let splitter = ssh::Splitter::start(host, &self.keys, to, dir)?;
                let (addr, ids) = (splitter.addr(), splitter.ids());
                return Ok((addr, ids.to_vec(), Box::new(splitter)));
            }
            Contender::Taut => relay::relay(host, taut, to, dir)?,
            Contender::TautNoSandbox => relay::relay_without_sandbox(host, taut, to, dir)?,
            Contender::Haproxy => haproxy::relay(host, to, Splice::Auto, cpus, dir)?,
            Contender::HaproxySplice => haproxy::relay(host, to, Splice::Always, cpus, dir)?,
            Contender::Nginx => nginx_stream::relay(host, to, cpus, dir)?,
            Contender::Socat => socat::relay(host, to, dir)?,
        };
        Ok((service.addr, vec![service.id()], Box::new(service)))
    }
}
