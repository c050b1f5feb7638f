//! Samples of a worker's connections from the kernel, for the relay's row.

use std::net::IpAddr;

use taut_sys::socket::Stream;

use super::Worker;
use super::dial_plan::DialPlan;
use crate::counters::told::SegmentCounts;
use crate::forwarding::leg::TcpLeg;
use crate::rows_mailbox::{PathSample, SampledPath, ToRows};

/// The number of sessions, and of pools, that are sampled at a time: each costs a system call or two.
const AT_ONCE: usize = 64;

impl Worker {
    /// Posts samples of a connection to each of some peers, and of the legs of some sessions; the next ones
    /// are sampled the next time.
    pub(super) fn sample_paths(&mut self) {
        let Some(rows) = self.shared.rows.clone() else {
            return;
        };
        let ready = self.mesh.pools.youngest(self.round).take(AT_ONCE);
        let mut samples: Vec<_> = ready
            .filter_map(|(peer, stream, counts)| {
                sample(stream, counts, SampledPath::Peer(peer.name.clone()))
            })
            .collect();
        let capacity = self.sessions.entries.capacity();
        let first = if self.sample_from < capacity {
            self.sample_from
        } else {
            0
        };
        let (mut taken, mut place) = (0, first);
        while place < capacity && taken < AT_ONCE {
            if let Some(entry) = self.sessions.entries.get(place) {
                taken += 1;
                let (client, upstream) = entry.session.legs();
                let upstream = upstream.filter(|_| entry.session.is_connected());
                let to = upstream.and_then(|leg| leg.stream().peer_addr().ok());
                let path = match &entry.plan {
                    DialPlan::Ask { peer, .. } => Some(SampledPath::Peer(peer.name.clone())),
                    _ => to.and_then(|to| outside(to.ip())),
                };
                let of = |leg: Option<&TcpLeg>, counts, path: Option<SampledPath>| {
                    sample(leg?.stream(), counts, path?)
                };
                let [of_client, of_upstream] = &entry.segment_counts;
                samples.extend(of(upstream, of_upstream, path));
                if entry.admission.member.is_none() {
                    let from = outside(entry.client.0.ip());
                    samples.extend(of(Some(client), of_client, from));
                }
            }
            place += 1;
        }
        self.sample_from = place;
        rows.post(ToRows::Samples(samples));
    }
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
