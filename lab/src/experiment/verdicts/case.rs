//! The runs: a cause in a family of worlds, and parameters that a seed determines.

use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng as _, SeedableRng as _};
use taut_netlab::link::shape::{Discipline, LinkSpec, Shape};
use taut_netlab::units::{BitsPerSecond, Bytes};

use super::cause::Cause;
use super::family::{Family, Part};
use super::reader::Pace;
use super::writer::Pauses;

/// One run: a cause in a family, and its parameters, which the seed determines.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Case {
    pub(super) family: Family,
    pub(super) cause: Cause,
    /// The seed of the link's losses.
    pub(super) seed: u64,
    /// The round trip of the empty path.
    pub(super) round_trip: Duration,
    pub(super) rate: BitsPerSecond,
    /// The maximum length of the queue at the bottleneck.
    pub(super) queue: Bytes,
    pub(super) loss: f64,
    /// The cause's parameter: the bytes per second of an application or of pacing, or the bytes of
    /// a buffer, of a file, or of the narrow link's packets, the number of guests on a core, or the
    /// quota of CPU time in thousandths of a CPU.
    pub(super) knob: u64,
    /// The number of flows that share the bottleneck.
    pub(super) flows: u64,
    /// The mean time between two reads of a reader that reads in parts.
    pub(super) period: Duration,
    /// The time for which a guest has its core in its turn.
    pub(super) slice: Duration,
    /// How the bottleneck manages its queue.
    pub(super) discipline: Discipline,
    /// Whether the hosts use ECN.
    pub(super) has_ecn: bool,
    /// The longest additional delay of a segment.
    pub(super) jitter: Duration,
    /// The share of segments that are held back, and for how long.
    pub(super) reordering: f64,
    pub(super) held_for: Duration,
    /// The share of the time in which a sender that pauses has nothing to send, and the bytes that it
    /// sends at a time, on average; 0 for a sender without pauses.
    pub(super) idle: f64,
    pub(super) burst: u64,
    /// Whether the cause limits the connection; otherwise the world is the same without it.
    pub(super) is_limited: bool,
}

// === impl Case ===

