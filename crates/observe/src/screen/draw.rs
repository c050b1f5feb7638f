//! Draws the state of the screen.
//!
//! Colour never carries information alone: a word or a letter always repeats it.

mod connection;
mod figures;
mod help;
mod table;
mod wrap;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use taut_sys::plural::counted;

use self::figures::bits;
use self::wrap::wrap;
use super::state::State;
use crate::verdict::Factor;

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let area = frame.area();
    // Below this size nothing fits.
    if area.width < 20 || area.height < 4 {
        frame.render_widget("too small", area);
        return;
    }
    let width = usize::from(area.width);
    let header = header(state, width);
    let footer = footer(state, width);
    // On a small terminal the table has priority.
    let room = usize::from(area.height).saturating_sub(HEADING_ONLY);
    let header = &header[..header.len().min(room + 1)];
    let footer = &footer[footer.len().saturating_sub(room + 1)..];
    let [head, body, foot] = rows(area, header.len(), footer.len());
    let page = match (&state.open, state.help) {
        (_, true) => Some(help::help(width)),
        (Some(details), false) => Some(connection::lines(width, details, state)),
        (None, false) => None,
    };
    let buffer = frame.buffer_mut();
    write(buffer, head, header, bold());
    match page {
        Some(lines) => {
            state.fit_page(lines.len(), body.height.into());
            write(buffer, body, &lines[state.scroll..], Style::new());
        }
        None => {
            state.fit(usize::from(body.height.saturating_sub(1)));
            table::table(buffer, body, state);
        }
    }
    write(buffer, foot, footer, Style::new());
}

/// The maximum height at which only the heading is above the table, and one line below.
const HEADING_ONLY: usize = 8;

/// Splits the area into the header and the footer, of this many lines, and the body between them.
fn rows(area: Rect, header: usize, footer: usize) -> [Rect; 3] {
    let lines = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    let foot = lines(footer).min(area.height - 2);
    let head = lines(header).min(area.height - foot - 1);
    let of = |y, height| Rect { y, height, ..area };
    [
        of(area.y, head),
        of(area.y + head, area.height - head - foot),
        of(area.y + area.height - foot, foot),
    ]
}

/// The maximum number of lines of totals. The factors with the most trouble come first.
const TOTALS: usize = 2;

/// Returns the lines above the table: the heading, the totals, the notice, and the ended connections.
fn header(state: &State, width: usize) -> Vec<String> {
    let notice = state.notice.iter().flat_map(|text| wrap(text, width));
    let totals = wrap(&totals(state, width), width);
    std::iter::once(heading(state))
        .chain(totals.into_iter().take(TOTALS))
        .chain(notice)
        .chain(state.ended_line.clone())
        .collect()
}

