//! The figures that the page opens with: what each job of Taut won, beside the paper's own number.

use maud::{Markup, html};
use serde_json::{Map, Value};

use super::{folder::Run, number};
use crate::experiment::outcome::Trust;

/// A headline figure that says what a job won.
#[derive(Debug)]
struct Won {
    job: &'static str,
    experiment: &'static str,
    /// The key in `headline`.
    key: &'static str,
    form: Form,
    /// What the figure is of.
    about: &'static str,
    /// The paper's figure for the same thing, or why there is none. `{KEY}` stands for a figure in the
    /// outcome's `paper`.
    paper: &'static str,
}

/// How a figure is written.
#[derive(Clone, Copy, Debug)]
enum Form {
    Times,
    Percent,
}

/// One figure of each job.
const ALL: &[Won] = &[
    Won {
        job: "taut relay",
        experiment: "pied-piper",
        key: "speedup_1mb",
        form: Form::Times,
        about: "as fast: 1 MB over two relays, compared with one connection over the same 274 ms",
        paper: "The paper: up to {speedup_pied_piper_over_e2e_at_most}\u{d7} (\u{201c}Pied Piper\u{201d}, figure 8)",
    },
    Won {
        job: "taut mesh",
        experiment: "internet",
        key: "speedup_4mb",
        form: Form::Times,
        about: "as fast: 4 MB over a mesh\u{2019}s clean cloud leg, compared with the lossy Internet path",
        paper: "The paper: {baseline_speedup_4mb}\u{d7} (\u{201c}Pied Piper\u{201d}, section 1)",
    },
    Won {
        job: "taut snoop",
        experiment: "consolidate",
        key: "snoop_gain_100kb",
        form: Form::Times,
        about: "as fast: 100 kB to a guest that shares its core with two others",
        paper: "The paper: {snoop_grow_gain_100kb}\u{d7} (\u{201c}vSnoop\u{201d}, figure 5; its vSnoop acknowledges beyond the guest\u{2019}s window, as --grow)",
    },
    Won {
        job: "taut guest",
        experiment: "descheduled",
        key: "taut_bbr_over_cubic_share25",
        form: Form::Times,
        about: "the throughput of Cubic: a guest sends with taut_bbr and has a quarter of its core",
        paper: "No paper has taut_bbr. Without it, BBR is far below Cubic here",
    },
    Won {
        job: "taut guest, its module",
        experiment: "incast",
        key: "timeouts_cut_1_sender",
        form: Form::Percent,
        about: "of the time-outs of a guest that waits for its core are gone",
        paper: "The paper: from {timeouts_tcp_1ms_1_sender_1024_kb} to {timeouts_pvtcp_1ms_1_sender_1024_kb} (\u{201c}PVTCP\u{201d})",
    },
    Won {
        job: "taut tune",
        experiment: "long-fat",
        key: "locked_rcvbuf_after_share",
        form: Form::Percent,
        about: "of 1 Gbit/s over 100 ms, by a connection whose buffer was fixed at 64 kB: some 8 Mbit/s before",
        paper: "The thesis: {throughput_mbit_s_before} to {throughput_mbit_s_after} Mbit/s (on its own path, by tuning with Web100)",
    },
    Won {
        job: "taut why",
        experiment: "verdicts",
        key: "heldout_accuracy",
        form: Form::Percent,
        about: "of the verdicts right, in families of worlds that its thresholds were not set on",
        paper: "The thesis counts no verdicts",
    },
];

/// Returns a card for each job whose figure was measured. `id` returns the anchor of a run by its place.
pub(super) fn render(runs: &[Run], id: impl Fn(usize) -> String) -> Markup {
    let cards = ALL.iter().filter_map(|won| card(won, runs, &id));
    html! {
        ul.won {
            @for card in cards { li { (card) } }
        }
    }
}

