//! The state in cells.
//!
//! A colour never says what a word or a letter does not say too.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;
use ratatui::widgets::{Paragraph, Widget as _, Wrap};

use super::state::{Details, POINTS, Point, State};
use crate::instruments::Unit;
use crate::verdict::{Confidence, Factor};
use crate::view::Row;

/// A column: its title, its width where there is little room and where there is much, and what is in it.
struct Column {
    title: &'static str,
    narrow: u16,
    wide: u16,
    right: bool,
    cell: fn(&Row, usize) -> String,
}

/// Those of figures and names; what limits a connection, and the history, follow them.
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

/// Widths of what limits a connection: a short name and a question mark, or a long one.
const LIMIT: (u16, u16) = (8, 21);
/// Looks of a connection's history.
const HISTORY: (u16, u16) = (5, 20);

/// What becomes wide first, as there is room: a column's index, or one of these.
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

/// Its name, and its number where all of that has room: half a number is another's.
fn process(row: &Row, width: usize) -> String {
    let Some((name, pid)) = &row.process else {
        return "-".into();
    };
    let number = format!("/{pid}");
    match width.saturating_sub(number.len()) {
        room if room < 12 => name.clone(),
        room => format!("{}{number}", name.chars().take(room).collect::<String>()),
    }
}

/// An address whose middle is left out where it is too long: its network and its port are what it is known by.
fn ends(address: &str, width: usize) -> String {
    let Some(more) = address.len().checked_sub(width).filter(|more| *more > 0) else {
        return address.to_owned();
    };
    // An address is ASCII.
    let last = (width / 2).max(1);
    let (first, rest) = address.split_at(address.len() - last - more - 1);
    format!("{first}…{}", &rest[more + 1..])
}

/// Widths of the columns, of what limits a connection, and of its history.
struct Layout([u16; COLUMNS.len() + 2]);

// === impl Layout ===

impl Layout {
    fn of(width: u16) -> Self {
        let sizes = |index: usize| match index {
            LIMITED => LIMIT,
            HISTORIED => HISTORY,
            column => (COLUMNS[column].narrow, COLUMNS[column].wide),
        };
        // One between two.
        let taken = |size: u16| if size == 0 { 0 } else { size + 1 };
        let mut widths: [u16; COLUMNS.len() + 2] = std::array::from_fn(|index| sizes(index).0);
        let used: u16 = widths.iter().map(|width| taken(*width)).sum();
        let mut room = (width + 1).saturating_sub(used);
        for index in WIDENED {
            let (narrow, wide) = sizes(index);
            if let Some(left) = room.checked_sub(taken(wide) - taken(narrow)) {
                room = left;
                widths[index] = wide;
            }
        }
        Self(widths)
    }

    /// Whether a name can be written out.
    fn long_names(&self) -> bool {
        self.0[LIMITED] == LIMIT.1
    }
}

const HELP: &str = "\
up, down, j, k, page up, page down, home, end    select
enter                                            open the connection: series, evidence, instruments
esc, q                                           back; q at the table quits
s                                                sort by the next: rate, rtt, retrans, peer, process
/                                                filter: dst 10.0.0.0/8 and dport 443, a pid, a process
space                                            hold still, and go on
?, h                                             this

OUT and IN are payload in bits a second, CWND segments. HISTORY has a letter a look, the last at the right:
  a sender-application   s send-buffer      r receiver-application   w receive-buffer
  g slow-start           l loss             q queue                  p pacing
  m path-mtu             t timeouts         = link                   > peer
  x rate-limit           d descheduled      . idle                   ? unclear
A question mark after a factor: it is likely, not sure.";

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let area = frame.area();
    // A terminal can be too small for anything.
    if area.width < 20 || area.height < 4 {
        frame.render_widget("too small", area);
        return;
    }
    let [head, body, foot] = rows(area);
    state.fit(usize::from(body.height.saturating_sub(1)));
    let buffer = frame.buffer_mut();
    put(buffer, head, &heading(state), bold());
    if state.help {
        Paragraph::new(HELP).render(body, buffer);
    } else if let Some(details) = &state.open {
        open(buffer, body, details, state);
    } else {
        table(buffer, body, state);
    }
    put(buffer, foot, &footing(state), Style::new());
}