/// Returns the sums over the connections in the table, with the short names of factors if the long ones
/// do not fit.
fn totals(state: &State, width: usize) -> String {
    let totals = &state.totals;
    let text = |name: fn(Factor) -> &'static str| {
        let factors = totals.factors.iter();
        let factors = factors.map(|(factor, count)| format!("{} {count}", name(*factor)));
        let factors: Vec<_> = factors.collect();
        format!(
            "out {}bit/s, in {}bit/s, retrans {}; {}",
            bits(totals.sent),
            bits(totals.received),
            totals.retransmitted,
            factors.join(", ")
        )
    };
    let long = text(Factor::name);
    match long.len() <= width {
        true => long,
        false => text(Factor::short),
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// Writes as many lines as fit, and as much of each; the first one in a style.
fn write(buffer: &mut Buffer, area: Rect, lines: &[String], first: Style) {
    for (text, y) in lines.iter().zip(0..area.height) {
        let style = if y == 0 { first } else { Style::new() };
        let line = line_of(area, y);
        buffer.set_stringn(line.x, line.y, text, line.width.into(), style);
    }
}

fn heading(state: &State) -> String {
    let (shown, all) = (state.rows.len(), state.totals.connections);
    let connections = match state.filter_text.is_empty() {
        true => counted(shown, "connection"),
        false => format!("{shown} of {}", counted(all, "connection")),
    };
    let mut text = format!("taut top: {connections}, by {}", state.sort.name());
    if !state.filter_text.is_empty() {
        let filter = crate::sanitize::text(state.filter_text.as_bytes());
        text.push_str(&format!(", filter {filter}"));
    }
    if state.paused() {
        text.push_str(" (paused)");
    }
    text
}

/// Returns the lines below the table: the message, and what is typed, or the keys.
fn footer(state: &State, width: usize) -> Vec<String> {
    let message = state.message.iter().flat_map(|text| wrap(text, width));
    let mut lines: Vec<String> = message.collect();
    match &state.filter_input {
        Some(text) => lines.push(input(&crate::sanitize::text(text.as_bytes()), width)),
        None if lines.is_empty() => lines.push(keys(state).to_owned()),
        None => {}
    }
    lines
}

/// Returns the line in which a filter is typed: of a long one the end, where the next letter comes.
fn input(text: &str, width: usize) -> String {
    let room = width.saturating_sub("filter: _".len());
    let hidden = text.chars().count().saturating_sub(room);
    let shown: String = text.chars().skip(hidden).collect();
    format!("filter: {shown}_")
}

fn keys(state: &State) -> &'static str {
    match (&state.open, state.help) {
        (_, true) => "up, down scroll  other keys close the help",
        (Some(_), false) => "esc back  up, down scroll  space pause  ? help",
        (None, false) => "q quit  enter open  / filter  s sort  space pause  ? help",
    }
}

