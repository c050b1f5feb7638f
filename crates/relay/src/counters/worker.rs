//! One worker's counters.

use taut_mesh::acceptor::Rejection;
use taut_mesh::onward::SessionRefusal;

use super::by_member::ByMember;
use super::counter::Counter;
use super::histogram::Histogram;
use super::last_addr::LastAddr;
use crate::outcome::client_hello::HelloRefusal;
use crate::outcome::kernel_tls::{ControlRecord, FallBack};
use crate::outcome::proxy::ProxyRefusal;
use crate::outcome::refusal::ClientRefusal;
use crate::outcome::session_end::End;

/// One worker's counters. Aligned so that workers do not share cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerMetrics {
    pub(crate) accepted: Counter,
    pub(crate) refused: [Counter; ClientRefusal::ALL.len()],
    pub(crate) accept_failed: Counter,
    pub(crate) sessions: Counter,
    pub(crate) upstream_bytes: Counter,
    pub(crate) client_bytes: Counter,
    pub(crate) pipes_open: Counter,
    pub(crate) pipes_in_use: Counter,
    pub(crate) pipe_misses: Counter,
    pub(crate) pipes_refused: Counter,
    /// Times that the window of a source was limited because its sink is slower.
    pub(crate) backlogs_limited: Counter,
    pub(crate) ended: [Counter; End::ALL.len()],
    /// Attempts that were a session's own leg, and those besides.
    pub(crate) dials: [Counter; 2],
    /// Sessions that connected, by the place of their address in the order: 1st, 2nd, 3rd, later.
    pub(crate) dials_won: [Counter; 4],
    pub(crate) dials_extra_now: Counter,
    pub(crate) dials_postponed: Counter,
    pub(crate) dial_direct: Histogram,
    pub(crate) dial_mesh: Histogram,
    /// Time that queued clients waited for a place.
    pub(crate) queue: Histogram,
    pub(crate) setup: Histogram,
    pub(crate) first_byte: Histogram,
    pub(crate) pool_ready: Counter,
    pub(crate) pool_hits: Counter,
    pub(crate) pool_misses: Counter,
    pub(crate) pool_retries: Counter,
    /// Sessions that took another way because a relay could not be reached.
    pub(crate) fall_backs: Counter,
    /// Sessions that were reset on an automatic route before the first byte of an answer.
    pub(crate) routes_refused: Counter,
    /// Of these, those for which there was no room.
    pub(crate) refusals_not_kept: Counter,
    pub(crate) pool_expired: Counter,
    pub(crate) pool_dead: Counter,
    pub(crate) pool_withdrawn: Counter,
    pub(crate) pool_surplus: Counter,
    pub(crate) pool_outgrown: Counter,
    pub(crate) pool_dials_failed: Counter,
    pub(crate) pool_dials_slow: Counter,
    pub(crate) pool_dials_postponed: Counter,
    pub(crate) pool_dials_outdated: Counter,
    pub(crate) pool_peers_rejected: Counter,
    pub(crate) early_begun: Counter,
    pub(crate) early_joined: Counter,
    pub(crate) early_unused: Counter,
    /// SYNs for which a connection to another relay was dialled, because none could be spared.
    pub(crate) early_ahead: Counter,
    /// Admitted SYNs for which no upstream leg was begun.
    pub(crate) early_declined: Counter,
    pub(crate) intercept_refused: Counter,
    pub(crate) proxy_waiting: Counter,
    pub(crate) proxy_headers: Counter,
    pub(crate) proxy_refused: [Counter; ProxyRefusal::ALL.len()],
    /// Clients by what their server name led to: a name, a wildcard, the default.
    pub(crate) hellos: [Counter; 3],
    pub(crate) hellos_waiting: Counter,
    pub(crate) hellos_refused: [Counter; HelloRefusal::ALL.len()],
    pub(crate) mesh_accepted: Counter,
    pub(crate) mesh_unproven: Counter,
    pub(crate) mesh_ready: Counter,
    pub(crate) mesh_evicted: Counter,
    pub(crate) mesh_undrained: Counter,
    pub(crate) mesh_refused_full: Counter,
    /// Times that a handshake waited for the next round.
    pub(crate) mesh_handshakes_postponed: Counter,
    /// Connections that were withdrawn because `max_ready` of them waited.
    pub(crate) mesh_ready_withdrawn: Counter,
    /// Those withdrawn connections by the member that had the most ready ones.
    pub(crate) mesh_ready_full: ByMember,
    /// Sessions that were refused because their member had `max_sessions_per_member` open.
    pub(crate) mesh_member_limit: ByMember,
    pub(crate) mesh_hellos: Counter,
    pub(crate) mesh_rejected: [Counter; Rejection::ALL.len()],
    /// The source of the connection that was rejected last.
    pub(crate) mesh_last_rejected: LastAddr,
    pub(crate) mesh_refused: [Counter; SessionRefusal::ALL.len()],
    /// Legs of sessions with TLS, and those of them whose keys went to the kernel.
    pub(crate) tls_legs: Counter,
    pub(crate) kernel_tls_legs: Counter,
    pub(crate) kernel_tls_fall_backs: [Counter; FallBack::ALL.len()],
    /// Bytes spliced from and to legs whose TLS is in the kernel.
    pub(crate) kernel_tls_received: Counter,
    pub(crate) kernel_tls_sent: Counter,
    pub(crate) kernel_tls_records: [Counter; ControlRecord::ALL.len()],
}
