//! Computes the figures, beside the paper's and the ideal.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Contests;
use super::case::{Case, Kind, LINK, Path};
use super::contest::{Contest, Side};
use crate::experiment::outcome::{Calibration, Check, Environment, Outcome, Series};
use crate::experiment::{Request, retry, stats};

/// The number of flows of each side in the headline.
const FLOWS: [usize; 2] = [4, 2];

/// The width of a bin in the rates over time, as in the paper's figure 13.
const BIN: Duration = Duration::from_secs(1);
/// The maximum number of bins. Later bytes are left out.
const MOST_BINS: u32 = 60;

/// A figure's name, its unit, and its value of a contest.
type Figure = (&'static str, &'static str, fn(&Contest) -> Option<f64>);

const FIGURES: [Figure; 3] = [
    ("jain", "1", Contest::jain),
    ("cubic_flows", "Mbit/s", Contest::others_rate),
    ("joined_flows", "Mbit/s", Contest::joined_rate),
];

pub(super) fn outcome(
    contests: &Contests,
    repeated: u64,
    environment: Environment,
    request: &Request,
) -> Outcome {
    Outcome {
        environment,
        calibration: calibration(contests),
        headline: headline(contests),
        series: series(contests),
        paper: paper(),
        ideal: Map::from_iter([
            ("jain_turbo_beside_cubic".to_owned(), json!(1)),
            ("cubic_share_left".to_owned(), json!(1)),
        ]),
        notes: notes(contests, repeated),
        ..Outcome::new(super::EXPERIMENT.name, request)
    }
}

fn samples(contests: &Contests, case: Case, figure: fn(&Contest) -> Option<f64>) -> Vec<f64> {
    let of_case = contests.get(&case);
    of_case.into_iter().flatten().filter_map(figure).collect()
}

fn median(contests: &Contests, case: Case, figure: fn(&Contest) -> Option<f64>) -> Option<f64> {
    stats::median(&samples(contests, case, figure))
}

/// Returns the rate of the Cubic flows beside the flows of a case, over their rate beside as many
/// further Cubic flows.
fn share_left(contests: &Contests, case: Case) -> Option<f64> {
    let rate = |case| median(contests, case, Contest::others_rate);
    Some(rate(case)? / rate(case.with(Kind::Cubic))?)
}

/// Returns the case of the headline: four flows on the long path, else two on it, else any case of
/// this kind.
fn headline_case(contests: &Contests, kind: Kind) -> Option<Case> {
    let of_kind = || contests.keys().filter(|case| case.kind == kind).copied();
    let long = |flows| move |case: &Case| case.path == Path::Long && case.flows == flows;
    let found = FLOWS
        .into_iter()
        .find_map(|flows| of_kind().find(long(flows)));
    found.or_else(|| of_kind().next())
}

/// Checks that Cubic flows fill the link, and that those that join get a share of it, so that what
/// differs is the mesh's.
fn calibration(contests: &Contests) -> Calibration {
    let mut share = f64::NAN;
    let mut filled = f64::NAN;
    if let Some(case) = headline_case(contests, Kind::Cubic) {
        let rate = |figure| median(contests, case, figure);
        if let (Some(others), Some(joined)) =
            (rate(Contest::others_rate), rate(Contest::joined_rate))
        {
            share = joined / (others + joined);
            filled = (others + joined) * 1e6 / LINK.0 as f64;
        }
    }
    let all = contests.values().flatten();
    let late = all.clone().filter(|contest| contest.disturbed).count();
    Calibration::of([
        (
            "share_of_cubic_that_joins",
            Check {
                measured: share,
                least: 0.02,
                most: Some(0.6),
            },
        ),
        ("link_filled_all_cubic", Check::at_least(filled, 0.8)),
    ])
    .and_machine([(
        "share_of_contests_with_a_late_link",
        Check::at_most(late as f64 / all.count() as f64, 0.5),
    )])
}

