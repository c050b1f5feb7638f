//! Upstream legs of clients whose handshake is still under way (early SYN, pied-piper 3.2). Such a
//! leg is begun when the SYN arrives, and joined to the client when its connection is accepted.

use std::collections::HashMap;
use std::sync::Arc;

use super::dial_plan::DialPlan;
use crate::early_syn::FourTuple;
use crate::forwarding::leg::TcpLeg;
use crate::route::peer::Peer;
use crate::route::table::{Route, Setup};

/// A worker's upstream legs that wait for their client. The limiter of SYNs bounds their number.
pub(super) type EarlyLegs = HashMap<FourTuple, EarlyLeg>;

/// An upstream leg that waits for its client.
pub(super) struct EarlyLeg {
    /// The number of the forward that the leg was begun for.
    pub(super) route: u32,
    pub(super) plan: DialPlan,
    pub(super) upstream: Upstream,
    /// The number of relays that the plan has passed over because they cannot be reached.
    pub(super) passed_over: u64,
}

/// The progress of an early leg.
pub(super) enum Upstream {
    /// A connection to the destination has been dialled.
    Dialled(TcpLeg),
    /// A connection to another relay has been sent the session's hello.
    HelloSent(TcpLeg),
    /// No connection to the other relay could be spared; one was dialled.
    Awaited,
}

// === impl EarlyLeg ===

impl EarlyLeg {
    /// Returns whether a session of this forward may have the leg. The listener may belong to another forward by now,
    /// and the relay may have been revoked.
    pub(super) fn is_for(&self, route: &Route, setup: &Setup) -> bool {
        let is_peer = |peer: &Arc<Peer>| setup.has_peer(peer);
        self.route == route.id && self.plan.peer().is_none_or(is_peer)
    }
}