impl Case {
    /// Returns the `run`th run of a cause in a family.
    pub(super) fn of(Part { family, cause }: Part, seed: u64, run: usize) -> Self {
        let mut draw = Draw::new(seed, family, cause, run);
        let millis = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        let near = family.is_near();
        let (round_trip, rate) = match cause {
            // Buffers and losses limit connections on paths with a large bandwidth-delay product.
            Cause::SendBuffer
            | Cause::ReceiveBuffer
            | Cause::ReceiveBufferHere
            | Cause::NoScaling => (draw.within(60.0, 200.0), draw.within(20.0, 60.0)),
            Cause::SlowStart => (draw.within(150.0, 300.0), draw.within(100.0, 200.0)),
            Cause::Loss => (draw.within(20.0, 100.0), draw.within(30.0, 60.0)),
            Cause::Queue if family == Family::RenoBoundaries => {
                (draw.within(60.0, 120.0), draw.within(8.0, 20.0))
            }
            Cause::Queue if near => (draw.within(100.0, 200.0), draw.within(8.0, 20.0)),
            Cause::Queue => (draw.within(10.0, 60.0), draw.within(4.0, 20.0)),
            Cause::Link => (draw.within(10.0, 40.0), draw.within(8.0, 50.0)),
            Cause::Descheduled | Cause::DescheduledSender => {
                (draw.within(0.2, 4.0), draw.within(400.0, 1000.0))
            }
            // The path is no bottleneck: the quota is.
            Cause::ThrottledSender => (draw.within(10.0, 150.0), draw.within(100.0, 200.0)),
            _ => (draw.within(10.0, 150.0), draw.within(8.0, 50.0)),
        };
        let round_trip = millis(round_trip);
        let rate = BitsPerSecond((rate * 1e6) as u64);
        let path = rate.in_time(round_trip).0;
        let queue = match cause {
            // Reno halves its window, and would need most of a minute to fill a queue as long as the path
            // again.
            Cause::Queue if family == Family::RenoBoundaries => {
                rate.in_time(round_trip.mul_f64(draw.within(1.8, 2.4))).0
            }
            // About as long as the path: long, although the mean round trip is less than twice the
            // shortest.
            Cause::Queue if near => rate.in_time(round_trip.mul_f64(draw.within(0.9, 1.2))).0,
            Cause::Queue => rate.in_time(millis(draw.within(200.0, 800.0))).0,
            // CUBIC needs this queue to keep a path full (it reduces its window by 0.3). It is less
            // than twice the path.
            Cause::Link if !family.has_aqm() && family.idle().is_none() => {
                (path as f64 * draw.within(0.6, 0.9)) as u64
            }
            Cause::SlowStart => 4 * path,
            // The path is no bottleneck: the guest is.
            Cause::Descheduled | Cause::DescheduledSender => 1 << 20,
            // CoDel keeps the queue short, so the limit may be large.
            _ if family.has_aqm() => 4 * path,
            // After a pause, Cubic sends a whole window at once.
            Cause::Link if family.idle().is_some() => 4 * path,
            _ => path,
        };
        let share = |draw: &mut Draw, of: u64, from: f64, to: f64| {
            (of as f64 * draw.within(from, to)) as u64
        };
        let knob = match cause {
            Cause::SlowReader | Cause::SlowReaderHere if family.reads_in_parts() => {
                share(&mut draw, rate.0 / 8, 0.6, 0.9)
            }
            Cause::SlowSender
            | Cause::Elsewhere
            | Cause::SlowReader
            | Cause::SlowReaderHere
            | Cause::Pacing
            | Cause::Policer
            | Cause::PolicerHere => {
                let (least, most) = if near { (0.4, 0.8) } else { (0.05, 0.4) };
                share(&mut draw, rate.0 / 8, least, most)
            }
            // The kernel doubles the size for its overhead, and no buffer is less than 4608 bytes.
            Cause::SendBuffer if near => share(&mut draw, path, 0.2, 0.35).max(8192),
            Cause::SendBuffer => share(&mut draw, path, 0.05, 0.2).max(8192),
            Cause::ReceiveBuffer if near => share(&mut draw, path, 0.4, 0.65).max(16_384),
            Cause::ReceiveBuffer | Cause::ReceiveBufferHere => {
                share(&mut draw, path, 0.1, 0.4).max(16_384)
            }
            Cause::Questions => draw.within(300.0, 12_000.0) as u64,
            Cause::BlackHole | Cause::MtuProbing => draw.within(1280.0, 1460.0) as u64,
            // The number of guests that share the core.
            Cause::Descheduled | Cause::DescheduledSender => 2 + draw.random.next_u64() % 4,
            Cause::ThrottledSender => draw.within(40.0, 200.0) as u64,
            _ => 0,
        };
        let case = Self {
            family,
            cause,
            seed: draw.random.next_u64(),
            round_trip,
            rate,
            queue: Bytes(queue.max(3 * 1514)),
            loss: match cause {
                Cause::Loss => draw.within(0.003, 0.03),
                _ => 0.0,
            },
            knob,
            flows: match cause {
                Cause::Queue | Cause::Link if family.shares() => 2 + draw.random.next_u64() % 3,
                Cause::Link if family.has_aqm() => 1 + draw.random.next_u64() % 3,
                _ => 1,
            },
            period: match family.reads_in_parts() {
                true => millis(draw.within(2.0, 200.0)),
                false => Duration::ZERO,
            },
            slice: match family {
                Family::Slices => millis(draw.within(10.0, 100.0)),
                Family::ShortSlices | Family::BbrShortSlices => millis(draw.within(3.0, 10.0)),
                _ => millis(30.0),
            },
            discipline: Discipline::DropTail,
            has_ecn: false,
            jitter: Duration::ZERO,
            reordering: 0.0,
            held_for: Duration::ZERO,
            idle: 0.0,
            burst: 0,
            is_limited: true,
        };
        case.with_conditions(&mut draw)
    }

