//! Measures a path by a TCP handshake: the time from SYN to SYN-ACK (pied-piper 2.2). The
//! connection is completed and reset, so that no half-open one is left.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use slab::Slab;
use taut_mesh::rows::{Key, MemberId};
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Poller};
use taut_sys::socket::{LegOptions, Stream};

/// The number of measurements in progress.
pub(crate) const MAX_PROBES: usize = 64;

/// The time after which an unanswered SYN counts as lost. The kernel repeats a SYN after a second.
const PATIENCE: Duration = Duration::from_secs(3);

/// The object of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeTarget {
    Member(MemberId),
    Destination(Key),
}

/// The measurements in progress.
#[derive(Default)]
pub(super) struct Probes {
    all: Slab<Probe>,
}

struct Probe {
    stream: Stream,
    target: ProbeTarget,
    to: SocketAddr,
    begun: Instant,
}

/// The result of a measurement.
pub(super) struct ProbeResult {
    pub(super) target: ProbeTarget,
    pub(super) to: SocketAddr,
    /// The time from SYN to SYN-ACK, and the segments that were repeated.
    pub(super) outcome: Result<(Duration, u32), Errno>,
}

// === impl Probes ===

impl Probes {
    /// Returns whether another measurement may begin.
    pub(super) fn has_room(&self) -> bool {
        self.all.len() < MAX_PROBES
    }

    /// Begins a measurement; its events have this token added to the number of the measurement.
    pub(super) fn begin(
        &mut self,
        target: ProbeTarget,
        to: SocketAddr,
        options: &LegOptions,
        poller: &Poller,
        token: impl FnOnce(usize) -> u64,
        now: Instant,
    ) -> Result<(), Errno> {
        let stream = Stream::connect_sparingly(to, options)?;
        let vacant = self.all.vacant_entry();
        poller.add(&stream, token(vacant.key()), Interest::StreamEdges)?;
        vacant.insert(Probe {
            stream,
            target,
            to,
            begun: now,
        });
        Ok(())
    }

    /// Ends a measurement whose connection is ready.
    pub(super) fn finish(&mut self, place: usize, now: Instant) -> Option<ProbeResult> {
        let Probe {
            stream,
            target,
            to,
            begun,
        } = self.all.try_remove(place)?;
        let outcome = stream.take_error().and_then(|()| {
            if stream.is_its_own_peer() {
                return Err(Errno::CONNREFUSED);
            }
            let info = stream.info()?;
            // The kernel takes no sample of a SYN that it has repeated (RFC 6298 section 3).
            let rtt = info
                .rtt
                .unwrap_or_else(|| now.saturating_duration_since(begun));
            Ok((rtt, info.total_retrans))
        });
        stream.abort();
        Some(ProbeResult {
            target,
            to,
            outcome,
        })
    }

    /// Ends measurements that have taken too long.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<ProbeResult> {
        let late =
            |(place, probe): (usize, &Probe)| (now >= probe.begun + PATIENCE).then_some(place);
        let late: Vec<_> = self.all.iter().filter_map(late).collect();
        let probes = late
            .into_iter()
            .filter_map(|place| self.all.try_remove(place));
        let timed_out = |probe: Probe| ProbeResult {
            target: probe.target,
            to: probe.to,
            outcome: Err(Errno::TIMEDOUT),
        };
        probes.map(timed_out).collect()
    }

    /// Ends all measurements without a result.
    pub(super) fn clear(&mut self) {
        for probe in self.all.drain() {
            probe.stream.abort();
        }
    }

    /// Returns when [`Probes::expire`] is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.all
            .iter()
            .map(|(_, probe)| probe.begun + PATIENCE)
            .min()
    }

    /// Returns whether a path is being measured.
    pub(super) fn measures(&self, target: ProbeTarget) -> bool {
        self.all.iter().any(|(_, probe)| probe.target == target)
    }
}
