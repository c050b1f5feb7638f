//! Routes with an initial congestion window to the other relays of the mesh, for kernels without
//! `taut_pipe` (`docs/design/turbo.md`, "Without it").
//!
//! The kernel takes a connection's first window from a metric of its route (`initcwnd`). So each
//! relay's address gets a host route that copies the present route and adds the metric. The copies
//! are in a table of their own, [`TABLE`]; a policy rule sends this machine's own TCP connections
//! there, unless an earlier rule decides. Compared with host routes in the main table, this has
//! three advantages: the kernel can report how it would route without the copies, the copies do not
//! collide with an administrator's `ip route add`, and other protocols and forwarded packets are
//! not affected.
//!
//! [`plan`] decides, [`netlink`] talks to the kernel, [`thread`] runs both.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | addresses | [`MAX_ADDRESSES`] | further ones get no route; counted, and logged once |
//! | checks of the routes | once in [`LOOK_AT_MOST`] | changes meanwhile are handled together |
//! | the kernel's answers | 10 s for one check | logged; the next check is a second later |

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use taut_sys::privileges::{self, Capability};
use tokio::sync::Notify;

use crate::net::netlink::hint as netlink_hint;

mod netlink;
mod plan;
mod relays;
mod thread;

pub(crate) use relays::{Relays, Visit};
pub(crate) use thread::remove_stale;
pub use thread::{RouteMetrics, is_abandoned, remove_abandoned};

/// The routing table of the copies.
pub const TABLE: u32 = 29_794;

/// The priority of the rule: the last before the main table's, so that rules of the administrator
/// or a VPN come first.
pub const PRIORITY: u32 = 32_765;

/// The protocol of the rule and routes, a number that no routing daemon uses (rt_protos): it marks
/// what a killed process has left behind. `ip` prints it as 118.
pub const PROTOCOL: u8 = 0x76;

/// The maximum number of addresses with a route: each costs a query whenever routes change.
pub const MAX_ADDRESSES: usize = 256;

/// The minimum interval between two checks of the routes.
pub const LOOK_AT_MOST: Duration = Duration::from_secs(1);

/// The maximum interval between two checks: the kernel does not report every change.
pub const LOOK_AT_LEAST: Duration = Duration::from_secs(30);

/// The time for which a relay that connected here is remembered after its last proof and its last
/// session. Connections in a pool are replaced more often.
pub const REMEMBERED: Duration = Duration::from_secs(600);

/// Bytes of a segment on a path of 1500 bytes with time stamps (RFC 7323 appendix A).
const SEGMENT: u32 = 1448;

/// The maximum initial window: 95 MB. A larger one is useless.
const MAX_SEGMENTS: u32 = 65_535;

/// The default initial window (RFC 6928).
const MIN_SEGMENTS: u32 = 10;

/// The routes to keep.
pub struct Job {
    /// The initial window, in segments.
    pub segments: u32,
    /// Returns the present addresses of the other relays, the most important first.
    pub wanted: Box<dyn Fn() -> Vec<IpAddr> + Send>,
    /// Notified when the addresses may have changed.
    pub changed: Arc<Notify>,
    /// The place to report the results.
    pub status: Arc<Status>,
}

/// The number of routes, for other threads.
#[derive(Debug, Default)]
pub struct Status {
    in_place: AtomicU64,
    without: AtomicU64,
}

/// The reason why no routes with an initial window are kept.
#[derive(Debug, thiserror::Error)]
pub enum RouteMetricsError {
    /// The system cannot start the thread.
    #[error("route metrics: cannot start their thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The netlink socket cannot be opened.
    #[error("route metrics: cannot open a netlink socket: {0}")]
    Netlink(#[source] std::io::Error),
    /// The kernel's answer did not arrive.
    #[error(
        "route metrics: the kernel's answer over netlink was lost; see whether this machine lacks memory (`free -m`)"
    )]
    Lost,
    /// The check for another process that keeps such routes failed.
    #[error(
        "route metrics: cannot find out whether another relay here sets them, by a lock in /proc/sys/net: {0}{hint}",
        hint = privileges::hint(.0, &[Capability::NetAdmin])
    )]
    Lock(#[source] std::io::Error),
    /// Another process keeps such routes.
    #[error("route metrics: another relay here sets them; what it has set stays")]
    Taken,
    /// The kernel rejected the policy rule.
    #[error(
        "route metrics: cannot add the policy rule: {0}{hint}",
        hint = netlink_hint(
            .0,
            &format!("see whether `ip rule add iif lo ipproto tcp priority {PRIORITY} lookup {TABLE}` works")
        )
    )]
    Rule(#[source] Box<rtnetlink::Error>),
    /// The thread panicked.
    #[error("route metrics: their thread panicked (a bug: please report what the log says)")]
    Died,
}

/// Converts an initial window in bytes to segments.
pub fn segments_of(window: u32) -> u32 {
    (window / SEGMENT).clamp(MIN_SEGMENTS, MAX_SEGMENTS)
}

// === impl Status ===

impl Status {
    /// Returns the number of routes in place.
    pub fn in_place(&self) -> u64 {
        self.in_place.load(Ordering::Relaxed)
    }

    /// Returns the number of relays' addresses without a route.
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