/// Head, body and foot.
fn rows(area: Rect) -> [Rect; 3] {
    let line = |y| Rect {
        y,
        height: 1,
        ..area
    };
    let body = Rect {
        y: area.y + 1,
        height: area.height - 2,
        ..area
    };
    [line(area.y), body, line(area.y + area.height - 1)]
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// Writes as much as there is room for.
fn put(buffer: &mut Buffer, area: Rect, text: &str, style: Style) {
    if area.is_empty() {
        return;
    }
    buffer.set_stringn(area.x, area.y, text, area.width.into(), style);
}

fn heading(state: &State) -> String {
    let mut text = format!(
        "taut top: {} connections, by {}",
        state.rows.len(),
        state.sort.name()
    );
    if !state.filter_text.is_empty() {
        let filter = crate::plain::text(state.filter_text.as_bytes());
        text.push_str(&format!(", of {filter}"));
    }
    if state.paused() {
        text.push_str(" (held still)");
    }
    text
}

fn footing(state: &State) -> String {
    let typing = state
        .typing
        .as_ref()
        .map(|text| crate::plain::text(text.as_bytes()));
    match (typing, &state.said) {
        (Some(text), None) => format!("filter: {text}_"),
        (Some(text), Some(said)) => format!("filter: {text}_  {said}"),
        (None, Some(said)) => said.clone(),
        (None, None) => "q quit  enter open  / filter  s sort  space hold  ? help".into(),
    }
}

fn table(buffer: &mut Buffer, area: Rect, state: &State) {
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

fn line_of(area: Rect, line: u16) -> Rect {
    Rect {
        y: area.y + line,
        height: 1,
        ..area
    }
}

/// What is in a line: its columns', what limits the connection, and its history.
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
    for (at, letter) in (x..end).zip(&text.history) {
        buffer.set_stringn(at, area.y, &letter.content, 1, style.patch(letter.style));
    }
}

/// What limits it, in a word.
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

/// Blue and yellow are told apart by everyone. Yellow is what somebody could repair.
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
        | Factor::Queue => Style::new().fg(Color::Yellow),
        Factor::Loss | Factor::PathMtu | Factor::Timeouts => {
            Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD)
        }
    }
}

