//! The timing of a session's set-up, and its record in the session log.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use taut_mesh::hello;
use taut_sys::random;
use taut_sys::socket::Stream;
use taut_sys::tcp_info::TcpInfo;

use super::dial_plan::DialPlan;
use crate::counters::forward::ForwardStats;
use crate::counters::worker::WorkerMetrics;
use crate::forwarding::leg::TcpLeg;
use crate::forwarding::session::Session;
use crate::net::addr::ClientAddr;
use crate::outcome::session_end::End;
use crate::route::table::Route;
use crate::session_log::{DirectionRecord, SessionId, SessionRecord};

/// The time after the hello in which a reset may be a refusal: longer than a round trip on the longest paths.
const REFUSED_WITHIN: Duration = Duration::from_secs(2);

/// The time of each step of a session.
#[derive(Debug)]
pub(super) struct Timeline {
    begun: Instant,
    /// The time at which the upstream leg was last dialled.
    dialled: Option<Instant>,
    /// The time at which the upstream leg became ready; the last such time if there were several
    /// legs.
    ready: Option<Instant>,
    /// Whether the set-up time has been counted.
    counted: bool,
    /// The times at which the first byte was written to the upstream leg and to the client.
    first: (Option<Instant>, Option<Instant>),
}

/// The origin of a session.
pub(super) enum Origin<'a> {
    /// A client of this forward.
    Forward(&'a Route),
    /// Another relay.
    Mesh {
        relay: IpAddr,
        session: hello::SessionId,
        destination: String,
        /// The counters of sessions that other relays request.
        stats: &'a Arc<ForwardStats>,
    },
}

/// The parts of a session's log record that are known at its start.
pub(super) struct PendingRecord {
    session: SessionId,
    forward: Arc<str>,
    listener: SocketAddr,
    destination: Arc<str>,
    /// Read as soon as the leg is connected, because a socket that was reset has no peer address.
    address: Option<SocketAddr>,
}

// === impl Origin ===

impl Origin<'_> {
    /// Returns the counters of the session's forward.
    pub(super) fn stats(&self) -> &Arc<ForwardStats> {
        match self {
            Self::Forward(route) => &route.stats,
            Self::Mesh { stats, .. } => stats,
        }
    }
}

// === impl Timeline ===

impl Timeline {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            begun: now,
            dialled: None,
            ready: None,
            counted: false,
            first: (None, None),
        }
    }

    /// Records that an upstream leg is connecting.
    pub(super) fn dialled(&mut self, now: Instant) {
        self.dialled = Some(now);
        self.ready = None;
    }

    /// Records that the upstream leg was lost.
    pub(super) fn lost(&mut self) {
        self.dialled = None;
        self.ready = None;
    }

    /// Records the state of the session. Returns `true` if its upstream leg has just become ready.
    pub(super) fn note(
        &mut self,
        now: Instant,
        connected: bool,
        (to_upstream, to_client): (u64, u64),
        metrics: &WorkerMetrics,
    ) -> bool {
        let fresh = connected && self.ready.is_none();
        if fresh {
            self.ready = Some(now);
            if let Some(dialled) = self.dialled.take() {
                metrics.dial_direct.observe(now - dialled);
            }
            if !std::mem::replace(&mut self.counted, true) {
                metrics.setup.observe(now - self.begun);
            }
        }
        if to_upstream > 0 && self.first.0.is_none() {
            self.first.0 = Some(now);
        }
        if to_client > 0 && self.first.1.is_none() {
            self.first.1 = Some(now);
            metrics.first_byte.observe(now - self.begun);
        }
        fresh
    }

    /// Returns whether the upstream leg became ready so recently that a reset may be a relay's answer to
    /// the session's hello.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        let ready = self.ready;
        ready.is_some_and(|ready| now.saturating_duration_since(ready) < REFUSED_WITHIN)
    }

    /// Returns the time since the client was accepted.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.begun)
    }

    fn since_begun(&self, then: Option<Instant>) -> Option<Duration> {
        then.map(|then| then - self.begun)
    }
}

// === impl PendingRecord ===

