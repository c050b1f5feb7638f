//! The details of a connection, in lines.

use super::super::state::{Details, POINTS, Point, State};
use super::figures::{bits, bytes, ms, with_unit};
use super::wrap::wrap;
use crate::instruments::Unit;
use crate::namespaces::in_words;

/// Returns the lines about a connection: its limit, the history of its main instruments, and the values of
/// all instruments.
pub(super) fn lines(width: usize, details: &Details, state: &State) -> Vec<String> {
    let row = &details.row;
    let who = row
        .process
        .as_ref()
        .map_or(String::new(), |(name, pid)| format!(", {name}/{pid}"));
    let ended = if details.ended { ", has ended" } else { "" };
    let mut lines = vec![
        format!("{} -> {}{who}", row.local, row.peer),
        format!("{}, {}{ended}", details.state, in_words(&details.netns)),
        String::new(),
    ];
    if let Some(verdict) = &details.verdict {
        let doubt = verdict.confidence.doubt();
        lines.push(format!("It {}{doubt}.", verdict.factor.sentence()));
        let evidence = verdict.evidence().into_iter();
        lines.extend(evidence.map(|evidence| format!("  {}", evidence.text)));
        let remedy = verdict.remedy();
        lines.extend(remedy.map(|remedy| format!("What helps: {remedy}")));
        lines.extend(
            verdict
                .gain
                .map(|gain| format!("Gain: {}", gain.sentence())),
        );
        lines.push(String::new());
    }
    let mut lines: Vec<String> = lines.iter().flat_map(|line| wrap(line, width)).collect();
    lines.extend(series(width, row.cookie, state));
    lines.push(String::new());
    lines.extend(instruments(width, details));
    lines
}

/// Returns the history of each main instrument on a line.
fn series(width: usize, cookie: u64, state: &State) -> Vec<String> {
    type Series = (&'static str, fn(&Point) -> f64, fn(f64) -> String);
    let all: [Series; 5] = [
        ("out", |point| point.sent, bits),
        ("in", |point| point.received, bits),
        ("rtt ms", |point| point.rtt, ms),
        ("cwnd", |point| point.cwnd, |value| format!("{value:.0}")),
        ("rwnd", |point| point.rwnd, bytes),
    ];
    let line = |(name, of, format): &Series| {
        let values: Vec<f64> = state.history(cookie).map(of).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        let now = values.last().copied().unwrap_or_default();
        let head = format!("{name:<7}{:>8} ", format(now));
        let tail = format!(" max {}", format(most));
        let room = width.saturating_sub(head.len() + tail.len()).min(POINTS);
        let shown = &values[values.len().saturating_sub(room)..];
        let bars: String = shown.iter().map(|value| bar(*value, most)).collect();
        format!("{head}{bars:<room$}{tail}")
    };
    all.iter().map(line).collect()
}

/// Returns a bar character in eighths of a cell, relative to the largest value.
fn bar(value: f64, most: f64) -> char {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    if most <= 0.0 || value <= 0.0 {
        return '_';
    }
    let eighth = BARS
        .iter()
        .zip(1..)
        .find(|&(_, n)| value * 8.0 <= most * f64::from(n));
    eighth.map_or('█', |(bar, _)| *bar)
}

/// Returns all instruments, in as many columns as fit.
fn instruments(width: usize, details: &Details) -> Vec<String> {
    const WIDTH: usize = 38;
    let cell = |(name, value, unit): &(&str, f64, Unit)| {
        let text = format!("{name:<21} {:>12}", with_unit(*value, *unit));
        format!("{text:<WIDTH$}")
    };
    let cells: Vec<String> = details.instruments.iter().map(cell).collect();
    let lines = cells.chunks((width / WIDTH).max(1));
    lines
        .map(|line| line.concat().trim_end().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_high_as_its_value() {
        let bars: String = [0.0, 1.0, 4.0, 7.9, 8.0]
            .iter()
            .map(|v| bar(*v, 8.0))
            .collect();
        assert_eq!(bars, "_▁▄██");
        assert_eq!(bar(0.0, 0.0), '_');
    }
}