/// One connection: what limits it, how the chief instruments went, and all the others.
fn open(buffer: &mut Buffer, area: Rect, details: &Details, state: &State) {
    let row = &details.row;
    let who = row
        .process
        .as_ref()
        .map_or(String::new(), |(name, pid)| format!(", {name}/{pid}"));
    let ended = if details.ended { ", has ended" } else { "" };
    let mut lines = vec![
        format!("{} -> {}{who}", row.local, row.peer),
        format!("{}, namespace {}{ended}", details.state, details.netns),
        String::new(),
    ];
    if let Some(verdict) = &details.verdict {
        let doubt = verdict.confidence.doubt();
        lines.push(format!("It {}{doubt}.", verdict.factor.sentence()));
        lines.extend(
            verdict
                .evidence
                .iter()
                .map(|evidence| format!("  {}", evidence.text)),
        );
        lines.extend(
            verdict
                .remedy
                .iter()
                .map(|remedy| format!("What helps: {remedy}")),
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

/// Lines that these take at this width. A word that is moved to the next line may make it one more; then what
/// comes after is written over an empty line.
fn wrapped(lines: &[String], width: u16) -> u16 {
    let of = |line: &String| {
        Span::raw(line)
            .width()
            .div_ceil(usize::from(width).max(1))
            .max(1)
    };
    u16::try_from(lines.iter().map(of).sum::<usize>()).unwrap_or(u16::MAX)
}

/// The chief instruments of the last looks, a line each. Returns how many lines that are.
fn series(buffer: &mut Buffer, area: Rect, cookie: u64, state: &State) -> u16 {
    type Series = (&'static str, fn(&Point) -> f64, fn(f64) -> String);
    let all: [Series; 5] = [
        ("out", |point| point.sent, bits),
        ("in", |point| point.received, bits),
        ("rtt ms", |point| point.rtt, ms),
        ("cwnd", |point| point.cwnd, |value| format!("{value:.0}")),
        ("rwnd", |point| point.rwnd, bytes),
    ];
    for ((name, of, tell), y) in all.iter().zip(0..area.height) {
        let values: Vec<f64> = state.history(cookie).map(of).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        let now = values.last().copied().unwrap_or_default();
        let head = format!("{name:<7}{:>8} ", tell(now));
        let tail = format!(" most {}", tell(most));
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

/// A value beside the most, as an eighth of a cell's height each.
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

/// All instruments, in as many columns as there is room for.
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
            &format!("{name:<21} {:>12}", told(*value, *unit)),
            Style::new(),
        );
    }
}

fn told(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => bytes(value),
        Unit::BytesPerSecond => format!("{}bit/s", bits(value)),
        Unit::Seconds => format!("{value:.4} s"),
        Unit::Segments | Unit::Count | Unit::Shift | Unit::Flag => format!("{value:.0}"),
        Unit::Ratio => format!("{value:.3}"),
    }
}

/// A rate in bytes a second, as bits.
fn bits(rate: f64) -> String {
    scaled(rate * 8.0, 1000.0, ["", "k", "M", "G", "T"])
}

fn bytes(bytes: f64) -> String {
    scaled(bytes, 1024.0, ["", "Ki", "Mi", "Gi", "Ti"])
}

/// Three digits and the unit's prefix.
fn scaled(mut value: f64, step: f64, prefixes: [&str; 5]) -> String {
    let mut prefixes = prefixes.into_iter().peekable();
    let mut prefix = "";
    while let Some(next) = prefixes.next() {
        prefix = next;
        if value < 999.5 || prefixes.peek().is_none() {
            break;
        }
        value /= step;
    }
    match value {
        value if prefix.is_empty() || value >= 99.95 => format!("{value:.0}{prefix}"),
        value if value >= 9.995 => format!("{value:.1}{prefix}"),
        value => format!("{value:.2}{prefix}"),
    }
}

fn ms(seconds: f64) -> String {
    let ms = seconds * 1e3;
    match ms {
        ms if ms >= 99.95 => format!("{ms:.0}"),
        ms if ms >= 9.995 => format!("{ms:.1}"),
        ms => format!("{ms:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::state::Key;
    use super::super::state::tests::state;
    use super::*;

    fn drawn(state: &mut State, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        let buffer = terminal.backend().buffer();
        let cells = |y| (0..width).map(move |x| buffer[(x, y)].symbol());
        (0..height)
            .map(|y| cells(y).collect::<String>().trim_end().to_owned())
            .collect()
    }

    #[test]
    fn eighty_columns_have_all_that_matters() {
        let lines = drawn(&mut state(100), 80, 24);
        assert!(
            lines[0].starts_with("taut top: 100 connections, by rate"),
            "{}",
            lines[0]
        );
        let titles: Vec<_> = lines[1].split_whitespace().collect();
        assert_eq!(
            titles,
            [
                "PEER", "PROCESS", "OUT", "IN", "RTT", "ms", "CWND", "RETR", "LIMIT", "HIST"
            ]
        );
        let cells: Vec<_> = lines[2].split_whitespace().collect();
        assert_eq!(
            cells,
            [
                "10.0.0.9:1000",
                "a-rather-lo",
                "800M",
                "0",
                "120",
                "10",
                "0",
                "app-rcv"
            ]
        );
        assert!(lines[23].starts_with("q quit"));
        assert!(lines[22].starts_with("10.0.0.9:1020"));
    }

    #[test]
    fn a_wide_terminal_has_more_of_it() {
        let lines = drawn(&mut state(3), 200, 50);
        for word in ["LOCAL", "MIN", "RWND", "LIMITED BY", "HISTORY"] {
            assert!(lines[1].contains(word), "{word}: {}", lines[1]);
        }
        assert!(lines[2].contains("receiver-application"), "{}", lines[2]);
        assert!(
            lines[2].contains(" a-rather-long-pr/4194304 "),
            "{}",
            lines[2]
        );
    }

    #[test]
    fn at_every_width_there_is_room_for_what_limits_and_no_number_is_cut() {
        for width in 80..260 {
            let lines = drawn(&mut state(3), width, 24);
            assert!(
                lines[1].contains("LIMIT") && lines[1].contains("HIST"),
                "{width}: {}",
                lines[1]
            );
            assert!(
                lines[2].contains("app-rcv") || lines[2].contains("receiver-application"),
                "{width}"
            );
            assert!(
                lines[2].contains("/4194304 ") || !lines[2].contains('/'),
                "{width}: {}",
                lines[2]
            );
        }
    }

    #[test]
    fn a_long_address_keeps_its_ends() {
        let address = "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:1]:50000";
        assert_eq!(ends(address, 21), "[2001:db8:…e:1]:50000");
        assert_eq!(ends(address, 43), address);
        for width in 2..60 {
            assert!(ends(address, width).chars().count() <= width, "{width}");
        }
    }

    #[test]
    fn no_size_does_harm() {
        let mut shown = state(50);
        for open in [false, true] {
            for width in [1, 5, 19, 20, 37, 79, 80, 129, 130, 300] {
                for height in [1, 2, 3, 4, 5, 9, 24, 70] {
                    drawn(&mut shown, width, height);
                }
            }
            if !open {
                shown.key(Key::Enter);
            }
        }
        let mut help = state(1);
        help.key(Key::Char('?'));
        assert!(
            drawn(&mut help, 80, 24)
                .iter()
                .any(|line| line.contains("page down"))
        );
    }

    #[test]
    fn each_factor_has_a_letter_and_a_short_name_of_its_own() {
        let letters: std::collections::HashSet<_> =
            Factor::ALL.iter().map(|f| f.letter()).collect();
        assert_eq!(letters.len(), Factor::ALL.len());
        for factor in Factor::ALL {
            assert!(factor.short().len() <= 8, "{factor:?}");
            let named = format!("{} {}", factor.letter(), factor.name());
            assert!(HELP.contains(&named), "{named}");
        }
    }

    #[test]
    fn figures_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (124.9, "999"),
            (125.0, "1.00k"),
            (1_249_000.0, "9.99M"),
            (12_500_000.0, "100M"),
            (125e6, "1.00G"),
            (125e18, "1000000000T"),
        ] {
            assert_eq!(bits(value), text);
        }
        assert_eq!(
            (ms(0.00012), ms(0.0123), ms(1.5)),
            ("0.12".into(), "12.3".into(), "1500".into())
        );
        assert_eq!(bytes(65535.0), "64.0Ki");
    }

    #[test]
    fn bars_stand_as_high_as_their_values() {
        let bars: String = [0.0, 1.0, 4.0, 7.9, 8.0]
            .iter()
            .map(|v| bar(*v, 8.0))
            .collect();
        assert_eq!(bars, "_▁▄██");
        assert_eq!(bar(0.0, 0.0), '_');
    }
}
