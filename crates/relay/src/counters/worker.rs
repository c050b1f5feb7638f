//! One worker's counters.

use taut_mesh::acceptor::Rejection;

use super::figure::Figure;
use super::histogram::Histogram;
use crate::outcome::mesh::MeshRefusal;
use crate::outcome::proxy::ProxyRefusal;
use crate::outcome::refusal::ClientRefusal;
use crate::outcome::session_end::End;

/// One worker's counters. Aligned so that workers do not share cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerMetrics {
    pub(crate) accepted: Figure,
    pub(crate) refused: [Figure; ClientRefusal::ALL.len()],
    pub(crate) accept_failed: Figure,
    pub(crate) sessions: Figure,
    pub(crate) upstream_bytes: Figure,
    pub(crate) client_bytes: Figure,
    pub(crate) pipes_open: Figure,
    pub(crate) pipes_in_use: Figure,
    pub(crate) pipe_misses: Figure,
    pub(crate) pipes_refused: Figure,
    pub(crate) ended: [Figure; End::ALL.len()],
    pub(crate) dial_direct: Histogram,
    pub(crate) dial_mesh: Histogram,
    pub(crate) setup: Histogram,
    pub(crate) first_byte: Histogram,
    pub(crate) pool_ready: Figure,
    pub(crate) pool_hits: Figure,
    pub(crate) pool_misses: Figure,
    pub(crate) pool_retries: Figure,
    pub(crate) pool_expired: Figure,
    pub(crate) pool_dead: Figure,
    pub(crate) pool_dials_failed: Figure,
    pub(crate) pool_dials_postponed: Figure,
    pub(crate) pool_peers_rejected: Figure,
    pub(crate) early_begun: Figure,
    pub(crate) early_joined: Figure,
    pub(crate) early_unused: Figure,
    pub(crate) intercept_refused: Figure,
    pub(crate) proxy_waiting: Figure,
    pub(crate) proxy_headers: Figure,
    pub(crate) proxy_refused: [Figure; ProxyRefusal::ALL.len()],
    pub(crate) mesh_accepted: Figure,
    pub(crate) mesh_unproven: Figure,
    pub(crate) mesh_ready: Figure,
    pub(crate) mesh_evicted: Figure,
    pub(crate) mesh_refused_full: Figure,
    pub(crate) mesh_hellos: Figure,
    pub(crate) mesh_rejected: [Figure; Rejection::ALL.len()],
    pub(crate) mesh_refused: [Figure; MeshRefusal::ALL.len()],
}
