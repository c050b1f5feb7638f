//! Draws the details of a connection.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;
use ratatui::widgets::{Paragraph, Widget as _, Wrap};

use super::super::state::{Details, POINTS, Point, State};
use super::figures::{bits, bytes, ms, with_unit};
use super::{line_of, put};
use crate::namespaces::in_words;

/// Draws the limit of a connection, the history of its main instruments, and the values of all
/// instruments.
pub(super) fn open(buffer: &mut Buffer, area: Rect, details: &Details, state: &State) {
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
    let text = Paragraph::new(lines.join("\n")).wrap(Wrap { trim: false });
    let used = wrapped(&lines, area.width).min(area.height);
    text.render(area, buffer);
    let rest = Rect {
        y: area.y + used,
        height: area.height - used,
        ..area
    };
    let used = series(buffer, rest, row.cookie, state);
    instruments(
        buffer,
        Rect {
            y: rest.y + used,
            height: rest.height - used,
            ..rest
        },
        details,
    );
}

/// Returns the number of lines that a text takes at this width. Word wrapping may need one more
/// line; then the next part overwrites an empty line.
fn wrapped(lines: &[String], width: u16) -> u16 {
    let of = |line: &String| {
        Span::raw(line)
            .width()
            .div_ceil(usize::from(width).max(1))
            .max(1)
    };
    u16::try_from(lines.iter().map(of).sum::<usize>()).unwrap_or(u16::MAX)
}

/// Draws the history of each main instrument on a line. Returns the number of lines.
fn series(buffer: &mut Buffer, area: Rect, cookie: u64, state: &State) -> u16 {
    type Series = (&'static str, fn(&Point) -> f64, fn(f64) -> String);
    let all: [Series; 5] = [
        ("out", |point| point.sent, bits),
        ("in", |point| point.received, bits),
        ("rtt ms", |point| point.rtt, ms),
        ("cwnd", |point| point.cwnd, |value| format!("{value:.0}")),
        ("rwnd", |point| point.rwnd, bytes),
    ];
    for ((name, of, format), y) in all.iter().zip(0..area.height) {
        let values: Vec<f64> = state.history(cookie).map(of).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        let now = values.last().copied().unwrap_or_default();
        let head = format!("{name:<7}{:>8} ", format(now));
        let tail = format!(" max {}", format(most));
        let room = usize::from(area.width)
            .saturating_sub(head.len() + tail.len())
            .min(POINTS);
        let shown = &values[values.len().saturating_sub(room)..];
        let bars: String = shown.iter().map(|value| bar(*value, most)).collect();
        put(
            buffer,
            line_of(area, y),
            &format!("{head}{bars:<room$}{tail}"),
            Style::new(),
        );
    }
    area.height.min(6)
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

/// Draws all instruments, in as many columns as fit.
fn instruments(buffer: &mut Buffer, area: Rect, details: &Details) {
    const WIDTH: u16 = 38;
    let columns = (area.width / WIDTH).max(1);
    for ((name, value, unit), index) in details.instruments.iter().zip(0u16..) {
        let (x, y) = (index % columns * WIDTH, index / columns);
        if y >= area.height {
            return;
        }
        let cell = Rect {
            x: area.x + x,
            y: area.y + y,
            width: (WIDTH - 2).min(area.width.saturating_sub(x)),
            height: 1,
        };
        put(
            buffer,
            cell,
            &format!("{name:<21} {:>12}", with_unit(*value, *unit)),
            Style::new(),
        );
    }
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