fn line_of(area: Rect, line: u16) -> Rect {
    Rect {
        y: area.y + line,
        height: 1,
        ..area
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
    fn eighty_columns_have_the_main_figures() {
        let lines = drawn(&mut state(100), 80, 24);
        assert!(
            lines[0].starts_with("taut top: 100 connections, by rate"),
            "{}",
            lines[0]
        );
        assert_eq!(
            lines[1],
            "out 40.4Gbit/s, in 0bit/s, retrans 100; receiver-application 100"
        );
        let titles: Vec<_> = lines[2].split_whitespace().collect();
        assert_eq!(
            titles,
            [
                "PEER", "PROCESS", "OUT", "IN", "RTT", "ms", "CWND", "RETR", "LIMIT", "HIST"
            ]
        );
        let cells: Vec<_> = lines[3].split_whitespace().collect();
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
        assert!(lines[22].starts_with("10.0.0.9:1019"));
    }

    #[test]
    fn what_is_missing_and_what_has_ended_stand_below_the_heading_and_the_keys_stay() {
        let mut shown = state(100);
        shown.show_notice("1 source is missing".into());
        shown.ended_line = Some("212 ended".into());
        let lines = drawn(&mut shown, 80, 24);
        assert!(lines[0].starts_with("taut top: 100 connections"));
        assert!(lines[1].starts_with("out "), "{}", lines[1]);
        assert_eq!(lines[2..4], ["1 source is missing", "212 ended"]);
        assert!(lines[4].starts_with("PEER") && lines[23].starts_with("q quit"));
        shown.key(Key::Down);
        assert_eq!(drawn(&mut shown, 80, 24)[2], "212 ended");
        assert!(drawn(&mut shown, 80, 7)[1].starts_with("PEER"));
    }

    #[test]
    fn a_wide_terminal_has_more_columns() {
        let lines = drawn(&mut state(3), 200, 50);
        for word in ["LOCAL", "MIN", "RWND", "LIMITED BY", "HISTORY"] {
            assert!(lines[2].contains(word), "{word}: {}", lines[2]);
        }
        assert!(lines[3].contains("receiver-application"), "{}", lines[3]);
        assert!(
            lines[3].contains(" a-rather-long-pr/4194304 "),
            "{}",
            lines[3]
        );
    }

    #[test]
    fn at_every_width_the_limit_fits_and_no_number_is_cut() {
        for width in 80..260 {
            let lines = drawn(&mut state(3), width, 24);
            assert!(
                lines[2].contains("LIMIT") && lines[2].contains("HIST"),
                "{width}: {}",
                lines[2]
            );
            assert!(
                lines[3].contains("app-rcv") || lines[3].contains("receiver-application"),
                "{width}"
            );
            assert!(
                lines[3].contains("/4194304 ") || !lines[3].contains('/'),
                "{width}: {}",
                lines[3]
            );
        }
    }

    #[test]
    fn a_narrow_terminal_keeps_the_limit_and_drops_the_window_first() {
        for (width, titles) in [
            (74, "PEER PROCESS OUT IN RTT ms RETR LIMIT HIST"),
            (68, "PEER PROCESS OUT IN RTT ms RETR LIMIT"),
            (60, "PEER PROCESS OUT IN LIMIT"),
            (42, "PEER PROCESS LIMIT"),
            (40, "PEER LIMIT"),
        ] {
            let lines = drawn(&mut state(3), width, 24);
            let title = lines.iter().find(|line| line.starts_with("PEER")).unwrap();
            let shown: Vec<_> = title.split_whitespace().collect();
            assert_eq!(shown.join(" "), titles, "{width}");
        }
        for width in 20..80 {
            let lines = drawn(&mut state(3), width, 24);
            let at = lines
                .iter()
                .position(|line| line.contains("LIMIT"))
                .unwrap();
            assert!(
                lines[at].ends_with("LIMIT") || lines[at].ends_with("HIST"),
                "{width}"
            );
            assert!(
                lines[at + 1].contains("app-rcv"),
                "{width}: {}",
                lines[at + 1]
            );
        }
    }

    #[test]
    fn totals_have_short_names_where_long_ones_do_not_fit() {
        let line = |width| drawn(&mut state(100), width, 24)[1].clone();
        assert!(
            line(200).ends_with("; receiver-application 100"),
            "{}",
            line(200)
        );
        assert!(line(60).ends_with("; app-rcv 100"), "{}", line(60));
        let mut shown = state(100);
        shown.totals.factors = Factor::ALL.iter().map(|&factor| (factor, 5)).collect();
        let lines = drawn(&mut shown, 60, 24);
        assert!(lines[2].ends_with("loss 5, queue 5,"), "{lines:#?}");
        assert!(lines[3].starts_with("PEER"), "{lines:#?}");
    }

    #[test]
    fn a_filter_says_how_many_of_all_are_shown() {
        let mut shown = state(3);
        shown.filter_text = "dport 443".into();
        shown.totals.connections = 100;
        let heading = &drawn(&mut shown, 80, 24)[0];
        assert_eq!(
            heading,
            "taut top: 3 of 100 connections, by rate, filter dport 443"
        );
    }

    #[test]
    fn no_word_of_an_error_about_a_filter_or_of_a_notice_is_cut() {
        let mut shown = state(100);
        for c in "/dport https and sport q".chars() {
            shown.key(Key::Char(c));
        }
        shown.key(Key::Enter);
        let error = shown.message.clone().unwrap();
        shown.show_notice(error.clone());
        let lines = drawn(&mut shown, 40, 24);
        let text = lines.join(" ");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words.matches(&error).count(), 2, "{error}: {lines:#?}");
        assert_eq!(lines[23], "filter: dport https and sport q_");
        for c in " or host example.com".chars() {
            shown.key(Key::Char(c));
        }
        assert!(drawn(&mut shown, 40, 24)[23].ends_with("or host example.com_"));
    }

    #[test]
    fn the_last_line_of_an_open_connection_and_of_the_help_can_be_reached() {
        for key in [Key::Enter, Key::Char('?')] {
            let mut shown = state(1);
            shown.key(key);
            let whole = drawn(&mut shown, 60, 70);
            let last = whole[2..69].iter().rfind(|line| !line.is_empty()).unwrap();
            let first = drawn(&mut shown, 60, 8);
            assert!(!first.contains(last), "{first:#?}");
            shown.key(Key::End);
            assert!(drawn(&mut shown, 60, 8).contains(last), "{last}");
        }
    }

    #[test]
    fn every_size_draws_without_panic() {
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
}
