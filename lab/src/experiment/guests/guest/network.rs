//! A guest's device, address, neighbours and route.

use std::io;
use std::net::Ipv4Addr;

use rtnetlink::packet_route::neighbour::NeighbourState;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMetric, RouteScope};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};

use super::Guest;
use taut_netlab::netlink::{NetlinkError, index, with_netlink};

const PREFIX: u8 = 24;

/// Brings up `lo` and the guest's device.
pub(super) fn configure(guest: &Guest) -> io::Result<()> {
    netlink(async |handle| {
        let lo = index(&handle, "lo").await?;
        set(&handle, LinkUnspec::new_with_index(lo).up().build()).await?;
        let device = index(&handle, &guest.device).await?;
        let up = LinkUnspec::new_with_index(device)
            .address(guest.mac.to_vec())
            .up();
        set(&handle, up.build()).await?;
        let address = handle.address().add(device, guest.address.into(), PREFIX);
        address.execute().await.map_err(refused("address"))?;
        for (neighbour, mac) in &guest.neighbours {
            let entry = handle.neighbours().add(device, (*neighbour).into());
            let entry = entry
                .link_layer_address(mac)
                .state(NeighbourState::Permanent);
            entry.execute().await.map_err(refused("neighbour"))?;
        }
        Ok(())
    })
}

/// Sets the initial receive window of the route to the other members, in segments (`initrwnd`).
pub(super) fn route(guest: &Guest, initrwnd: u32) -> io::Result<()> {
    let network = u32::from(guest.address) & (u32::MAX << (32 - PREFIX));
    netlink(async |handle| {
        let device = index(&handle, &guest.device).await?;
        let mut route = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(Ipv4Addr::from(network), PREFIX)
            .pref_source(guest.address)
            .scope(RouteScope::Link)
            .protocol(rtnetlink::packet_route::route::RouteProtocol::Kernel)
            .output_interface(device)
            .build();
        if initrwnd > 0 {
            let metrics = vec![RouteMetric::InitRwnd(initrwnd)];
            route.attributes.push(RouteAttribute::Metrics(metrics));
        }
        let replaced = handle.route().add(route).replace().execute().await;
        replaced.map_err(refused("route"))
    })
}

async fn set(
    handle: &Handle,
    link: rtnetlink::packet_route::link::LinkMessage,
) -> Result<(), NetlinkError> {
    handle
        .link()
        .set(link)
        .execute()
        .await
        .map_err(refused("device"))
}

fn refused(what: &'static str) -> impl FnOnce(rtnetlink::Error) -> NetlinkError {
    taut_netlab::netlink::refused(what)
}

fn netlink(job: impl AsyncFnOnce(Handle) -> Result<(), NetlinkError>) -> io::Result<()> {
    with_netlink(job).map_err(io::Error::other)
}
