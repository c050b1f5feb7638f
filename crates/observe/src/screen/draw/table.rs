//! Draws the table, one line for each connection.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use super::super::state::{Point, State};
use super::figures::{bits, bytes, ms};
use super::{bold, line_of};
use crate::verdict::{Confidence, Factor};
use crate::view::Row;

/// A column: title, narrow and wide width (0: hidden), alignment and content.
struct Column {
    title: &'static str,
    narrow: u16,
    wide: u16,
    right: bool,
    cell: fn(&Row, usize) -> String,
}

/// The columns of names and figures. The limit and the history follow them.
const COLUMNS: [Column; 10] = [
    column("PEER", (21, 28), false, |row, width| {
        ends(&row.peer.to_string(), width)
    }),
    column("LOCAL", (0, 28), false, |row, width| {
        ends(&row.local.to_string(), width)
    }),
    column("PROCESS", (11, 24), false, process),
    column("OUT", (6, 9), true, |row, _| {
        row.rates.map_or("-".into(), |rates| bits(rates.sent))
    }),
    column("IN", (6, 9), true, |row, _| {
        row.rates.map_or("-".into(), |rates| bits(rates.received))
    }),
    column("RTT ms", (6, 8), true, |row, _| {
        row.rtt.map_or("-".into(), |(rtt, _)| ms(rtt))
    }),
    column("MIN", (0, 8), true, |row, _| {
        row.rtt.and_then(|(_, least)| least).map_or("-".into(), ms)
    }),
    column("CWND", (5, 7), true, |row, _| row.cwnd.to_string()),
    column("RWND", (0, 8), true, |row, _| {
        row.rwnd.map_or("-".into(), |rwnd| bytes(rwnd.into()))
    }),
    column("RETR", (4, 8), true, |row, _| row.retrans.to_string()),
];

/// Widths of the limit column, for short and for long factor names, each with a question mark.
const LIMIT: (u16, u16) = (8, 21);
/// Widths of the history column, in scans.
const HISTORY: (u16, u16) = (5, 20);

/// The order in which columns leave a terminal that is too narrow for all. The limit and the peer stay:
/// the limit sums up what the figures say.
const DROPPED: [usize; 7] = [CWND, HISTORIED, RETR, RTT, IN, OUT, PROCESS];
const PEER: usize = 0;
const PROCESS: usize = 2;
const OUT: usize = 3;
const IN: usize = 4;
const RTT: usize = 5;
const CWND: usize = 7;
const RETR: usize = 9;

/// The order in which columns become wide: indices of [`COLUMNS`], or one of the two below.
const WIDENED: [usize; 12] = [LIMITED, 2, 6, HISTORIED, 0, 1, 8, 3, 4, 9, 7, 5];
const LIMITED: usize = COLUMNS.len();
const HISTORIED: usize = COLUMNS.len() + 1;

const fn column(
    title: &'static str,
    (narrow, wide): (u16, u16),
    right: bool,
    cell: fn(&Row, usize) -> String,
) -> Column {
    Column {
        title,
        narrow,
        wide,
        right,
        cell,
    }
}

/// Formats the name and pid of the process. Leaves the pid out unless it fits completely, because a
/// truncated pid is wrong.
fn process(row: &Row, width: usize) -> String {
    let Some((name, pid)) = &row.process else {
        return "-".into();
    };
    let number = format!("/{pid}");
    match width.saturating_sub(number.len()) {
        room if room < 12 => name.to_string(),
        room => format!("{}{number}", name.chars().take(room).collect::<String>()),
    }
}

/// Shortens an address in the middle, because its beginning and its port identify it best.
fn ends(address: &str, width: usize) -> String {
    let Some(more) = address.len().checked_sub(width).filter(|more| *more > 0) else {
        return address.to_owned();
    };
    // An address is ASCII, so bytes are characters.
    let last = (width / 2).max(1);
    let (first, rest) = address.split_at(address.len() - last - more - 1);
    format!("{first}…{}", &rest[more + 1..])
}

/// Widths of the columns, of the limit, and of the history.
struct Layout([u16; COLUMNS.len() + 2]);

// === impl Layout ===

impl Layout {
    fn of(width: u16) -> Self {
        let sizes = |index: usize| match index {
            LIMITED => LIMIT,
            HISTORIED => HISTORY,
            column => (COLUMNS[column].narrow, COLUMNS[column].wide),
        };
        // One blank between two columns.
        let taken = |size: u16| if size == 0 { 0 } else { size + 1 };
        let mut widths: [u16; COLUMNS.len() + 2] = std::array::from_fn(|index| sizes(index).0);
        let used = |widths: &[u16]| widths.iter().map(|width| taken(*width)).sum::<u16>();
        let mut drops = DROPPED.into_iter();
        while used(&widths) > width + 1
            && let Some(index) = drops.next()
        {
            widths[index] = 0;
        }
        // On a terminal that drops a column, none becomes wide.
        let is_whole = drops.len() == DROPPED.len();
        if let Some(over) = used(&widths).checked_sub(width + 1) {
            widths[PEER] -= over.min(widths[PEER]);
        }
        let mut room = match is_whole {
            true => (width + 1).saturating_sub(used(&widths)),
            false => 0,
        };
        for index in WIDENED {
            let (narrow, wide) = sizes(index);
            if let Some(left) = room.checked_sub(taken(wide) - taken(narrow)) {
                room = left;
                widths[index] = wide;
            }
        }
        Self(widths)
    }

