//! Tests of the page's contents.

use roxmltree::Document;

use super::*;
use crate::experiment::outcome::Check;

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
fn the_page_opens_with_what_each_job_won_beside_the_papers_figure() {
    let mut incast = run(INCAST);
    incast
        .outcome
        .headline
        .insert("timeouts_cut_1_sender".to_owned(), 0.98);
    let mut pied_piper = run(PIED_PIPER);
    pied_piper
        .outcome
        .paper
        .insert("speedup_pied_piper_over_e2e_at_most".to_owned(), 3.into());
    let document = xml(&render(&[pied_piper, incast]));
    let text = text(&document)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let (cards, _) = text.split_once("All runs").unwrap();
    let card = |job: &str, next: &str| {
        let from = cards.find(job).unwrap();
        cards[from..from + cards[from..].find(next).unwrap()].to_owned()
    };
    let relay = card("taut relay", "taut guest");
    assert!(
        relay.contains("\u{d7} as fast: 1 MB") && relay.contains("up to 3\u{d7}"),
        "{relay}"
    );
    // Its calibration failed.
    let module = cards.split("its module").nth(1).unwrap();
    assert!(
        module.contains("98 %") && module.contains("Proves nothing"),
        "{module}"
    );
    for not_run in ["taut mesh", "taut snoop", "taut tune", "taut why"] {
        assert!(!cards.contains(not_run), "{not_run}: {cards}");
    }
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
fn a_run_on_a_busy_machine_is_doubtful_and_not_struck_out() {
    let busy = with(INCAST, |outcome| {
        outcome.calibration.busy = vec!["link_overruns".to_owned()];
        let late = Check::none(2);
        let checks = &mut outcome.calibration.checks;
        // The file's own failure is not of the machine.
        checks.remove("spurious_timeouts");
        checks.insert("link_overruns".to_owned(), late);
    });
    let page = render(&[busy]);
    let text = text(&xml(&page));
    assert!(
        text.contains("This machine was busy") && !text.contains("FAILED"),
        "{text}"
    );
    assert!(text.contains("1 of 1 run") && text.contains("link_overruns"));
    assert!(!page.contains("verdict failed"));
}

#[test]
fn figures_name_configurations_in_words_and_begin_with_the_total() {
    let text = text(&xml(&render(&[run(PIED_PIPER)])));
    let (before, _) = text.split_once("Headline").unwrap();
    assert!(
        before.contains("end to end") && before.contains("10 MB"),
        "{before}"
    );
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

#[test]
fn runs_of_different_trees_are_marked() {
    let page = |trees: [Option<&str>; 2]| {
        let mut runs = [run(PIED_PIPER), run(INCAST)];
        for (run, tree) in runs.iter_mut().zip(trees) {
            run.outcome.tree = tree.map(str::to_owned);
        }
        text(&xml(&render(&runs)))
    };
    let mixed = page([Some("1a2b3c4"), None]);
    assert!(mixed.contains("not all of one tree"));
    // In the list of runs, and in its section.
    assert_eq!(mixed.matches("1a2b3c4").count(), 2);
    assert_eq!(mixed.matches("not named").count(), 2);
    let one = page([Some("1a2b3c4"); 2]);
    assert_eq!(one.matches("1a2b3c4").count(), 1);
    assert!(!one.contains("not all of one tree"));
    assert!(!page([None; 2]).contains("not all of one tree"));
}

#[test]
fn runs_are_listed_by_job() {
    let page = text(&xml(&render(&[run(PIED_PIPER), run(INCAST)])));
    let (_, list) = page.split_once("All runs").unwrap();
    let place = |job: &str| list.find(job).unwrap();
    assert!(place("taut relay, taut mesh") < place("A long path"));
    assert!(place("A long path") < place("taut guest"));
}
