//! Formats numbers for people.

/// Formats a measured value to `digits` significant digits; whole numbers stay whole.
pub(super) fn measured(value: f64, digits: usize) -> String {
    if value.is_nan() {
        return "no value".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "∞" } else { "-∞" }.to_owned();
    }
    if value == value.trunc() && value.abs() < 1e6 {
        // Adding zero turns minus zero into zero.
        return format!("{:.0}", value + 0.0);
    }
    let magnitude = value.abs().log10().floor();
    if !(-4.0..6.0).contains(&magnitude) {
        return format!("{value:.*e}", digits.saturating_sub(1));
    }
    let decimals = digits as i32 - 1 - magnitude as i32;
    format!("{value:.*}", decimals.max(0) as usize)
}

/// Formats a ratio with as few digits as a reader would repeat.
pub(super) fn ratio(value: f64) -> String {
    match value {
        small if small < 10.0 => format!("{small:.2}"),
        middle if middle < 100.0 => format!("{middle:.1}"),
        large => measured(large.round(), 3),
    }
}

/// Formats a value from a file or a table with the digits it was written with.
pub(super) fn given(value: f64) -> String {
    if value != 0.0 && value.is_finite() && !(1e-6..1e9).contains(&value.abs()) {
        return format!("{value:e}");
    }
    if value.is_finite() {
        // `Display` formats a float as the shortest text that parses to the same number.
        return format!("{}", value + 0.0);
    }
    measured(value, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_values_keep_their_significant_digits() {
        assert_eq!(measured(0.306_42, 3), "0.306");
        assert_eq!(measured(0.3, 3), "0.300");
        assert_eq!(measured(12.345, 3), "12.3");
        assert_eq!(measured(123_456.7, 3), "123457");
        assert_eq!(measured(12.0, 3), "12");
        assert_eq!(measured(-0.0, 3), "0");
        assert_eq!(measured(1.234e9 + 0.5, 3), "1.23e9");
        assert_eq!(measured(1.234e-9, 3), "1.23e-9");
        assert_eq!(measured(f64::NAN, 3), "no value");
        assert_eq!(measured(f64::NEG_INFINITY, 3), "-∞");
    }

    #[test]
    fn given_values_are_not_made_more_exact_than_they_were() {
        assert_eq!(given(0.3064), "0.3064");
        assert_eq!(given(3.0), "3");
        assert_eq!(given(1e300), "1e300");
    }
}
