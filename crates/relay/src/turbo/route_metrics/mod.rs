//! An initial congestion window on the way to the mesh's other relays, for kernels without
//! `taut_pipe` (`docs/design/turbo.md`, "Without it").
//!
//! The kernel takes a connection's first window from a metric of its route (`initcwnd`). So each
//! relay's address gets a host route that copies the one it has and adds the metric. The copies are in a
//! table of their own, [`TABLE`], to which a policy rule leads what this machine itself sends by TCP and
//! no other rule has decided. That has three merits over host routes in the main table: the kernel can
//! be asked how it would route without them while they are there, nobody's `ip route add` meets them,
//! and other protocols and forwarded packets do not.
//!
//! [`plan`] decides, [`netlink`] asks and does, [`thread`] knows when.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | addresses | [`MAX_ADDRESSES`] | more are served without; counted, and said once |
//! | how often routes are looked at | once in [`LOOK_AT_MOST`] | changes meanwhile are one |

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

mod netlink;
mod plan;
mod relays;
mod thread;

pub(crate) use relays::{Relays, Visit};
pub use thread::RouteMetrics;
pub(crate) use thread::remove_stale;

/// The routing table of the copies.
pub const TABLE: u32 = 29_794;

/// The priority of the rule that leads there: the last before that of the main table, so that whatever
/// rules the administrator or a VPN has come first.
pub const PRIORITY: u32 = 32_765;

/// The protocol of rule and routes, a number that no routing daemon has (rt_protos): what a killed
/// process has left is found by it. 118 to `ip`.
pub const PROTOCOL: u8 = 0x76;

/// Addresses that get a route, at most: each is asked about whenever routes change.
pub const MAX_ADDRESSES: usize = 256;

/// After a change of routes that follows another sooner than this, they are looked at when so much
/// time has passed.
pub const LOOK_AT_MOST: Duration = Duration::from_secs(1);

/// How often routes are looked at when the kernel reports no change: it does not report every one.
pub const LOOK_AT_LEAST: Duration = Duration::from_secs(30);

/// How long a relay that connected here is remembered after its last proof and its last session.
/// Connections in a pool are replaced more often.
pub const REMEMBERED: Duration = Duration::from_secs(600);

/// Bytes of a segment on a path of 1500 bytes with time stamps (RFC 7323 appendix A).
const SEGMENT: u32 = 1448;

/// Larger initial windows are of no use: 95 MB.
const MAX_SEGMENTS: u32 = 65_535;

/// The initial window without any of this (RFC 6928).
const MIN_SEGMENTS: u32 = 10;

/// What routes are wanted.
pub struct Job {
    /// The initial window, in segments.
    pub segments: u32,
    /// The addresses of the other relays at present, the most important first.
    pub wanted: Box<dyn Fn() -> Vec<IpAddr> + Send>,
    /// Told when there may be others.
    pub changed: Arc<Notify>,
    /// Where it is said what there is.
    pub status: Arc<Status>,
}

/// What there is, to be read by other threads.
#[derive(Debug, Default)]
pub struct Status {
    in_place: AtomicU64,
    without: AtomicU64,
}

/// Why there are no routes with an initial window.
#[derive(Debug, thiserror::Error)]
pub enum RouteMetricsError {
    /// The system has no thread for it.
    #[error("route metrics: cannot start their thread: {0}")]
    Thread(#[source] std::io::Error),
    /// Netlink cannot be spoken.
    #[error("route metrics: cannot speak netlink: {0}")]
    Netlink(#[source] std::io::Error),
    /// Whether another process does the same cannot be found out.
    #[error("route metrics: cannot find out whether another relay here sets them: {0}")]
    Lock(#[source] std::io::Error),
    /// The kernel refused the rule that leads to them.
    #[error(
        "route metrics: cannot add the policy rule: {0}; it needs CAP_NET_ADMIN, or root, and a kernel \
         in which `ip rule add iif lo ipproto tcp priority {PRIORITY} lookup {TABLE}` works"
    )]
    Rule(#[source] Box<rtnetlink::Error>),
    /// The thread met a state that must not be.
    #[error("route metrics: their thread panicked (a bug: please report what the log says)")]
    Died,
}

/// The segments that an initial window of so many bytes is.
pub fn segments_of(window: u32) -> u32 {
    (window / SEGMENT).clamp(MIN_SEGMENTS, MAX_SEGMENTS)
}

// === impl Status ===

impl Status {
    /// Routes in place now.
    pub fn in_place(&self) -> u64 {
        self.in_place.load(Ordering::Relaxed)
    }

    /// Addresses of relays that are served without one now.
    pub fn without(&self) -> u64 {
        self.without.load(Ordering::Relaxed)
    }

    fn set(&self, in_place: usize, without: usize) {
        self.in_place.store(in_place as u64, Ordering::Relaxed);
        self.without.store(without as u64, Ordering::Relaxed);
    }
}

// === impl Job ===

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("Job");
        f.field("segments", &self.segments).finish_non_exhaustive()
    }
}
