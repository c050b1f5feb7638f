//! Tests of the page's contents.

use roxmltree::Document;

use super::*;
use crate::report::page::render;

fn sample() -> Vec<Run> {
    [PIED_PIPER, INCAST, UNKNOWN].map(run).into()
}

#[test]
fn the_page_is_well_formed() {
    let xml = xml(&render(&sample()));
    let document = Document::parse(&xml).unwrap();
    let charts = document
        .descendants()
        .filter(|n| n.has_tag_name(("http://www.w3.org/2000/svg", "svg")));
    // Pied Piper has 4 + 4 + 2 + 1 charts of bars and as many distributions, incast 2, and unknown
    // 1.
    assert_eq!(charts.count(), 25);
}

#[test]
fn the_page_loads_nothing() {
    let page = render(&sample());
    for loads in [
        "<script", "<link", "<img", "src=", "url(", "@import", "<iframe", "<use",
    ] {
        assert!(!page.contains(loads), "{loads}");
    }
    let elsewhere = page.replace("http://www.w3.org/2000/svg", "");
    assert!(
        !elsewhere.contains("://"),
        "an address other than SVG's name space"
    );
}

#[test]
fn the_same_outcomes_make_the_same_page() {
    assert_eq!(render(&sample()), render(&sample()));
}

#[test]
fn every_series_shows_up_with_its_samples() {
    let runs = sample();
    let xml = xml(&render(&runs));
    let document = Document::parse(&xml).unwrap();
    let rows: Vec<String> = document
        .descendants()
        .filter(|node| node.has_tag_name("tr"))
        .map(text_in)
        .collect();
    for series in runs.iter().flat_map(|run| &run.outcome.series) {
        let median = crate::report::number::measured(series.median, 4);
        let samples: Vec<String> = series.samples.iter().map(f64::to_string).collect();
        let shown = rows.iter().any(|row| {
            row.contains(&series.name)
                && row.contains(&series.metric)
                && row.contains(&median)
                && samples.iter().all(|sample| row.contains(sample))
        });
        assert!(shown, "{} {}", series.name, series.metric);
    }
}

#[test]
fn every_series_of_a_chart_says_its_figures_under_the_pointer() {
    let runs = sample();
    let text = text(&xml(&render(&runs)));
    for series in runs.iter().flat_map(|run| &run.outcome.series) {
        assert!(
            text.contains(&format!("{}: median ", series.name)),
            "{}",
            series.name
        );
    }
}

#[test]
fn headline_figures_stand_beside_the_papers() {
    let xml = xml(&render(&[run(PIED_PIPER)]));
    let document = Document::parse(&xml).unwrap();
    let row = document
        .descendants()
        .filter(|node| node.has_tag_name("tr"))
        .find(|row| {
            row.descendants()
                .any(|n| n.text() == Some("speedup_10mb_64k_window"))
        })
        .unwrap();
    let cells: Vec<&str> = row.descendants().filter_map(|n| n.text()).collect();
    assert!(
        cells.contains(&"7.430") && cells.contains(&"7.91"),
        "{cells:?}"
    );
}

#[test]
fn ideals_and_the_papers_figures_are_drawn() {
    let text = text(&xml(&render(&[run(PIED_PIPER)])));
    assert!(text.contains("ideal 306 ms"));
    assert!(text.contains("ideal 0.386 s"));
    assert!(text.contains("◇ 2.2"));
    assert!(text.contains("compare the paper’s Figure 8"));
}

#[test]
fn a_failed_calibration_is_said_in_words() {
    let failed = text(&xml(&render(&[run(INCAST)])));
    assert!(failed.contains("✗ CALIBRATION FAILED"));
    assert!(failed.contains("did not hold"));
    let held = text(&xml(&render(&[run(PIED_PIPER)])));
    assert!(held.contains("✓ Calibration held") && !held.contains("FAILED"));
    let unchecked = text(&xml(&render(&[run(UNKNOWN)])));
    assert!(unchecked.contains("nothing was checked"));
}

#[test]
fn a_calibration_that_belies_its_checks_has_failed() {
    let belied = with(PIED_PIPER, |outcome| {
        outcome
            .calibration
            .checks
            .get_mut("rtt_ms")
            .unwrap()
            .measured = 1.0;
    });
    assert!(render(&[belied]).contains("CALIBRATION FAILED"));
}

#[test]
fn an_outcome_without_series_is_still_a_page() {
    let empty = with(PIED_PIPER, |outcome| {
        outcome.series.clear();
        outcome.headline.clear();
    });
    let text = text(&xml(&render(&[empty])));
    assert!(text.contains("No series were measured."));
    assert!(text.contains("no headline figures"));
}

#[test]
fn a_series_without_samples_keeps_its_row() {
    let bare = with(UNKNOWN, |outcome| {
        outcome.series.truncate(1);
        outcome.series[0].samples.clear();
        outcome.series[0].n = 0;
    });
    assert!(text(&xml(&render(&[bare]))).contains("steady"));
}
