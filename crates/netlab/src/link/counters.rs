//! Counters of a link, and whether the link itself was the bottleneck.

use std::time::Duration;

/// Counters of one direction, kept by its model ([`super::path`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct PathCounters {
    /// Frames read from the sending host; a super-frame counts once.
    pub frames: u64,
    /// Segments in those frames.
    pub segments: u64,
    /// Bytes of those segments, Ethernet headers included.
    pub bytes: u64,
    /// Segments dropped because they exceeded the policer's rate, as configured.
    pub policer_drops: u64,
    /// Segments dropped because the queue was full: congestion, as configured.
    pub queue_drops: u64,
    /// Segments that CoDel dropped because they and those before them had waited too long: congestion,
    /// as configured.
    pub aqm_drops: u64,
    /// Segments that CoDel marked (CE) instead of dropping them.
    pub marks: u64,
    /// Segments lost at random, as configured.
    pub loss_drops: u64,
    /// Segments held back, so that later ones overtook them, as configured.
    pub held: u64,
    /// Segments dropped because the link was cut.
    pub cut_drops: u64,
    /// Segments dropped because the link's own memory was full: an overrun.
    pub memory_drops: u64,
    /// Bytes delivered to the receiving host, Ethernet headers included. They never exceed the rate;
    /// `bytes` does while the queue fills or drops.
    pub delivered_bytes: u64,
    /// Segments put on the wire, whether lost there or not. A drop-tail queue counts them when it accepts
    /// them, CoDel when they leave its queue.
    pub serialised: u64,
    /// Time that those segments waited in the queue, in sum.
    pub waited: Duration,
    /// Trains of segments delivered to the receiving host.
    pub deliveries: u64,
    /// Deliveries that were past due by more than the shape's `tolerance`.
    pub late: u64,
    /// How late the latest delivery was.
    pub latest: Duration,
}

/// Counters of the TAP devices of one direction, outside the model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct DeviceCounters {
    /// Frames dropped because their headers are malformed.
    pub malformed: u64,
    /// Frames that the kernel dropped because the link's thread did not read them in time.
    pub not_taken: u64,
    /// Trains that the receiving host's kernel rejected.
    pub refused: u64,
}

/// Counters of one direction, since the link was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct DirectionReport {
    /// Counters of the model.
    pub path: PathCounters,
    /// Counters of the devices.
    pub device: DeviceCounters,
}

// === impl PathCounters ===

impl PathCounters {
    /// Returns how long a segment waited in the queue, on average, since `earlier`; zero if none was put
    /// on the wire.
    pub fn mean_wait_since(&self, earlier: &Self) -> Duration {
        let segments = self.serialised.saturating_sub(earlier.serialised);
        let waited = self.waited.saturating_sub(earlier.waited);
        Duration::from_secs_f64(waited.as_secs_f64() / segments.max(1) as f64)
    }
}

// === impl DirectionReport ===

impl DirectionReport {
    /// Returns the difference to `earlier`, except `latest`, which covers the whole time.
    fn since(&self, earlier: &Self) -> Self {
        let (now, then) = (&self.path, &earlier.path);
        Self {
            path: PathCounters {
                frames: now.frames - then.frames,
                segments: now.segments - then.segments,
                bytes: now.bytes - then.bytes,
                policer_drops: now.policer_drops - then.policer_drops,
                queue_drops: now.queue_drops - then.queue_drops,
                aqm_drops: now.aqm_drops - then.aqm_drops,
                marks: now.marks - then.marks,
                loss_drops: now.loss_drops - then.loss_drops,
                held: now.held - then.held,
                cut_drops: now.cut_drops - then.cut_drops,
                memory_drops: now.memory_drops - then.memory_drops,
                delivered_bytes: now.delivered_bytes - then.delivered_bytes,
                serialised: now.serialised - then.serialised,
                waited: now.waited - then.waited,
                deliveries: now.deliveries - then.deliveries,
                late: now.late - then.late,
                latest: now.latest,
            },
            device: DeviceCounters {
                malformed: self.device.malformed - earlier.device.malformed,
                not_taken: self.device.not_taken - earlier.device.not_taken,
                refused: self.device.refused - earlier.device.refused,
            },
        }
    }

    /// Returns whether the link itself, beyond its shape, delayed or dropped traffic: more than one
    /// late delivery in a thousand, or any drop that is not configured.
    pub fn overrun(&self) -> bool {
        self.path.late * 1000 > self.path.deliveries
            || self.path.memory_drops > 0
            || self.device.not_taken > 0
            || self.device.refused > 0
    }
}

/// The scheduling class of a link's thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub enum Scheduling {
    /// SCHED_FIFO: ahead of every ordinary thread.
    RealTime,
    /// An ordinary thread with nice -15.
    Nice,
    /// An ordinary thread: neither of the others was permitted.
    #[default]
    Ordinary,
}

/// Counters of a link, since it was created.
#[derive(Debug, Clone, serde::Serialize)]
pub struct LinkReport {
    /// The two hosts, as `a-b`.
    pub name: String,
    /// What carries it: `user`, or `netem`, whose counters are all 0.
    pub backend: &'static str,
    /// From the host named first to the one named second.
    pub a_to_b: DirectionReport,
    /// The opposite direction.
    pub b_to_a: DirectionReport,
    /// CPU time of the link's thread. It includes the receiving hosts' work on delivered frames, up to
    /// the socket.
    pub cpu: Duration,
    /// The scheduling class of that thread.
    pub scheduling: Scheduling,
}

// === impl LinkReport ===

impl LinkReport {
    /// Returns the difference to an `earlier` report of the same link.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            a_to_b: self.a_to_b.since(&earlier.a_to_b),
            b_to_a: self.b_to_a.since(&earlier.b_to_a),
            cpu: self.cpu.saturating_sub(earlier.cpu),
            ..self.clone()
        }
    }

    /// Returns whether the link itself was a bottleneck in either direction. A measurement with an
    /// overrun says something about the link and nothing about its subject.
    pub fn overrun(&self) -> bool {
        self.a_to_b.overrun() || self.b_to_a.overrun()
    }
}
