//! The shape of a link: what it does to traffic in each direction.

use std::time::Duration;

use crate::units::{BitsPerSecond, Bytes};

/// How the segments that wait for serialisation are managed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub enum Discipline {
    /// First come, first served; segments that find the queue full are dropped.
    #[default]
    DropTail,
    /// CoDel (RFC 8289): while segments wait for more than 5 ms, it drops some, or marks them if the
    /// sender supports ECN.
    Codel,
    /// FQ-CoDel (RFC 8290): CoDel with a queue for each flow, which take turns.
    FqCodel,
}

/// A policer: a token bucket that drops what exceeds its rate, and never delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Policer {
    /// The rate of what passes.
    pub rate: BitsPerSecond,
    /// The bytes that pass at once after a pause.
    pub burst: Bytes,
}

/// The shape of one direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Shape {
    /// The time from the end of a segment's serialisation to its arrival.
    pub delay: Duration,
    /// The rate of serialisation. With `None` it takes no time.
    pub rate: Option<BitsPerSecond>,
    /// The probability, 0 to 1, that a serialised segment is lost; independent of the others.
    pub loss: f64,
    /// What drops segments before the queue, if anything.
    pub policer: Option<Policer>,
    /// The bytes that may wait for serialisation; segments beyond them are dropped.
    pub queue: Bytes,
    /// How waiting segments are managed.
    pub discipline: Discipline,
    /// The longest additional delay. Each train draws one between zero and this; the order is kept, so
    /// a train never arrives before the one that left before it.
    pub jitter: Duration,
    /// The probability, 0 to 1, that a serialised segment is held back by `held_for`, so that later ones
    /// overtake it; independent of the others.
    pub reordering: f64,
    /// How long such a segment is held back.
    pub held_for: Duration,
    /// A delivery counts as late if it is past due by more than this. Choose it by what is measured: half
    /// a percent of a round trip does not matter, ten percent do.
    pub tolerance: Duration,
}

// === impl Shape ===

impl Default for Shape {
    /// No delay, rate, loss, jitter or reordering; a drop-tail queue of 1 MB, in case a rate is set; a tolerance of 1 ms.
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            rate: None,
            loss: 0.0,
            policer: None,
            queue: Bytes::mega(1),
            discipline: Discipline::DropTail,
            jitter: Duration::ZERO,
            reordering: 0.0,
            held_for: Duration::ZERO,
            tolerance: Duration::from_millis(1),
        }
    }
}

impl Shape {
    /// A direction with this delay and nothing else.
    pub fn delay(delay: Duration) -> Self {
        Self {
            delay,
            ..Self::default()
        }
    }

    /// Sets the rate.
    #[must_use]
    pub fn rate(self, rate: BitsPerSecond) -> Self {
        Self {
            rate: Some(rate),
            ..self
        }
    }

    /// Sets the probability of loss; 0.001 is one segment in a thousand.
    #[must_use]
    pub fn loss(self, loss: f64) -> Self {
        Self { loss, ..self }
    }

    /// Sets the size of the queue.
    #[must_use]
    pub fn queue(self, queue: Bytes) -> Self {
        Self { queue, ..self }
    }

    /// Adds a policer.
    #[must_use]
    pub fn policer(self, rate: BitsPerSecond, burst: Bytes) -> Self {
        Self {
            policer: Some(Policer { rate, burst }),
            ..self
        }
    }

    /// Sets how waiting segments are managed.
    #[must_use]
    pub fn discipline(self, discipline: Discipline) -> Self {
        Self { discipline, ..self }
    }

    /// Sets the longest additional delay.
    #[must_use]
    pub fn jitter(self, jitter: Duration) -> Self {
        Self { jitter, ..self }
    }

    /// Sets the probability that a segment is held back, and for how long.
    #[must_use]
    pub fn reordering(self, reordering: f64, held_for: Duration) -> Self {
        Self {
            reordering,
            held_for,
            ..self
        }
    }

    /// Sets how late a delivery may be before it counts as late.
    #[must_use]
    pub fn tolerance(self, tolerance: Duration) -> Self {
        Self { tolerance, ..self }
    }

    /// Returns why no link with frames of `frame` bytes can have this shape, or `None` if one can.
    pub(crate) fn fault(&self, frame: Bytes) -> Option<String> {
        if !(0.0..=1.0).contains(&self.loss) {
            return Some(format!("a loss of {} is not between 0 and 1", self.loss));
        }
        if !(0.0..=1.0).contains(&self.reordering) {
            return Some(format!(
                "a reordering of {} is not between 0 and 1",
                self.reordering
            ));
        }
        if self.discipline != Discipline::DropTail && self.rate.is_none() {
            return Some(format!(
                "{:?} manages a queue, and without a rate there is none; set a rate",
                self.discipline
            ));
        }
        if self
            .policer
            .is_some_and(|policer| policer.rate.0 == 0 || policer.burst < frame)
        {
            return Some(format!(
                "a policer of {:?} passes no frame of {frame}",
                self.policer
            ));
        }
        if self.rate == Some(BitsPerSecond(0)) {
            return Some("a rate of 0 carries nothing; use a loss of 1 instead".to_owned());
        }
        if self.rate.is_some() && self.queue < frame {
            return Some(format!(
                "a queue of {} cannot hold one frame of {frame}; make it larger",
                self.queue
            ));
        }
        let delays = [self.delay, self.jitter, self.held_for];
        let longest = delays.into_iter().max().unwrap_or_default();
        (longest > Self::LONGEST_DELAY)
            .then(|| format!("a delay of {longest:?} is above {:?}", Self::LONGEST_DELAY))
    }

    /// Every TCP gives up before that, and the memory for segments in flight has no useful bound beyond.
    const LONGEST_DELAY: Duration = Duration::from_secs(60);
}

/// The description of a link: the shapes of both directions, and what they share.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct LinkSpec {
    /// From the host named first to the one named second.
    pub a_to_b: Shape,
    /// The opposite direction.
    pub b_to_a: Shape,
    /// The seed of losses and delays. Each direction draws from its own streams.
    pub seed: u64,
    /// The longest IP packet, in bytes.
    pub mtu: u16,
}

// === impl LinkSpec ===

impl LinkSpec {
    /// A link with the same shape in both directions, an MTU of 1500 bytes, and seed 1.
    pub fn both(shape: Shape) -> Self {
        Self::each(shape, shape)
    }

    /// A link with a shape for each direction, an MTU of 1500 bytes, and seed 1.
    pub fn each(a_to_b: Shape, b_to_a: Shape) -> Self {
        Self {
            a_to_b,
            b_to_a,
            seed: 1,
            mtu: 1500,
        }
    }

    /// Sets the seed.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Returns why no link of this description can exist, or `None` if one can.
    pub fn fault(&self) -> Option<String> {
        // RFC 8200 5: the least MTU of IPv6.
        if self.mtu < 1280 {
            return Some(format!(
                "an MTU of {} is below 1280, the least of IPv6",
                self.mtu
            ));
        }
        let frame = Bytes(u64::from(self.mtu) + 14);
        self.a_to_b
            .fault(frame)
            .or_else(|| self.b_to_a.fault(frame))
    }
}
