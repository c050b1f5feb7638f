//! Programs and filters of others at the hooks of taps.
//!
//! They are looked for at each scan of the devices, for all taps at once: the chains of netfilter come in
//! two dumps, however many taps there are.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use rtnetlink::sys::protocols::NETLINK_ROUTE;
use taut_sys::bpf::tc::{AttachPoint, link_count};

use crate::device::Device;
use crate::hook::ForeignHook;
use crate::qdisc::{self, Netlink};
use crate::tap::{self, TapError};

/// What exists if and only if the kernel has nftables as a loaded module.
const NF_TABLES: &str = "/sys/module/nf_tables";

/// Finds what others have at the hooks of taps.
#[derive(Debug, Default)]
pub(crate) struct HookScanner {
    /// The kernel had no nftables at the last scan. To ask it again would make it look for the module.
    lacks_nftables: bool,
}

/// What others had at the hooks of some devices when these were scanned, by interface index.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    filters: HashMap<u32, io::Result<Option<ForeignHook>>>,
}

// === impl HookScanner ===

impl HookScanner {
    /// Scans the hooks of these devices. Filters of `priority` are this process's.
    ///
    /// # Errors
    /// [`TapError::Socket`]. What cannot be listed is an error of [`Hooks::take`].
    pub(crate) fn scan(&mut self, devices: &[&Device], priority: u32) -> Result<Hooks, TapError> {
        if devices.is_empty() {
            return Ok(Hooks::default());
        }
        tap::block_on(async {
            let netlink = Netlink::open(NETLINK_ROUTE).map_err(TapError::Socket)?;
            let chains = self.chains().await;
            let mut filters = HashMap::new();
            for device in devices {
                let found = at(&netlink, &chains, device, priority).await;
                filters.insert(device.index, found);
            }
            Ok(Hooks { filters })
        })
    }

    /// Returns the chains of nftables that may be at devices.
    async fn chains(&mut self) -> io::Result<Vec<qdisc::Chain>> {
        if self.lacks_nftables && !Path::new(NF_TABLES).exists() {
            return Ok(Vec::new());
        }
        let chains = qdisc::chains().await?;
        self.lacks_nftables = chains.is_none();
        Ok(chains.unwrap_or_default())
    }
}

async fn at(
    netlink: &Netlink,
    chains: &io::Result<Vec<qdisc::Chain>>,
    device: &Device,
    priority: u32,
) -> io::Result<Option<ForeignHook>> {
    let ifindex = device.index.cast_signed();
    for (parent, hook) in [
        (qdisc::CLSACT_EGRESS, ForeignHook::Egress),
        (qdisc::CLSACT_INGRESS, ForeignHook::Ingress),
    ] {
        if qdisc::filters(netlink, ifindex, parent, priority).await? > 0 {
            return Ok(Some(hook));
        }
    }
    match chains {
        Ok(chains) => {
            let is_here = chains.iter().any(|chain| chain.is_at(&device.name));
            Ok(is_here.then_some(ForeignHook::Nftables))
        }
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    }
}

// === impl Hooks ===

impl Hooks {
    /// Returns what others have at the hooks of a device that was scanned, if anything. `own` is the number of
    /// this process's tcx links at each hook.
    ///
    /// # Errors
    /// [`TapError::Refused`].
    pub(crate) fn take(
        &mut self,
        device: &Device,
        own: u32,
    ) -> Result<Option<ForeignHook>, TapError> {
        if device.xdp {
            return Ok(Some(ForeignHook::Xdp));
        }
        let failed = |source| tap::refused("list the filters of", &device.name, source);
        let links = |point| link_count(device.index, point).map_err(|e| failed(e.into()));
        if links(AttachPoint::Egress)? > own {
            return Ok(Some(ForeignHook::Egress));
        }
        if links(AttachPoint::Ingress)? > own {
            return Ok(Some(ForeignHook::Ingress));
        }
        let found = self.filters.remove(&device.index).unwrap_or(Ok(None));
        found.map_err(failed)
    }
}
