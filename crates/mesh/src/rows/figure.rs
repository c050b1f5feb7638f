//! The measured quality of a path, in six bytes.

use std::time::Duration;

/// The unit of round-trip times.
const UNIT: Duration = Duration::from_micros(25);

/// The value that a message uses for an entry that a row no longer has.
const REMOVED: u16 = u16::MAX;

/// The largest round-trip time, in units; a longer one counts as this.
const MAX_UNITS: u16 = u16::MAX - 1;

/// The unit of loss.
const LOSS: f64 = 1e-5;

/// The bits of a loss. The top bit of its 16 is left for the user of the figure.
const LOSS_MAX: u16 = 0x7fff;

/// The length of an encoded figure.
pub(super) const LEN: usize = 6;

/// The measured quality of a path: the least and the smoothed round-trip time, in units of 25 us up
/// to 1.6 s, and the share of lost segments, in units of 1/100,000 up to 0.32. Larger values count
/// as the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Figure {
    min: u16,
    smoothed: u16,
    loss: u16,
}

// === impl Figure ===

impl Figure {
    /// In a message: the row no longer has this entry.
    pub(super) const GONE: Self = Self {
        min: REMOVED,
        smoothed: 0,
        loss: 0,
    };

    /// Returns the figure of a path with this least and smoothed round-trip time and this share of
    /// lost segments (0 to 1).
    pub fn new(min: Duration, smoothed: Duration, loss: f64) -> Self {
        Self {
            min: units(min),
            smoothed: units(smoothed),
            loss: share(loss),
        }
    }

    /// Returns the least round-trip time.
    pub fn rtt(self) -> Duration {
        UNIT * u32::from(self.min)
    }

    /// Returns the smoothed round-trip time.
    pub fn smoothed(self) -> Duration {
        UNIT * u32::from(self.smoothed)
    }

    /// Returns the share of lost segments.
    pub fn loss(self) -> f64 {
        f64::from(self.loss) * LOSS
    }

    /// Returns whether a relay that knows `self` should be told `new`: a round-trip time has
    /// changed by a twentieth (the smoothed one by a quarter) and more than noise, or the loss by
    /// half and more than one in a thousand.
    pub(super) fn differs_from(self, new: Self) -> bool {
        let changed = |a: u16, b: u16, share: u16, noise: u16| {
            let difference = a.abs_diff(b);
            difference > noise && difference > a.max(b) / share
        };
        changed(self.min, new.min, 20, 10)
            || changed(self.smoothed, new.smoothed, 4, 80)
            || changed(self.loss, new.loss, 2, 100)
    }

    pub(super) fn is_gone(self) -> bool {
        self.min == REMOVED
    }

    /// Appends the figure, with a flag in its last field.
    pub(super) fn encode(self, flag: bool, out: &mut Vec<u8>) {
        let loss = self.loss | (u16::from(flag) << 15);
        for field in [self.min, self.smoothed, loss] {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }

    /// Decodes a figure and its flag.
    pub(super) fn decode(bytes: [u8; LEN]) -> (Self, bool) {
        let [a, b, c, d, e, f] = bytes;
        let loss = u16::from_be_bytes([e, f]);
        let figure = Self {
            min: u16::from_be_bytes([a, b]),
            smoothed: u16::from_be_bytes([c, d]),
            loss: loss & LOSS_MAX,
        };
        (figure, loss > LOSS_MAX)
    }
}

fn units(time: Duration) -> u16 {
    let units = (time + UNIT / 2).as_micros() / UNIT.as_micros();
    u16::try_from(units).unwrap_or(MAX_UNITS).min(MAX_UNITS)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from f64 saturates, and the value is not negative"
)]
fn share(loss: f64) -> u16 {
    ((loss.max(0.0) / LOSS).round() as u16).min(LOSS_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_figure_keeps_its_values_within_half_a_unit_and_saturates(
            min in 0_u64..3_000_000, smoothed in 0_u64..3_000_000, loss in 0.0..1.0_f64, flag: bool,
        ) {
            let (min, smoothed) = (Duration::from_micros(min), Duration::from_micros(smoothed));
            let figure = Figure::new(min, smoothed, loss);
            let longest = UNIT * u32::from(MAX_UNITS);
            prop_assert!(figure.rtt().abs_diff(min.min(longest)) <= UNIT / 2);
            prop_assert!(figure.smoothed().abs_diff(smoothed.min(longest)) <= UNIT / 2);
            prop_assert!((figure.loss() - loss.min(0.327_67)).abs() <= LOSS);
            prop_assert!(!figure.is_gone());
            let mut bytes = Vec::new();
            figure.encode(flag, &mut bytes);
            prop_assert_eq!(Figure::decode(bytes.try_into().unwrap()), (figure, flag));
        }
    }

    #[test]
    fn noise_is_not_told_and_a_longer_path_is() {
        let figure =
            |ms: u64| Figure::new(Duration::from_millis(ms), Duration::from_millis(ms), 0.0);
        assert!(!figure(100).differs_from(figure(104)));
        assert!(figure(100).differs_from(figure(106)));
        let tiny = |us: u64| Figure::new(Duration::from_micros(us), Duration::from_micros(us), 0.0);
        assert!(!tiny(100).differs_from(tiny(300)));
        let lossy = Figure::new(Duration::from_millis(100), Duration::from_millis(100), 0.01);
        assert!(figure(100).differs_from(lossy));
    }
}
