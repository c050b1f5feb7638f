//! Where a session of a transparent forward goes: to where its client wanted to go, if that is
//! allowed.

use std::net::SocketAddr;

use taut_mesh::hello::{Hello, SessionId, Target};
use taut_sys::random;

use super::dial::DialPlan;
use super::mesh;
use crate::access::DestinationVerdict;
use crate::net::addr::{ClientAddr, OnwardAddr};
use crate::route::table::{Onward, Original, Setup};

/// The way of the session that `client` wants to have with `to`, or why it may not.
pub(super) fn plan(
    original: &Original,
    client: ClientAddr,
    to: SocketAddr,
    borrow: bool,
    setup: &Setup,
) -> Result<DialPlan, DestinationVerdict> {
    let to = SocketAddr::new(to.ip().to_canonical(), to.port());
    // Somebody connected to the listener itself: passing that on would go round in a circle.
    if !original.taking.covers(to) {
        return Err(DestinationVerdict::Own);
    }
    match original.access.check_addr(to, None) {
        DestinationVerdict::Allowed => {}
        refused => return Err(refused),
    }
    Ok(match &original.onward {
        Onward::Direct(options) => DialPlan::Dial {
            addrs: [OnwardAddr(to)].into(),
            next: 0,
            options: options.clone(),
            borrow,
        },
        Onward::Mesh { peer, route } => DialPlan::Ask {
            peer: peer.clone(),
            hello: Box::new(Hello {
                source: client.0,
                destination: Target::Addr(to),
                route: route.clone(),
                hops_left: setup.mesh.as_ref().map_or(1, |m| m.hop_limit),
                session: SessionId(random::bytes()),
            }),
            tries_left: mesh::tries(peer),
        },
    })
}