fn card(won: &Won, runs: &[Run], id: &impl Fn(usize) -> String) -> Option<Markup> {
    let of_it = |run: &Run| run.outcome.experiment == won.experiment;
    let full = runs.iter().position(|run| of_it(run) && !run.outcome.quick);
    let place = full.or_else(|| runs.iter().position(of_it));
    let place = place?;
    let run = &runs[place];
    let value = *run.outcome.headline.get(won.key)?;
    let trust = run.outcome.calibration.trust();
    let failed = trust == Trust::Failed;
    Some(html! {
        h2 { (won.job) }
        p.figure.failed[failed] { a href={ "#" (id(place)) } { (written(won.form, value)) } @if run.outcome.quick { span.badge { "quick form" } } }
        p { (won.about) }
        @if failed { p.aside { b { "Proves nothing: the calibration of " (won.experiment) " failed." } } }
        @if trust == Trust::Busy { p.aside { b { "Doubtful: this machine was busy." } } }
        @if let Some(paper) = filled(won.paper, &run.outcome.paper) {
            p.aside { (paper) }
        }
    })
}

/// Fills in the figures. Returns `None` if the outcome lacks one of them.
fn filled(sentence: &str, paper: &Map<String, Value>) -> Option<String> {
    let mut parts = sentence.split('{');
    let mut text = parts.next()?.to_owned();
    for part in parts {
        let (key, rest) = part.split_once('}')?;
        text += &paper.get(key)?.as_number()?.to_string();
        text += rest;
    }
    Some(text)
}

fn written(form: Form, value: f64) -> String {
    match form {
        Form::Times => format!("{}\u{d7}", number::ratio(value)),
        Form::Percent => format!("{} %", number::measured(value * 100.0, 3)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;

    /// The guide's list of experiments, with a link to the page of each.
    const LIST: &str = include_str!("../../../docs/lab.md");

    /// The pages that describe the experiments, each below a heading of its own.
    const PAGES: &[(&str, &str)] = &[
        ("lab-relay.md", include_str!("../../../docs/lab-relay.md")),
        ("lab-mesh.md", include_str!("../../../docs/lab-mesh.md")),
        ("lab-peers.md", include_str!("../../../docs/lab-peers.md")),
        ("lab-guests.md", include_str!("../../../docs/lab-guests.md")),
        ("lab-snoop.md", include_str!("../../../docs/lab-snoop.md")),
        (
            "lab-verdicts.md",
            include_str!("../../../docs/lab-verdicts.md"),
        ),
        ("lab-tune.md", include_str!("../../../docs/lab-tune.md")),
    ];

    /// Returns the part of the guide that describes the experiment, and the name of its page.
    fn described(experiment: &str) -> Option<(&'static str, &'static str)> {
        let heading = format!("\n## {experiment}\n");
        PAGES.iter().find_map(|(page, text)| {
            let (_, after) = text.split_once(&heading)?;
            Some((*page, after.split("\n## ").next()?))
        })
    }

    #[test]
    fn every_experiment_is_on_the_page_that_the_guide_links_to() {
        for one in registry::ALL {
            let name = one.name;
            let (page, _) = described(name).unwrap_or_else(|| panic!("no page describes {name}"));
            let link = format!("[`{name}`]({page}#{name})");
            assert!(LIST.contains(&link), "docs/lab.md lacks {link}");
        }
    }

    #[test]
    fn every_figure_is_of_an_experiment_and_a_headline_that_exist() {
        for won in ALL {
            assert!(
                registry::ALL.iter().any(|one| one.name == won.experiment),
                "{won:?}"
            );
            let (page, text) = described(won.experiment).unwrap_or_else(|| panic!("{won:?}"));
            assert!(text.contains(won.key), "{won:?} is not in docs/{page}");
        }
    }

    #[test]
    fn the_papers_figures_are_those_of_the_outcomes() {
        let sentences = ALL.iter().map(|won| {
            let paper = filled(won.paper, &registry::paper(won.experiment));
            paper.unwrap_or_else(|| panic!("{won:?} names a figure that no outcome has"))
        });
        let sentences: Vec<_> = sentences.collect();
        assert!(sentences[0].starts_with("The paper: up to 3\u{d7} "));
        assert!(sentences[5].contains("150 to 580 Mbit/s"), "{sentences:?}");
        assert_eq!(filled("{none} here", &registry::paper("pied-piper")), None);
    }
}
