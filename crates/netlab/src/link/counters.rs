//! What a link counted, and whether it was itself the bottleneck.

use std::time::Duration;

/// One direction's counters, as the model keeps them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct PathCounters {
    /// Frames taken from the sending host; a super-frame counts once.
    pub frames: u64,
    /// Segments in those frames.
    pub segments: u64,
    /// Bytes in those segments, Ethernet header included.
    pub bytes: u64,
    /// Segments dropped because the queue was full: congestion, as asked.
    pub queue_drops: u64,
    /// Segments lost at random, as asked.
    pub loss_drops: u64,
    /// Segments dropped because the link was cut, as asked.
    pub cut_drops: u64,
    /// Segments dropped because the link's own memory was full: not asked.
    pub memory_drops: u64,
    /// Bytes handed to the receiving host, Ethernet header included: never above the rate, where
    /// `bytes` is while the queue fills, or drops.
    pub delivered_bytes: u64,
    /// Trains of segments that came due and were handed to the receiving host.
    pub deliveries: u64,
    /// Of those, the ones past due by more than the shape tolerates.
    pub late: u64,
    /// The latest delivery.
    pub latest: Duration,
}

/// What happened at the devices of one direction, outside the model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct DeviceCounters {
    /// Frames that no segmentation could make sense of, dropped.
    pub malformed: u64,
    /// Frames that the kernel dropped because the link did not take them in time.
    pub not_taken: u64,
    /// Trains that the receiving host's kernel refused.
    pub refused: u64,
}

/// One direction of a link, up to now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct DirectionReport {
    /// The model's counters.
    pub path: PathCounters,
    /// The devices' counters.
    pub device: DeviceCounters,
}

// === impl DirectionReport ===

impl DirectionReport {
    /// What came on top of `earlier`; the latest delivery is that of the whole time.
    fn since(&self, earlier: &Self) -> Self {
        let (now, then) = (&self.path, &earlier.path);
        Self {
            path: PathCounters {
                frames: now.frames - then.frames,
                segments: now.segments - then.segments,
                bytes: now.bytes - then.bytes,
                queue_drops: now.queue_drops - then.queue_drops,
                loss_drops: now.loss_drops - then.loss_drops,
                cut_drops: now.cut_drops - then.cut_drops,
                memory_drops: now.memory_drops - then.memory_drops,
                delivered_bytes: now.delivered_bytes - then.delivered_bytes,
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

    /// Whether the link, and not the shape that was asked of it, held traffic up: more than one
    /// delivery in a thousand late, or anything dropped that the shape does not drop.
    pub fn overrun(&self) -> bool {
        self.path.late * 1000 > self.path.deliveries
            || self.path.memory_drops > 0
            || self.device.not_taken > 0
            || self.device.refused > 0
    }
}

/// How the link's thread is scheduled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub enum Scheduling {
    /// Before every ordinary thread (SCHED_FIFO).
    RealTime,
    /// Among the ordinary threads, with a raised share (nice -15).
    Nice,
    /// Like any other thread: neither was permitted.
    #[default]
    Ordinary,
}

/// A link, up to now.
#[derive(Debug, Clone, serde::Serialize)]
pub struct LinkReport {
    /// The two hosts, as `a-b`.
    pub name: String,
    /// What carries it: `user` or `netem`. Of netem nothing is counted.
    pub backend: &'static str,
    /// From the host named first to the other.
    pub a_to_b: DirectionReport,
    /// Back.
    pub b_to_a: DirectionReport,
    /// Processor time that the link's thread used; it includes the receiving hosts' share of handling
    /// what is handed to them, up to the socket.
    pub cpu: Duration,
    /// How that thread is scheduled.
    pub scheduling: Scheduling,
}

// === impl LinkReport ===

impl LinkReport {
    /// What came on top of an `earlier` report of the same link.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            a_to_b: self.a_to_b.since(&earlier.a_to_b),
            b_to_a: self.b_to_a.since(&earlier.b_to_a),
            cpu: self.cpu.saturating_sub(earlier.cpu),
            ..self.clone()
        }
    }

    /// Whether the link was itself a bottleneck in either direction. A measurement during which it
    /// was shows the link, not what was to be measured.
    pub fn overrun(&self) -> bool {
        self.a_to_b.overrun() || self.b_to_a.overrun()
    }
}