    /// Returns the same world without what limits the connection. Only for causes whose limit can
    /// be removed ([`Cause::is_removable`]).
    pub(super) fn without_limit(&self) -> Self {
        Self {
            loss: 0.0,
            is_limited: false,
            ..self.clone()
        }
    }

    /// Adds the conditions of the family that are drawn last, so that worlds without them do not depend
    /// on them.
    fn with_conditions(mut self, draw: &mut Draw) -> Self {
        let millis = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        if self.family.has_aqm() {
            self.discipline = match draw.either() {
                true => Discipline::FqCodel,
                false => Discipline::Codel,
            };
            self.has_ecn = draw.either();
        }
        if self.family.has_jitter() {
            self.jitter = millis(draw.within(1.0, 20.0));
            if draw.either() {
                self.reordering = draw.within(0.001, 0.02);
                // Linux tolerates a quarter of a round trip, and more after it was wrong (RFC 8985 6.2).
                let share = draw.within(0.05, 0.4);
                self.held_for = self.round_trip.mul_f64(share).max(millis(1.0));
            }
        }
        if let Some((least, most)) = self.family.idle() {
            self.idle = draw.within(least, most);
            let period = draw.within(1.0, 2.5);
            if self.cause == Cause::Link {
                self.discipline = Discipline::Codel;
            }
            self.burst = (self.reached() * period * (1.0 - self.idle)) as u64;
        }
        self
    }

    /// Returns about how many bytes a second a sender reaches that always has data.
    fn reached(&self) -> f64 {
        let round_trip = self.round_trip.as_secs_f64();
        let path = self.rate.0 as f64 / 8.0;
        match self.cause {
            Cause::ReceiveBuffer => path.min(self.knob as f64 / round_trip),
            // Equation 2.2 of the thesis.
            Cause::Loss => path.min(1448.0 * 1.22 / (round_trip * self.loss.sqrt())),
            _ => path,
        }
    }

    /// Returns the cause and the family.
    pub(super) fn part(&self) -> Part {
        Part {
            family: self.family,
            cause: self.cause,
        }
    }

    /// Returns the share of the time for which the expected factor limits the connection, where that is
    /// known, if this share of the bottleneck was used, and a sender that pauses had data for this share
    /// of the time.
    pub(super) fn share(&self, used: f64, busy: Option<f64>) -> Option<f64> {
        if let Some(busy) = busy {
            let is_application = self.part().factor() == "sender-application";
            return Some(if is_application { 1.0 - busy } else { busy });
        }
        match self.cause {
            // nginx sends as fast as the path takes it, and then pauses.
            Cause::SlowSender if !self.family.is_near() => Some(1.0 - used),
            Cause::Idle | Cause::Link => Some(1.0),
            _ => None,
        }
    }

    /// Returns how long the connection is observed.
    pub(super) fn watch(&self) -> Duration {
        match self.pauses() {
            // Several bursts and pauses.
            Some(_) => Duration::from_secs(10),
            None => self.cause.watch(self.round_trip),
        }
    }

    /// Returns how the client reads, if it reads in parts.
    pub(super) fn pace(&self) -> Option<Pace> {
        self.family.reads_in_parts().then_some(Pace {
            rate: self.knob,
            period: self.period,
            seed: self.seed,
        })
    }

    /// Returns how the sender pauses, if it does.
    pub(super) fn pauses(&self) -> Option<Pauses> {
        self.family.idle().map(|_| Pauses {
            burst: self.burst,
            idle: self.idle,
            seed: self.seed,
        })
    }

