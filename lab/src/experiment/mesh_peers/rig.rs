//! The world and its processes.

use std::net::{Ipv4Addr, SocketAddr};

use super::contender::Contender;
use crate::experiment::workload::one_host::OneHost;
use crate::experiment::workload::{Alive, Entrance};
use crate::experiment::{ExperimentError, Request};
use crate::peer::PeerError;
use crate::peer::relay_pair::{self, Pool};
use crate::peer::tls::certificates::Certificates;
use crate::peer::tls::haproxy::Buffers;
use crate::peer::tls::{haproxy, nginx, stunnel};
use crate::peer::two_relays::Layout;

/// The world, without a relay yet.
pub(super) struct Rig {
    pub(super) host: OneHost,
    certificates: Certificates,
}

// === impl Rig ===

impl Rig {
    pub(super) fn build(request: &Request) -> Result<Self, ExperimentError> {
        let host = OneHost::build("mesh-peers", request)?;
        let certificates = Certificates::generate(host.dir())?;
        Ok(Self { host, certificates })
    }

    /// Starts the relays of `contender`. `pool` applies to Taut with a pool only.
    pub(super) fn start(
        &self,
        contender: Contender,
        pool: Pool,
    ) -> Result<Entrance, ExperimentError> {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let to = local(contender.server_port());
        let layout = Layout {
            host: self.host.host(),
            near: local(contender.near_port()),
            between: local(contender.between_port()),
            to,
            cpus: self.host.cpus,
            dir: self.host.dir(),
        };
        self.host
            .enter(to, || self.relays(contender, &layout, pool))
    }

    fn relays(
        &self,
        contender: Contender,
        layout: &Layout<'_>,
        pool: Pool,
    ) -> Result<(SocketAddr, Vec<u32>, Alive), PeerError> {
        let (taut, certificates) = (&self.host.taut, &self.certificates);
        let two = match contender {
            Contender::Direct => return Ok((layout.to, Vec::new(), Box::new(()))),
            Contender::Taut => relay_pair::pair(taut, layout, pool)?,
            Contender::TautNoPool => relay_pair::pair(taut, layout, Pool::None)?,
            Contender::Haproxy => haproxy::pair(layout, certificates, Buffers::Default)?,
            Contender::HaproxyLarge => haproxy::pair(layout, certificates, Buffers::Large)?,
            Contender::Nginx => nginx::pair(layout, certificates)?,
            Contender::Stunnel => stunnel::pair(layout, certificates)?,
        };
        Ok((layout.near, two.ids().to_vec(), Box::new(two)))
    }
}
