//! Outcomes that are broken by accident or hostile on purpose.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::experiment::outcome::Series;

#[test]
fn hostile_strings_are_only_text() {
    let evil = "<script>alert('x')</script>\"><i>&amp;\u{1}\u{202e}";
    let hostile = with(PIED_PIPER, |outcome| {
        outcome.experiment = evil.to_owned();
        outcome.version = evil.to_owned();
        outcome.environment.kernel = evil.to_owned();
        outcome
            .environment
            .links
            .insert(evil.to_owned(), evil.to_owned());
        outcome.environment.guests.push(evil.to_owned());
        outcome
            .environment
            .programs
            .insert(evil.to_owned(), evil.to_owned());
        let check = outcome.calibration.checks["rtt_ms"];
        outcome.calibration.checks.insert(evil.to_owned(), check);
        outcome.headline.insert(evil.to_owned(), 1.0);
        outcome.notes.push(evil.to_owned());
        outcome
            .paper
            .insert(evil.to_owned(), json!({evil: [evil, null]}));
        outcome.ideal.insert(evil.to_owned(), json!(evil));
        for series in &mut outcome.series {
            series.name = format!("{evil}/{}", series.name);
            series.metric = evil.to_owned();
            series.unit = evil.to_owned();
        }
    });
    let page = render(&[Run {
        file: evil.to_owned(),
        ..hostile
    }]);
    assert!(!page.contains("<script") && !page.contains("<i>"));
    assert!(!page.contains(['\u{1}', '\u{202e}']));
    assert!(text(&xml(&page)).contains("alert('x')"));
}

#[test]
fn nothing_that_is_not_a_number_reaches_a_coordinate() {
    let strange = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        -1.0,
        0.0,
        f64::MAX,
        5e-324,
    ];
    let strange = with(PIED_PIPER, |outcome| {
        for (i, series) in outcome.series.iter_mut().enumerate() {
            series.median = strange[i % strange.len()];
            series.p10 = strange[i / 2 % strange.len()];
            series.p90 = strange[i / 3 % strange.len()];
            series.samples = strange.to_vec();
        }
    });
    assert_coordinates_are_numbers(&xml(&render(&[strange])));
}

fn assert_coordinates_are_numbers(xml: &str) {
    let document = roxmltree::Document::parse(xml).unwrap();
    for node in document.descendants() {
        for name in [
            "x", "y", "x1", "x2", "y1", "y2", "width", "height", "cx", "cy", "dx",
        ] {
            if let Some(value) = node.attribute(name) {
                let number: f64 = value.parse().unwrap();
                assert!(number.is_finite() && number.abs() < 1e5, "{name}={value}");
            }
        }
        let path = node.attribute("d").unwrap_or_default();
        assert!(!path.contains("NaN") && !path.contains("inf"), "{path}");
    }
}

/// Generates names as experiments have them, and arbitrary ones.
fn names() -> impl Strategy<Value = String> {
    prop_oneof![
        r"(e2e|ssh|relay)/[0-9]{1,3} (kB|MB|senders)(/0\.1 % loss)?",
        r"\PC{0,12}",
        any::<String>(),
    ]
}

fn numbers() -> impl Strategy<Value = f64> {
    prop_oneof![0.0..10.0, prop::num::f64::ANY]
}

prop_compose! {
    fn series()(
        name in names(),
        metric in prop_oneof!["ttfb|total", ".{0,8}"],
        unit in prop_oneof!["s|Mbit/s|1", ".{0,6}"],
        n in any::<usize>(),
        (median, p10, p90) in (numbers(), numbers(), numbers()),
        samples in prop::collection::vec(numbers(), 0..14),
    ) -> Series {
        Series { name, metric, unit, n, median, p10, p90, samples }
    }
}

fn references() -> impl Strategy<Value = Map<String, Value>> {
    let number = || prop::num::f64::NORMAL.prop_map(|n| json!(n));
    let value = prop_oneof![
        number(),
        any::<String>().prop_map(Value::from),
        prop::collection::btree_map(names(), number(), 0..4).prop_map(|map| json!(map)),
    ];
    prop::collection::btree_map(
        prop_oneof!["ttfb_s|total_s|total_mbit_s", ".{0,8}"],
        value,
        0..4,
    )
    .prop_map(|map| map.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn whatever_was_measured_makes_a_page(
        series in prop::collection::vec(series(), 0..24),
        paper in references(),
        ideal in references(),
        headline in prop::collection::btree_map(any::<String>(), numbers(), 0..4),
    ) {
        let run = with(PIED_PIPER, |outcome| {
            outcome.series = series;
            outcome.paper = paper;
            outcome.ideal = ideal;
            outcome.headline = headline;
        });
        assert_coordinates_are_numbers(&xml(&render(&[run])));
    }
}
