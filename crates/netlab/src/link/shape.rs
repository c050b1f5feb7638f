//! What a link does to traffic, in each direction.

use std::time::Duration;

use crate::units::{BitsPerSecond, Bytes};

/// One direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Shape {
    /// Time from the end of a segment's serialisation to its arrival.
    pub delay: Duration,
    /// How fast segments are serialised; `None`: at once.
    pub rate: Option<BitsPerSecond>,
    /// The share of segments lost after they were serialised, 0 to 1, each by itself.
    pub loss: f64,
    /// What may wait to be serialised; what comes on top is dropped (drop-tail).
    pub queue: Bytes,
    /// A delivery counts as late when it is past due by more than this. What matters is what is
    /// measured: half a percent of a round trip is nothing, and ten of them are a result.
    pub tolerance: Duration,
}

// === impl Shape ===

impl Default for Shape {
    /// No delay, no rate limit, no loss, a queue of 1 MB for when a rate is set, and late after 1 ms.
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            rate: None,
            loss: 0.0,
            queue: Bytes::mega(1),
            tolerance: Duration::from_millis(1),
        }
    }
}

impl Shape {
    /// A direction that only delays.
    pub fn delay(delay: Duration) -> Self {
        Self {
            delay,
            ..Self::default()
        }
    }

    /// The same with a rate.
    #[must_use]
    pub fn rate(self, rate: BitsPerSecond) -> Self {
        Self {
            rate: Some(rate),
            ..self
        }
    }

    /// The same with random loss; 0.001 is one segment in a thousand.
    #[must_use]
    pub fn loss(self, loss: f64) -> Self {
        Self { loss, ..self }
    }

    /// The same with another queue.
    #[must_use]
    pub fn queue(self, queue: Bytes) -> Self {
        Self { queue, ..self }
    }

    /// The same, late only after `tolerance`.
    #[must_use]
    pub fn tolerance(self, tolerance: Duration) -> Self {
        Self { tolerance, ..self }
    }

    /// Why no link can have this shape with frames of `frame` bytes, if none can.
    pub(crate) fn fault(&self, frame: Bytes) -> Option<String> {
        if !(0.0..=1.0).contains(&self.loss) {
            return Some(format!("a loss of {} is not between 0 and 1", self.loss));
        }
        if self.rate == Some(BitsPerSecond(0)) {
            return Some("a rate of 0 carries nothing; use a loss of 1".to_owned());
        }
        if self.rate.is_some() && self.queue < frame {
            return Some(format!(
                "a queue of {} cannot hold one frame of {frame}; make it larger",
                self.queue
            ));
        }
        (self.delay > Self::LONGEST_DELAY).then(|| {
            format!(
                "a delay of {:?} is above {:?}",
                self.delay,
                Self::LONGEST_DELAY
            )
        })
    }

    /// Beyond this every TCP gives up, and the memory for what is under way has no useful bound.
    const LONGEST_DELAY: Duration = Duration::from_secs(60);
}

/// Both directions of a link.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct LinkSpec {
    /// From the host named first to the one named second.
    pub a_to_b: Shape,
    /// Back.
    pub b_to_a: Shape,
    /// Seed of the losses; each direction draws from a stream of its own.
    pub seed: u64,
    /// The longest IP packet, in bytes.
    pub mtu: u16,
}

// === impl LinkSpec ===

impl LinkSpec {
    /// The same shape both ways, an MTU of 1500 bytes, and seed 1.
    pub fn both(shape: Shape) -> Self {
        Self::each(shape, shape)
    }

    /// A shape for each direction, an MTU of 1500 bytes, and seed 1.
    pub fn each(a_to_b: Shape, b_to_a: Shape) -> Self {
        Self {
            a_to_b,
            b_to_a,
            seed: 1,
            mtu: 1500,
        }
    }

    /// The same with another seed.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Returns why no link of this description can exist, or `None` if one can.
    pub fn fault(&self) -> Option<String> {
        // 1280: IPv6's least (RFC 8200, 5).
        if self.mtu < 1280 {
            return Some(format!(
                "an MTU of {} is below IPv6's least, 1280",
                self.mtu
            ));
        }
        let frame = Bytes(u64::from(self.mtu) + 14);
        self.a_to_b
            .fault(frame)
            .or_else(|| self.b_to_a.fault(frame))
    }
}
