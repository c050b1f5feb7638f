//! The text format 0.0.4 of Prometheus, for parsers that do not know OpenMetrics: they would take its
//! counters for metrics without a type.

use std::collections::HashMap;

/// The content type.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns whether a client that sends this `Accept` (RFC 9110 section 12.5.1) wants this format: it names it
/// or any text, and not OpenMetrics.
pub(crate) fn is_wanted(accept: &str) -> bool {
    let mut types = accept
        .split(',')
        .filter_map(|range| range.split(';').next());
    let is_text = |kind: &str| ["text/plain", "text/*"].contains(&kind.trim());
    types.clone().any(is_text) && !types.any(|kind| kind.trim() == "application/openmetrics-text")
}

/// Converts metrics from OpenMetrics. In both formats a sample has the same line; there, a family has the name
/// of its samples.
pub(crate) fn convert(openmetrics: &str) -> String {
    let types: HashMap<&str, &str> = openmetrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    let mut text = String::with_capacity(openmetrics.len());
    for line in openmetrics.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        let (Some("#"), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let of_family = types.get(name).copied().unwrap_or_default();
        let (suffix, of_classic) = match of_family {
            "counter" => ("_total", "counter"),
            "info" => ("_info", "gauge"),
            "stateset" => ("", "gauge"),
            "unknown" => ("", "untyped"),
            other => ("", other),
        };
        let rest = match kind {
            "HELP" => words.next().unwrap_or_default(),
            "TYPE" => of_classic,
            // A unit, which is in the name, too.
            _ => continue,
        };
        text.push_str(&format!("# {kind} {name}{suffix} {rest}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_names_text_and_not_openmetrics_gets_text() {
        let of_prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        for accept in [of_prometheus, "*/*", "", "application/json", "text/html"] {
            assert!(!is_wanted(accept), "{accept}");
        }
        for accept in [
            "text/plain",
            "text/plain;version=0.0.4, */*",
            "text/*;q=0.9",
        ] {
            assert!(is_wanted(accept), "{accept}");
        }
    }

    #[test]
    fn families_have_the_names_of_their_samples() {
        let openmetrics = "# HELP a_bytes What there is.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
                           a_bytes_total{of=\"# x\"} 7\n# HELP b B.\n# TYPE b gauge\nb 1\n\
                           # HELP c C.\n# TYPE c info\nc_info{v=\"1\"} 1\n# TYPE d unknown\nd 2\n# EOF\n";
        let classic = "# HELP a_bytes_total What there is.\n# TYPE a_bytes_total counter\n\
                       a_bytes_total{of=\"# x\"} 7\n# HELP b B.\n# TYPE b gauge\nb 1\n\
                       # HELP c_info C.\n# TYPE c_info gauge\nc_info{v=\"1\"} 1\n# TYPE d untyped\nd 2\n";
        assert_eq!(convert(openmetrics), classic);
    }
}