    /// Returns whether a sender that had data for this share of the time paused as it should.
    pub(super) fn expects_busy(&self, busy: Option<f64>) -> bool {
        // With the shares that are drawn, half is far away; bursts differ.
        self.idle == 0.0 || busy.is_some_and(|busy| (busy > 0.5) == (self.idle < 0.5))
    }

    /// Returns the link with the bottleneck, from the sender.
    pub(super) fn link(&self) -> LinkSpec {
        let bare = Shape::delay(self.round_trip / 2);
        let there = bare
            .rate(self.rate)
            .queue(self.queue)
            .loss(self.loss)
            .discipline(self.discipline)
            .jitter(self.jitter)
            .reordering(self.reordering, self.held_for);
        // After a burst of a tenth of a second.
        let there = match self.cause {
            Cause::Policer => there.policer(
                BitsPerSecond(8 * self.knob),
                Bytes((self.knob / 10).max(15_000)),
            ),
            _ => there,
        };
        let link = match self.cause {
            Cause::DescheduledSender => LinkSpec::each(bare, there),
            _ => LinkSpec::each(there, bare),
        };
        link.seed(self.seed)
    }

    /// Returns whether the path has a narrower link.
    pub(super) fn is_narrow(&self) -> bool {
        matches!(self.cause, Cause::BlackHole | Cause::MtuProbing)
    }
}

/// The random choices of one run.
struct Draw {
    random: Pcg64Mcg,
}

// === impl Draw ===

impl Draw {
    fn new(seed: u64, family: Family, cause: Cause, run: usize) -> Self {
        // The seeds are far apart, so that neither families, causes nor runs share a stream.
        let own = (family as u64) << 48 | (cause as u64 + 1) << 32 | run as u64;
        Self {
            random: Pcg64Mcg::seed_from_u64(seed ^ own.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        }
    }

    fn either(&mut self) -> bool {
        self.random.next_u64().is_multiple_of(2)
    }

    /// Returns a log-uniform number: it is as often between 10 and 20 as between 100 and 200.
    fn within(&mut self, least: f64, most: f64) -> f64 {
        let share = self.random.next_u64() as f64 / u64::MAX as f64;
        least * (most / least).powf(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_and_another_another() {
        for part in Part::all() {
            assert_eq!(Case::of(part, 1, 3), Case::of(part, 1, 3));
            assert_ne!(Case::of(part, 1, 3), Case::of(part, 2, 3));
            assert_ne!(Case::of(part, 1, 3), Case::of(part, 1, 4));
        }
    }

    #[test]
    fn every_case_is_one_that_its_cause_limits() {
        for part in Part::all() {
            for run in 0..200 {
                let case = Case::of(part, 7, run);
                assert_eq!(case.link().fault(), None, "{case:?}");
                let path = case.rate.in_time(case.round_trip).0;
                match part.cause {
                    // The kernel doubles the size; half of the doubled size is payload.
                    Cause::SendBuffer => assert!(case.knob * 2 < path, "{case:?}"),
                    Cause::ReceiveBuffer | Cause::ReceiveBufferHere => {
                        assert!(case.knob < path * 2 / 3, "{case:?}");
                    }
                    Cause::NoScaling => assert!(65_535 < path * 3 / 4, "{case:?}"),
                    Cause::Loss if part.family != Family::Bbr => {
                        let mathis =
                            1448.0 * 1.22 / (case.round_trip.as_secs_f64() * case.loss.sqrt());
                        assert!(mathis * 8.0 < case.rate.0 as f64, "{case:?}");
                    }
                    _ => {}
                }
                // A pause is as short as its burst allows, and the observation covers several.
                if let Some(pauses) = case.pauses() {
                    let period = pauses.burst as f64 / case.reached() / (1.0 - pauses.idle);
                    assert!(period * 3.0 < case.watch().as_secs_f64(), "{case:?}");
                }
            }
        }
    }
}
