//! The plan in words.

use std::fmt::Write as _;
use std::time::Duration;

use bytesize::ByteSize;
use taut_relay::plan::{Candidate, Change, Endpoint, Kind, LegEnd, Planner, Ranking};

use crate::table::{self, figure, text};

/// The number of routes after the choice that are shown.
const RUNNERS_UP: usize = 9;

// Writing to a String cannot fail, so this file ignores the results of `write!`.

pub(super) fn plan(
    planner: &Planner<'_>,
    from: &Endpoint,
    to: &Endpoint,
    ranking: &Ranking,
    changes: &[Change],
) -> String {
    let Some(choice) = ranking.routes.first() else {
        return format!(
            "no route from {from} to {to}: the round trips of no complete route are known\n"
        );
    };
    let mut text = format!("from {from} to {to}: {}\n", name(planner, choice));
    let _ = writeln!(
        text,
        "  {} after {}, first byte after {}",
        size(planner),
        ms(choice.finish),
        ms(choice.first_byte)
    );
    for leg in &choice.legs {
        let governs = choice.slowest_leg() == Some(leg) && choice.legs.len() > 1;
        let _ = writeln!(
            text,
            "  {} - {}: round trip {}{}, {} in {}{}",
            end(planner, leg.from),
            end(planner, leg.to),
            ms(leg.path.rtt().unwrap_or_default()),
            loss(leg.path.loss()),
            size(planner),
            ms(leg.transfer),
            if governs {
                ": this leg governs the rate"
            } else {
                ""
            }
        );
    }
    text.push('\n');
    text.push_str(&routes(planner, ranking));
    conditions(&mut text, planner, ranking, changes);
    if !ranking.is_complete {
        text.push_str(
            "\nThe search was stopped before it had seen every route: there may be a better one.\n",
        );
    }
    text
}

fn routes(planner: &Planner<'_>, ranking: &Ranking) -> String {
    let priced = ranking.routes.iter().any(|route| route.price > 0.0);
    let mut columns = vec![
        text("ROUTE"),
        text("KIND"),
        figure("FIRST BYTE"),
        figure(size(planner)),
        figure("ROUND TRIP"),
        figure("GAIN BY RTT"),
        figure("BY SLOWEST LEG"),
    ];
    columns.extend(priced.then(|| figure("PRICE/GB")));
    let row = |route: &Candidate| {
        let gain = |gain: Option<f64>| gain.map_or("-".to_owned(), |gain| format!("{gain:.2}x"));
        let mut row = vec![
            name(planner, route),
            kind(route.kind).to_owned(),
            ms(route.first_byte),
            ms(route.finish),
            ms(route.total_rtt),
            gain(route.total_rtt_gain),
            gain(route.slowest_leg_gain),
        ];
        row.extend(priced.then(|| format!("{:.3}", route.price)));
        row
    };
    table::table(
        &columns,
        ranking.routes.iter().take(1 + RUNNERS_UP).map(row),
    )
}

fn conditions(text: &mut String, planner: &Planner<'_>, ranking: &Ranking, changes: &[Change]) {
    let choice = &ranking.routes[0];
    if changes.is_empty() {
        return;
    }
    text.push_str("\nWhat would change the choice:\n");
    let other = ranking.routes.get(1);
    for change in changes {
        let _ = match change {
            Change::Rises { leg, rtt, then } => {
                let leg = &choice.legs[*leg];
                writeln!(
                    text,
                    "  {} - {} above {} (now {}): {}",
                    end(planner, leg.from),
                    end(planner, leg.to),
                    ms(*rtt),
                    ms(leg.path.rtt().unwrap_or_default()),
                    name(planner, &ranking.routes[*then])
                )
            }
            Change::Falls { leg, rtt } => {
                let Some(other) = other else { continue };
                let leg = &other.legs[*leg];
                writeln!(
                    text,
                    "  {} - {} below {} (now {}): {}",
                    end(planner, leg.from),
                    end(planner, leg.to),
                    ms(*rtt),
                    ms(leg.path.rtt().unwrap_or_default()),
                    name(planner, other)
                )
            }
            Change::Lost { relay, then } => {
                let relay = planner.network().relay(*relay).name.as_str();
                match then {
                    Some(then) => writeln!(
                        text,
                        "  without {relay}: {}, first byte after {}, {} after {}",
                        name(planner, then),
                        ms(then.first_byte),
                        size(planner),
                        ms(then.finish)
                    ),
                    None => writeln!(text, "  without {relay} there is no route"),
                }
            }
        };
    }
}

/// Returns a route as `via` has it.
pub(super) fn name(planner: &Planner<'_>, route: &Candidate) -> String {
    match route.relays[..] {
        [] => "direct".to_owned(),
        ref relays => {
            let names = relays
                .iter()
                .map(|&id| planner.network().relay(id).name.as_str());
            names.collect::<Vec<_>>().join(" > ")
        }
    }
}

pub(super) fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Direct => "direct",
        Kind::Single => "single",
        Kind::Baseline => "baseline",
        Kind::Two => "two",
        Kind::Three => "three",
        Kind::Four => "four",
    }
}

fn end<'a>(planner: &'a Planner<'_>, end: LegEnd) -> &'a str {
    match end {
        LegEnd::Client => "client",
        LegEnd::Relay(id) => planner.network().relay(id).name.as_str(),
        LegEnd::Destination => "destination",
    }
}

pub(super) fn size(planner: &Planner<'_>) -> String {
    ByteSize(planner.options().size).display().si().to_string()
}

fn loss(share: f64) -> String {
    match share > 0.0 {
        true => format!(", loss {:.2} %", share * 100.0),
        false => String::new(),
    }
}

/// Returns a time with three digits or more: `9.53 ms`, `306.8 ms`, `2,134 ms` as `2134 ms`.
pub(super) fn ms(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    match ms {
        ..10.0 => format!("{ms:.2} ms"),
        ..1_000.0 => format!("{ms:.1} ms"),
        _ => format!("{ms:.0} ms"),
    }
}
