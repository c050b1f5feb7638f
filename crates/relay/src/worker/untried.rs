//! The ways that a session has not tried yet, and the hello for each of them.

use std::sync::Arc;
use std::time::Instant;

use taut_mesh::hello::{Hello, SessionId, Target};
use taut_mesh::proxy::Tlvs;
use taut_mesh::ways::{Alternative, Ways};
use taut_sys::random;
use taut_sys::socket::LegOptions;

use crate::net::addr::{ClientAddr, UpstreamAddr};
use crate::route::auto::AutoRoute;
use crate::route::peer::Way;
use crate::route::table::Direct;

/// The direct connection of a session.
pub(super) enum DirectPath {
    /// To one of the destinations.
    OneOf(Direct),
    /// To the address that the client connected to.
    Addr(UpstreamAddr, Arc<LegOptions>),
}

/// The ways that a session has not tried yet.
pub(super) struct Untried {
    pub(super) client: ClientAddr,
    pub(super) session: SessionId,
    /// The fields of the client's header, which each hello carries.
    passed: Tlvs,
    destination: Target,
    hops_left: u8,
    ways: Ways<Way, DirectPath>,
    /// The automatic routes that the ways are from.
    auto: Option<Arc<AutoRoute>>,
    /// The way that is tried now, if it leads through a relay.
    current: Option<Way>,
}

// === impl Untried ===

impl Untried {
    /// Returns the ways of a session that has tried none.
    pub(super) fn new(
        client: ClientAddr,
        passed: Tlvs,
        destination: Target,
        hops_left: u8,
        ways: Ways<Way, DirectPath>,
        auto: Option<Arc<AutoRoute>>,
    ) -> Self {
        Self {
            client,
            session: SessionId(random::bytes()),
            passed,
            destination,
            hops_left,
            ways,
            auto,
            current: None,
        }
    }

    /// Returns whether a way is left.
    pub(super) fn is_any_left(&self) -> bool {
        self.ways.is_any_left()
    }

    /// Removes and returns the next way.
    pub(super) fn take_next(&mut self) -> Option<Alternative<Way, DirectPath>> {
        let next = self.ways.take_next()?;
        self.current = match &next {
            Alternative::Route(way) => Some(way.clone()),
            Alternative::Direct(_) => None,
        };
        Some(next)
    }

    /// Records that the way that is tried now has reset the session before the first byte of an
    /// answer. Returns whether that is remembered; `None` if the way is from no automatic route.
    pub(super) fn on_refusal(&self, now: Instant) -> Option<bool> {
        let (auto, way) = (self.auto.as_ref()?, self.current.as_ref()?);
        Some(auto.on_refusal(self.client.0.ip(), way, now))
    }

    /// Releases the fields of the client's header: no hello is sent any more.
    pub(super) fn forget_passed(&mut self) {
        self.passed = Tlvs::default();
    }

    /// Records the first byte of an answer on the way that is tried now.
    pub(super) fn on_answer(&self) {
        if let (Some(auto), Some(way)) = (&self.auto, &self.current) {
            auto.on_answer(self.client.0.ip(), way);
        }
    }

    /// Returns the hello to the first relay of `way`.
    pub(super) fn hello(&self, way: &Way) -> Hello {
        Hello {
            source: self.client.0,
            destination: self.destination.clone(),
            receiver: way.peer.name.clone(),
            route: way.route.clone(),
            hops_left: self.hops_left,
            session: self.session,
            passed: self.passed.clone(),
        }
    }
}
