//! Formats figures in few characters.

use crate::instruments::Unit;

/// Formats the value of an instrument.
pub(super) fn with_unit(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => bytes(value),
        Unit::BytesPerSecond => format!("{}bit/s", bits(value)),
        Unit::Seconds if value < 1.0 => format!("{} ms", ms(value)),
        Unit::Seconds => format!("{value:.2} s"),
        Unit::Segments | Unit::Count | Unit::Shift | Unit::Flag => format!("{value:.0}"),
        Unit::Ratio => format!("{value:.3}"),
    }
}

/// Formats a rate, given in bytes a second, in bits a second.
pub(super) fn bits(rate: f64) -> String {
    scaled(rate * 8.0, 1000.0, ["", "k", "M", "G", "T"])
}

/// Formats a number of bytes. Small numbers, such as segment sizes, keep all digits.
pub(super) fn bytes(bytes: f64) -> String {
    if bytes < 9999.5 {
        return format!("{bytes:.0}");
    }
    scaled(bytes, 1024.0, ["", "Ki", "Mi", "Gi", "Ti"])
}

/// Formats three digits and a unit prefix.
fn scaled(mut value: f64, step: f64, prefixes: [&str; 5]) -> String {
    let mut prefixes = prefixes.into_iter().peekable();
    let mut prefix = "";
    while let Some(next) = prefixes.next() {
        prefix = next;
        if value < 999.5 || prefixes.peek().is_none() {
            break;
        }
        value /= step;
    }
    match value {
        value if prefix.is_empty() || value >= 99.95 => format!("{value:.0}{prefix}"),
        value if value >= 9.995 => format!("{value:.1}{prefix}"),
        value => format!("{value:.2}{prefix}"),
    }
}

pub(super) fn ms(seconds: f64) -> String {
    let ms = seconds * 1e3;
    match ms {
        ms if ms >= 99.95 => format!("{ms:.0}"),
        ms if ms >= 9.995 => format!("{ms:.1}"),
        ms => format!("{ms:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (124.9, "999"),
            (125.0, "1.00k"),
            (1_249_000.0, "9.99M"),
            (12_500_000.0, "100M"),
            (125e6, "1.00G"),
            (125e18, "1000000000T"),
        ] {
            assert_eq!(bits(value), text);
        }
        assert_eq!(
            (ms(0.00012), ms(0.0123), ms(1.5)),
            ("0.12".into(), "12.3".into(), "1500".into())
        );
        assert_eq!(bytes(65535.0), "64.0Ki");
        assert_eq!(
            (bytes(1448.0), bytes(9000.0)),
            ("1448".into(), "9000".into())
        );
        assert_eq!(with_unit(0.000_012, Unit::Seconds), "0.01 ms");
        assert_eq!(with_unit(1.5, Unit::Seconds), "1.50 s");
    }
}
