//! Units: their prefixes, and whether more or less is better.

/// Whether a higher or a lower value is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Lower,
    Higher,
    Unknown,
}

/// A unit in which values are shown.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unit {
    /// The factor that converts a value to this unit.
    pub(super) factor: f64,
    pub(super) label: String,
}

/// Returns whether a higher or a lower value of this unit is better. A time is a wait and a rate is
/// work done; for other units neither is better.
pub(super) fn better(unit: &str) -> Better {
    match unit {
        "s" | "ms" | "us" | "µs" | "ns" => Better::Lower,
        rate if rate.ends_with("/s") => Better::Higher,
        _ => Better::Unknown,
    }
}

/// Returns the unit as the report shows it: empty for a pure number.
pub(super) fn label(unit: &str) -> &str {
    if unit == "1" { "" } else { unit }
}

/// Joins a number and its unit, if it has one.
pub(super) fn with(number: String, unit: &str) -> String {
    if unit.is_empty() {
        number
    } else {
        format!("{number} {unit}")
    }
}

// === impl Unit ===

impl Unit {
    /// Returns the unit that suits values up to `most`: seconds below one are shown as
    /// milliseconds.
    pub(super) fn fitting(unit: &str, most: f64) -> Self {
        let (factor, label) = match unit {
            "s" if most < 1e-3 => (1e6, "µs"),
            "s" if most < 1.0 => (1e3, "ms"),
            other => (1.0, label(other)),
        };
        Self {
            factor,
            label: label.to_owned(),
        }
    }

    /// Converts a value from the series' unit to this one.
    pub(super) fn of(&self, value: f64) -> f64 {
        value * self.factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_times_are_shown_in_smaller_units() {
        assert_eq!(Unit::fitting("s", 0.3).label, "ms");
        assert_eq!(Unit::fitting("s", 0.3).of(0.3), 300.0);
        assert_eq!(Unit::fitting("s", 3.0).label, "s");
        assert_eq!(Unit::fitting("Mbit/s", 0.3).label, "Mbit/s");
        assert_eq!(Unit::fitting("1", 0.3).label, "");
    }

    #[test]
    fn less_time_and_more_rate_is_better() {
        assert_eq!(better("s"), Better::Lower);
        assert_eq!(better("MB/s"), Better::Higher);
        assert_eq!(better("1"), Better::Unknown);
    }
}