    /// Whether long factor names fit.
    fn long_names(&self) -> bool {
        self.0[LIMITED] == LIMIT.1
    }
}

pub(super) fn table(buffer: &mut Buffer, area: Rect, state: &State) {
    let layout = Layout::of(area.width);
    let letters = |text: &str| {
        text.chars()
            .map(|c| Span::raw(c.to_string()))
            .collect::<Vec<_>>()
    };
    let wide = layout.0[HISTORIED] == HISTORY.1;
    let limit = if layout.long_names() {
        "LIMITED BY"
    } else {
        "LIMIT"
    };
    let head = Line {
        cells: &|column, _| column.title.to_owned(),
        limit: Span::raw(limit),
        history: letters(if wide { "HISTORY" } else { "HIST" }),
    };
    line(buffer, line_of(area, 0), &layout, &head, bold());
    let shown = state
        .rows
        .iter()
        .enumerate()
        .skip(state.first)
        .take(state.page);
    for ((index, row), y) in shown.zip(1..area.height) {
        let style = match index == state.selected {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        let points = state
            .history(row.cookie)
            .rev()
            .take(layout.0[HISTORIED].into())
            .rev();
        let text = Line {
            cells: &|column, width| (column.cell)(row, width),
            limit: limited(row, layout.long_names()),
            history: points.map(letter).collect(),
        };
        line(buffer, line_of(area, y), &layout, &text, style);
    }
}

/// The content of a line.
struct Line<'a> {
    cells: &'a dyn Fn(&Column, usize) -> String,
    limit: Span<'static>,
    history: Vec<Span<'static>>,
}

/// Writes a line of the table.
fn line(buffer: &mut Buffer, area: Rect, layout: &Layout, text: &Line<'_>, style: Style) {
    buffer.set_style(area, style);
    let end = area.x + area.width;
    let mut x = area.x;
    for (column, width) in COLUMNS.iter().zip(layout.0) {
        let room = width.min(end.saturating_sub(x));
        if room == 0 {
            continue;
        }
        let cell = (text.cells)(column, room.into());
        let taken = u16::try_from(Span::raw(&*cell).width())
            .unwrap_or(u16::MAX)
            .min(room);
        let indent = if column.right { room - taken } else { 0 };
        buffer.set_stringn(x + indent, area.y, &cell, taken.into(), style);
        x = (x + width + 1).min(end);
    }
    let room = layout.0[LIMITED].min(end.saturating_sub(x));
    buffer.set_stringn(
        x,
        area.y,
        &text.limit.content,
        room.into(),
        style.patch(text.limit.style),
    );
    x = (x + room + 1).min(end);
    let end = (x + layout.0[HISTORIED]).min(end);
    for (at, letter) in (x..end).zip(&text.history) {
        buffer.set_stringn(at, area.y, &letter.content, 1, style.patch(letter.style));
    }
}

/// Returns the name of the factor that limits a connection.
fn limited(row: &Row, long: bool) -> Span<'static> {
    let Some((factor, confidence)) = row.limit else {
        return Span::raw("-");
    };
    let doubt = if confidence == Confidence::Sure {
        ""
    } else {
        "?"
    };
    let name = if long { factor.name() } else { factor.short() };
    Span::styled(format!("{name}{doubt}"), color(factor))
}

fn letter(point: &Point) -> Span<'static> {
    match point.factor {
        Some(factor) => Span::styled(factor.letter().to_string(), color(factor)),
        None => Span::raw(" "),
    }
}

/// Returns the colour of a factor. Magenta, which can be read on black and on white, marks one that can
/// be repaired; bold, also for readers who take it for blue, one that does not work.
fn color(factor: Factor) -> Style {
    match factor {
        Factor::Idle | Factor::Unclear | Factor::Peer => Style::new().add_modifier(Modifier::DIM),
        Factor::Link | Factor::SenderApplication | Factor::Pacing | Factor::RateLimit => {
            Style::new().fg(Color::Blue)
        }
        Factor::SendBuffer
        | Factor::ReceiverApplication
        | Factor::ReceiveBuffer
        | Factor::SlowStart
        | Factor::Descheduled
        | Factor::CpuQuota
        | Factor::Queue => Style::new().fg(Color::Magenta),
        Factor::Loss | Factor::HostDrops | Factor::PathMtu | Factor::Timeouts => {
            Style::new().fg(Color::Magenta).add_modifier(Modifier::BOLD)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_address_keeps_its_ends() {
        let address = "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:1]:50000";
        assert_eq!(ends(address, 21), "[2001:db8:…e:1]:50000");
        assert_eq!(ends(address, 43), address);
        for width in 2..60 {
            assert!(ends(address, width).chars().count() <= width, "{width}");
        }
    }
}