impl PendingRecord {
    /// Starts the record of a new session.
    pub(super) fn new(origin: &Origin<'_>, client: &Stream, plan: &DialPlan) -> Self {
        let (forward, destination, session) = match origin {
            Origin::Forward(route) => (route.stats.name.clone(), route.destination.clone(), None),
            Origin::Mesh {
                session,
                destination,
                stats,
                ..
            } => (
                stats.name.clone(),
                destination.as_str().into(),
                Some(session.0),
            ),
        };
        let session = plan.session().map_or(session, |session| Some(session.0));
        let unknown = SocketAddr::from(([0; 4], 0));
        Self {
            session: SessionId(u128::from_be_bytes(session.unwrap_or_else(random::bytes))),
            forward,
            listener: client.local_addr().unwrap_or(unknown),
            destination,
            address: None,
        }
    }

    /// Returns the session's identifier.
    pub(super) fn session(&self) -> u128 {
        self.session.0
    }

    /// Records the address that the upstream leg is connected to.
    pub(super) fn connected(&mut self, upstream: &Stream) {
        self.address = upstream.peer_addr().ok();
    }

    /// Returns the complete record of a session whose legs are still open.
    pub(super) fn finish(
        self,
        session: &Session<TcpLeg>,
        ClientAddr(client): ClientAddr,
        timeline: &Timeline,
        plan: &DialPlan,
        now: Instant,
        end: End,
    ) -> SessionRecord {
        let (to_upstream, to_client) = session.moved();
        let (up, down) = session.spliced();
        let (client_leg, upstream_leg) = session.legs();
        // The last relay that was tried; earlier ones could not be reached.
        let relay = plan.peer().map(|peer| peer.name.as_str().into());
        // A leg that was never connected has no TCP_INFO worth recording.
        let upstream_leg = upstream_leg.filter(|_| session.is_connected());
        let direction = |bytes, first, spliced| DirectionRecord {
            bytes,
            first_byte: timeline.since_begun(first),
            spliced,
        };
        SessionRecord {
            version: env!("CARGO_PKG_VERSION"),
            time: SystemTime::now(),
            session: self.session,
            forward: self.forward,
            client,
            listener: self.listener,
            destination: Some(self.destination),
            address: self.address,
            relay,
            attempts: match plan {
                DialPlan::Dial(dial) => Some(dial.begun()),
                DialPlan::LookUp { .. } | DialPlan::Ask { .. } => None,
            },
            cause: end.label(),
            setup: timeline.since_begun(timeline.ready),
            total: now - timeline.begun,
            to_upstream: direction(to_upstream, timeline.first.0, up),
            to_client: direction(to_client, timeline.first.1, down),
            client_tcp: TcpInfo::of(client_leg.stream()).ok(),
            upstream_tcp: upstream_leg.and_then(|upstream| TcpInfo::of(upstream.stream()).ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::histogram::Totals;

    #[test]
    fn a_session_is_counted_once_and_recorded_by_its_last_upstream_leg() {
        let metrics = WorkerMetrics::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timeline = Timeline::new(start);
        timeline.dialled(at(10));
        assert!(!timeline.note(at(20), false, (0, 0), &metrics));
        assert!(timeline.note(at(40), true, (0, 0), &metrics));
        assert!(!timeline.note(at(41), true, (5, 0), &metrics));
        // The first leg was dead, and another leg replaces it.
        timeline.lost();
        assert!(timeline.note(at(90), true, (5, 0), &metrics));
        assert!(!timeline.note(at(95), true, (5, 7), &metrics));
        assert!(!timeline.note(at(99), true, (9, 9), &metrics));
        let totals = |h| Totals::of(std::iter::once(h));
        for (histogram, millis) in [
            (&metrics.dial_direct, 30),
            (&metrics.setup, 40),
            (&metrics.first_byte, 95),
        ] {
            assert_eq!(totals(histogram).count(), 1);
            assert_eq!(totals(histogram).nanos, millis * 1_000_000);
        }
        assert_eq!(
            timeline.since_begun(timeline.ready),
            Some(Duration::from_millis(90))
        );
    }
}
