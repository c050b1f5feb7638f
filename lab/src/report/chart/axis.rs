//! Maps values to pixels and places the ticks.
//!
//! An axis accepts any measured or hand-written value. Values that are not numbers are left out,
//! and huge values are clamped, so that no difference of two values overflows.

/// The largest value that is drawn. Larger values are drawn at it.
const IMMENSE: f64 = 1e250;

/// An axis: a range of values on a range of pixels.
#[derive(Clone, Debug)]
pub(in super::super) struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    Linear,
    Log,
}

/// Returns the clamped value, or `None` if it is not a number.
pub(in super::super) fn sane(value: f64) -> Option<f64> {
    if value.is_nan() {
        return None;
    }
    let value = value.clamp(-IMMENSE, IMMENSE);
    // Dividing by a smaller range would overflow a float.
    Some(if value.abs() < IMMENSE.recip() {
        0.0
    } else {
        value
    })
}

/// Returns whether `values` differ so much that a linear axis would hide the small ones. All values
/// must be positive, because a log axis cannot show others.
pub(in super::super) fn spans_decades(values: impl IntoIterator<Item = f64>) -> bool {
    let (low, high) = range(values);
    low > 0.0 && high / low > 20.0
}

fn range(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    values
        .into_iter()
        .filter_map(sane)
        .fold(None, |range, value| match range {
            None => Some((value, value)),
            Some((low, high)) => Some((value.min(low), value.max(high))),
        })
        .unwrap_or((0.0, 1.0))
}

// === impl Axis ===

impl Axis {
    /// Returns a linear axis from zero, or from the least value if that is negative. It suits bars,
    /// whose length is their value.
    pub(in super::super) fn from_zero(values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = range(values);
        Self::linear(low.min(0.0), high.max(0.0))
    }

    /// Returns a linear axis around the values. It suits marks whose position counts, not their
    /// length.
    pub(in super::super) fn around(values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = range(values);
        let air = (high - low) * 0.05;
        // The margin must not suggest that a time could be negative.
        let below = if low >= 0.0 {
            (low - air).max(0.0)
        } else {
            low - air
        };
        Self::linear(below, high + air)
    }

    /// Returns a logarithmic axis in whole decades. Values that are not positive are drawn at the
    /// lower end.
    pub(in super::super) fn log(values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = range(values.into_iter().filter(|value| *value > 0.0));
        let low = if low > 0.0 { low } else { 0.1 };
        let low = 10f64.powf(low.log10().floor());
        let high = 10f64.powf(high.log10().ceil());
        Self {
            low,
            high: if high > low { high } else { low * 10.0 },
            from: 0.0,
            to: 1.0,
            scale: Scale::Log,
        }
    }

    /// Returns a logarithmic axis that extends only a little beyond the values. It suits marks with
    /// their own names.
    pub(in super::super) fn ratios(values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = range(values.into_iter().filter(|value| *value > 0.0));
        let low = if low > 0.0 { low } else { 0.1 };
        let air = (high.max(low) / low).min(IMMENSE).powf(0.04).max(1.05);
        Self {
            low: low / air,
            high: high.max(low) * air,
            from: 0.0,
            to: 1.0,
            scale: Scale::Log,
        }
    }

    fn linear(low: f64, high: f64) -> Self {
        let least = (low.abs() * 1e-3).max(IMMENSE.recip());
        Self {
            low,
            high: if high - low >= least {
                high
            } else {
                low + low.abs().max(1.0)
            },
            from: 0.0,
            to: 1.0,
            scale: Scale::Linear,
        }
    }

    /// Places the axis on the pixels between `from` and `to`.
    #[must_use]
    pub(in super::super) fn on(self, from: f64, to: f64) -> Self {
        Self { from, to, ..self }
    }

    /// Returns the pixel of `value`.
    pub(in super::super) fn at(&self, value: f64) -> f64 {
        let value = sane(value).unwrap_or(self.low).clamp(self.low, self.high);
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.log10() - self.low.log10()) / self.decades(),
        };
        self.from + (self.to - self.from) * part
    }

    // Subtracts logarithms, because the quotient could overflow.
    fn decades(&self) -> f64 {
        self.high.log10() - self.low.log10()
    }

    /// Returns about `wanted` round values to mark.
    pub(in super::super) fn ticks(&self, wanted: usize) -> Vec<f64> {
        let within = |value: &f64| {
            let slack = (self.high - self.low) * 1e-9;
            (self.low - slack..=self.high + slack).contains(value)
        };
        match self.scale {
            Scale::Linear => {
                let step = round_step((self.high - self.low) / wanted.max(1) as f64);
                let first = (self.low / step).ceil();
                // One more than a rounded step can need. The bound ends the loop for any values.
                (0..=wanted * 2 + 1)
                    .map(|i| (first + i as f64) * step)
                    .filter(within)
                    .collect()
            }
            Scale::Log => {
                let decades = self.decades().round();
                let every = (decades / wanted.max(1) as f64).ceil().max(1.0);
                let halves: &[f64] = if decades <= 2.0 {
                    &[1.0, 2.0, 5.0]
                } else {
                    &[1.0]
                };
                (0..=wanted + 1)
                    .flat_map(|i| {
                        let decade = self.low * 10f64.powf(i as f64 * every);
                        halves.iter().map(move |part| decade * part)
                    })
                    .filter(within)
                    .collect()
            }
        }
    }
}

/// Returns one, two or five times a power of ten, at least `step`.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|times| times * power)
        .find(|round| *round >= step * (1.0 - 1e-9))
        .unwrap_or(step)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bars_start_at_zero() {
        let axis = Axis::from_zero([2.0, 10.0]).on(100.0, 200.0);
        assert_eq!(axis.at(0.0), 100.0);
        assert_eq!(axis.at(5.0), 150.0);
        assert_eq!(axis.ticks(5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    }

    #[test]
    fn a_negative_value_moves_the_start_and_not_the_zero() {
        let axis = Axis::from_zero([-5.0, 5.0]).on(0.0, 100.0);
        assert_eq!(axis.at(0.0), 50.0);
        assert_eq!(axis.at(-5.0), 0.0);
    }

    #[test]
    fn equal_ratios_are_equal_steps_on_a_log_axis() {
        let axis = Axis::log([1.0, 100.0]).on(0.0, 100.0);
        assert!((axis.at(10.0) - 50.0).abs() < 1e-9);
        assert_eq!(axis.ticks(4), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(axis.at(-1.0), 0.0);
    }

    #[test]
    fn equal_values_still_make_an_axis() {
        for value in [0.0, 3.0, -3.0, 1e-30] {
            let axis = Axis::around([value, value]).on(0.0, 10.0);
            assert!(!axis.ticks(4).is_empty(), "{value}");
        }
    }

    proptest! {
        #[test]
        fn every_value_is_on_the_axis(
            values in prop::collection::vec(prop::num::f64::ANY, 0..8),
            wanted in 0usize..10,
        ) {
            for axis in [
                Axis::from_zero(values.clone()),
                Axis::around(values.clone()),
                Axis::log(values.clone()),
                Axis::ratios(values.clone()),
            ] {
                let axis = axis.on(10.0, 20.0);
                for value in values.iter().copied().chain(axis.ticks(wanted)) {
                    let at = axis.at(value);
                    prop_assert!((9.99..=20.01).contains(&at), "{value} at {at} of {axis:?}");
                }
                prop_assert!(axis.ticks(wanted).len() <= wanted * 3 + 6);
            }
        }
    }
}
