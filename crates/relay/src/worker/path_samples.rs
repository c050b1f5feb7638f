//! Samples of a worker's connections from the kernel, for the relay's row.

use std::net::IpAddr;

use taut_sys::socket::Stream;

use super::dial_plan::DialPlan;
use super::session_table::{SessionEntry, Sessions};
use crate::counters::told::SegmentCounts;
use crate::forwarding::leg::TcpLeg;
use crate::mesh::pool::Pools;
use crate::rows_mailbox::{PathSample, SampledPath};

/// The number of sessions, and of pools, that are sampled at a time: each costs a system call or two.
const AT_ONCE: usize = 64;

/// Which of a worker's sessions are sampled next.
#[derive(Default)]
pub(super) struct PathSampler {
    from: usize,
}

// === impl PathSampler ===

impl PathSampler {
    /// Returns samples of a connection to each of some peers, and of the legs of some sessions; the next ones
    /// are sampled the next time. `round` decides which peers.
    pub(super) fn sample(
        &mut self,
        sessions: &Sessions,
        pools: &Pools,
        round: u64,
    ) -> Vec<PathSample> {
        let ready = pools.youngest(round).take(AT_ONCE);
        let mut samples: Vec<_> = ready
            .filter_map(|(peer, stream, counts)| {
                sample(stream, counts, SampledPath::Peer(peer.name.clone()))
            })
            .collect();
        let capacity = sessions.entries.capacity();
        let mut place = if self.from < capacity { self.from } else { 0 };
        let mut taken = 0;
        while place < capacity && taken < AT_ONCE {
            if let Some(entry) = sessions.entries.get(place) {
                taken += 1;
                samples.extend(samples_of(entry));
            }
            place += 1;
        }
        self.from = place;
        samples
    }
}

/// Returns samples of a session's legs; none of a leg that another relay's row has.
fn samples_of(entry: &SessionEntry) -> impl Iterator<Item = PathSample> {
    let (client, upstream) = entry.session.legs();
    let upstream = upstream.filter(|_| entry.session.is_connected());
    let to = upstream.and_then(|leg| leg.stream().peer_addr().ok());
    let to = match &entry.plan {
        DialPlan::Ask { peer, .. } => Some(SampledPath::Peer(peer.name.clone())),
        _ => to.and_then(|to| outside(to.ip())),
    };
    let comes_from_client = entry.admission.member.is_none();
    let from = comes_from_client
        .then(|| outside(entry.client.0.ip()))
        .flatten();
    let of = |leg: Option<&TcpLeg>, counts, path: Option<SampledPath>| {
        sample(leg?.stream(), counts, path?)
    };
    let [of_client, of_upstream] = &entry.segment_counts;
    [
        of(upstream, of_upstream, to),
        of(Some(client), of_client, from),
    ]
    .into_iter()
    .flatten()
}

/// Returns the path to an address outside the mesh; `None` for loopback and link-local addresses, which mean
/// something else on each machine.
fn outside(ip: IpAddr) -> Option<SampledPath> {
    let is_local = match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    };
    (!is_local).then_some(SampledPath::Outside(ip))
}

fn sample(stream: &Stream, counts: &SegmentCounts, path: SampledPath) -> Option<PathSample> {
    let info = stream.info().ok()?;
    let smoothed = info.rtt?;
    Some(PathSample {
        path,
        least: info.min_rtt.unwrap_or(smoothed),
        smoothed,
        segments: counts.next((info.segs_out.unwrap_or(0), info.total_retrans)),
    })
}
