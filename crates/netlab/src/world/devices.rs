//! Configures devices, addresses, neighbours and routes of a host by rtnetlink.

use std::net::IpAddr;

use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::packet_route::link::{LinkAttribute, Stats64};
use rtnetlink::packet_route::neighbour::NeighbourState;
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};
use taut_sys::netns::Netns;

use super::WorldError;
use super::plan::{self, Addresses};
use crate::netlink::{NetlinkError, get, index, refused, with_netlink};

/// The device of a host at one end of a link.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) link: usize,
    /// Which end of the link: 0 or 1.
    pub(crate) end: usize,
    pub(crate) mtu: u16,
}

/// The size of a TAP's ring, in frames that wait for the link's thread. At 64 KiB each they are more than
/// a second at 1 Gbit/s.
const TX_QUEUE: u32 = 4096;

/// Brings up `lo` with the host's own addresses, and the devices with theirs.
pub(crate) fn bring_up(
    netns: &Netns,
    own: Addresses,
    devices: &[Device],
) -> Result<(), WorldError> {
    in_netns(netns, async |handle| {
        let lo = index(&handle, "lo").await?;
        let up = LinkUnspec::new_with_index(lo).up().build();
        handle
            .link()
            .set(up)
            .execute()
            .await
            .map_err(refused("lo up"))?;
        add_addresses(&handle, lo, own, plan::HOST_PREFIX).await?;
        for device in devices {
            bring_up_device(&handle, device).await?;
        }
        Ok(())
    })
}

async fn bring_up_device(handle: &Handle, device: &Device) -> Result<(), NetlinkError> {
    let index = index(handle, &device.name).await?;
    let up = LinkUnspec::new_with_index(index)
        .address(plan::mac(device.link, device.end).to_vec())
        .mtu(u32::from(device.mtu))
        .txqueuelen(TX_QUEUE)
        .up()
        .build();
    handle
        .link()
        .set(up)
        .execute()
        .await
        .map_err(refused(&device.name))?;
    add_addresses(
        handle,
        index,
        plan::end(device.link, device.end),
        plan::LINK_PREFIX,
    )
    .await?;
    let far = 1 - device.end;
    for address in plan::end(device.link, far).each() {
        // Permanent: no ARP or neighbour discovery delays the first packet on a long path.
        handle
            .neighbours()
            .add(index, address)
            .link_layer_address(&plan::mac(device.link, far))
            .state(NeighbourState::Permanent)
            .execute()
            .await
            .map_err(refused(&format!("neighbour {address}")))?;
    }
    Ok(())
}

async fn add_addresses(
    handle: &Handle,
    index: u32,
    addresses: Addresses,
    prefixes: [u8; 2],
) -> Result<(), NetlinkError> {
    for (address, prefix) in addresses.each().into_iter().zip(prefixes) {
        let what = format!("address {address}/{prefix}");
        let mut request = handle.address().add(index, address, prefix);
        // Even without duplicate address detection, an IPv6 address without this flag is tentative until
        // a kernel worker has run, and cannot be a route's source until then.
        request
            .message_mut()
            .attributes
            .push(AddressAttribute::Flags(AddressFlags::Nodad));
        request.execute().await.map_err(refused(&what))?;
    }
    Ok(())
}

/// Adds a host's routes. The host's own addresses are their preferred sources.
pub(crate) fn add_routes(
    netns: &Netns,
    own: Addresses,
    devices: &[Device],
    routes: &[plan::Route],
) -> Result<(), WorldError> {
    in_netns(netns, async |handle| {
        for route in routes {
            let (to, prefix) = route.destination;
            let what = format!("route to {to}/{prefix}");
            let device = devices.iter().find(|device| device.link == route.link);
            let device = device.ok_or_else(|| NetlinkError::NoDevice(what.clone()))?;
            let out = index(&handle, &device.name).await?;
            let message = match (to, route.gateway) {
                (IpAddr::V4(to), IpAddr::V4(gateway)) => {
                    RouteMessageBuilder::<std::net::Ipv4Addr>::new()
                        .destination_prefix(to, prefix)
                        .gateway(gateway)
                        .pref_source(own.v4)
                        .output_interface(out)
                        .build()
                }
                (IpAddr::V6(to), IpAddr::V6(gateway)) => {
                    RouteMessageBuilder::<std::net::Ipv6Addr>::new()
                        .destination_prefix(to, prefix)
                        .gateway(gateway)
                        .pref_source(own.v6)
                        .output_interface(out)
                        .build()
                }
                _ => unreachable!("a route's gateway is of the same family as its destination"),
            };
            handle
                .route()
                .add(message)
                .execute()
                .await
                .map_err(refused(&what))?;
        }
        Ok(())
    })
}

/// Returns the kernel's counters of the device `name`.
pub(crate) fn statistics(netns: &Netns, name: &str) -> Result<Stats64, WorldError> {
    in_netns(netns, async |handle| {
        let link = get(&handle, name).await?;
        let stats = link
            .attributes
            .into_iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::Stats64(stats) => Some(stats),
                _ => None,
            });
        stats.ok_or_else(|| NetlinkError::NoDevice(name.to_owned()))
    })
}

/// Runs `job` with a netlink connection of `netns`.
fn in_netns<T: Send>(
    netns: &Netns,
    job: impl AsyncFnOnce(Handle) -> Result<T, NetlinkError> + Send,
) -> Result<T, WorldError> {
    let done = netns.run(|| with_netlink(job))?;
    done.map_err(|source| WorldError::Configure {
        netns: netns.name().to_owned(),
        source: Box::new(source),
    })
}