fn headline(contests: &Contests) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    let mut add = |key: String, figure: Option<f64>| {
        if let Some(figure) = figure {
            all.insert(key, figure);
        }
    };
    let Some(turbo) = headline_case(contests, Kind::Turbo) else {
        return all;
    };
    for (kind, name) in [
        (Kind::Turbo, "turbo"),
        (Kind::TurboTooFast, "turbo_default_rate"),
        (Kind::Bbr, "bbr"),
        (Kind::Cubic, "cubic"),
    ] {
        let case = turbo.with(kind);
        let jain = median(contests, case, Contest::jain);
        add(format!("jain_{name}_beside_cubic"), jain);
        let share = share_left(contests, case);
        match kind {
            Kind::Cubic => {}
            Kind::Turbo => add("cubic_share_left".to_owned(), share),
            _ => add(format!("cubic_share_left_{name}"), share),
        }
    }
    all
}

fn series(contests: &Contests) -> Vec<Series> {
    let mut all = Vec::new();
    for (metric, unit, figure) in FIGURES {
        for case in contests.keys() {
            all.extend(Series::of(
                &case.name(),
                metric,
                unit,
                samples(contests, *case, figure),
            ));
        }
    }
    for case in contests.keys() {
        let shares = share_left(contests, *case).into_iter().collect();
        all.extend(Series::of(&case.name(), "cubic_share_left", "1", shares));
    }
    for (case, contests) in contests {
        all.extend(over_time(*case, contests));
    }
    all
}

/// Returns the rates of both sides of a case, second by second.
fn over_time(case: Case, contests: &[Contest]) -> Vec<Series> {
    let end = contests.iter().map(Contest::end).max().unwrap_or_default();
    // One more bin, without bytes, shows the end.
    let bins = (end.as_secs() as u32 + 2).min(MOST_BINS);
    let mut all = Vec::new();
    for (flows, side) in [("Cubic", Side::Others), ("joined", Side::Joined)] {
        let rates = contests.iter();
        let rates: Vec<Vec<f64>> = rates
            .map(|contest| contest.rates_over_time(side, BIN, bins))
            .collect();
        for bin in 0..bins as usize {
            let name = format!("{flows}/{bin} s/{} {}", case.kind.label(), case.group());
            let samples = rates.iter().map(|rates| rates[bin]).collect();
            all.extend(Series::of(&name, "throughput", "Mbit/s", samples));
        }
    }
    all
}

fn paper() -> Map<String, Value> {
    Map::from_iter([(
        "jain_turbo_beside_cubic".to_owned(),
        json!(
            "no figure; \u{201c}TCP Cubic tends to have abrupt packet bursts during its slow-start phase\u{201d}, \
             at 260 MBps against turbo start's 110 (figure 13)"
        ),
    )])
}

fn notes(contests: &Contests, repeated: u64) -> Vec<String> {
    let mut notes = vec![
        "n Cubic flows of others have the link between the relays' hosts for 3 s; then n flows of the mesh \
         join (turbo: `rate` is the link's; turbo-default-rate: ten times the link's), or n more Cubic flows \
         (cubic), which is the reference. Rates are those from a second after the last flow's first byte to \
         the first flow's last byte."
            .to_owned(),
        "jain is Jain's index of all 2n rates. cubic_share_left is the rate of the Cubic flows beside the mesh, \
         divided by their rate beside as many Cubic flows: 1 is as if the mesh used Cubic."
            .to_owned(),
        "Each contest has a new world: no relay knows the link from an earlier one.".to_owned(),
    ];
    let all = contests.values().flatten();
    let unmeasured = all.clone().filter(|contest| contest.jain().is_none());
    let unmeasured = unmeasured.count();
    if unmeasured > 0 {
        notes.push(format!(
            "In {unmeasured} of {} contests the flows of the mesh had ended before the measurement could begin; \
             these are left out.",
            all.count()
        ));
    }
    notes.extend(retry::note("contests", repeated));
    notes
}
