//! Draws the state of the screen.
//!
//! Colour never carries information alone: a word or a letter always repeats it.

mod connection;
mod figures;
mod table;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Paragraph, Widget as _};

use super::state::State;

/// At most 80 columns and 22 lines, so that all of it fits on the smallest terminal.
const HELP: &str = "\
up, down, j, k, page up, page down, home, end   select
enter           open the connection: history, evidence, instruments
esc, q          back; in the table q quits
s               sort by the next key: rate, rtt, retrans, trouble, peer, process
/               filter: 10.0.0.9:443, dst 10.0.0.0/8 and dport https, a process
                (`taut top --help` has the syntax)
space           pause and resume
?, h            this help

OUT and IN are payload in bits a second, CWND is in segments. HISTORY (HIST)
has a letter a scan, the latest at the right:
  a sender-application   s send-buffer   r receiver-application
  w receive-buffer       g slow-start    l loss
  q queue                p pacing        m path-mtu
  t timeouts             = link          > peer
  x rate-limit           d descheduled   . idle
  ? unclear              c cpu-quota, h host-drops (`taut why` alone)
A question mark after a factor: it is not sure.";

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let area = frame.area();
    // Below this size nothing fits.
    if area.width < 20 || area.height < 4 {
        frame.render_widget("too small", area);
        return;
    }
    let header = header(state);
    // On a small terminal the table has priority.
    let room = usize::from(area.height).saturating_sub(HEADING_ONLY);
    let header = &header[..header.len().min(room + 1)];
    let [head, body, foot] = rows(area, header.len());
    state.fit(usize::from(body.height.saturating_sub(1)));
    let buffer = frame.buffer_mut();
    for (text, line) in header.iter().zip(0..) {
        let style = if line == 0 { bold() } else { Style::new() };
        put(buffer, line_of(head, line), text, style);
    }
    if state.help {
        Paragraph::new(HELP).render(body, buffer);
    } else if let Some(details) = &state.open {
        connection::open(buffer, body, details, state);
    } else {
        table::table(buffer, body, state);
    }
    put(buffer, foot, &footing(state), Style::new());
}

/// The maximum height at which only the heading is above the table.
const HEADING_ONLY: usize = 8;

/// Splits the area into the header of this many lines, the body and the last line.
fn rows(area: Rect, header: usize) -> [Rect; 3] {
    let lines = u16::try_from(header)
        .unwrap_or(u16::MAX)
        .min(area.height - 2);
    let of = |y, height| Rect { y, height, ..area };
    [
        of(area.y, lines),
        of(area.y + lines, area.height - lines - 1),
        of(area.y + area.height - 1, 1),
    ]
}

/// Returns the lines above the table: the heading, the notice, and the ended connections.
fn header(state: &State) -> Vec<String> {
    let heading = heading(state);
    let below = [&state.notice, &state.ended_line];
    [heading]
        .into_iter()
        .chain(below.into_iter().flatten().cloned())
        .collect()
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// Writes as much of a text as fits.
fn put(buffer: &mut Buffer, area: Rect, text: &str, style: Style) {
    if area.is_empty() {
        return;
    }
    buffer.set_stringn(area.x, area.y, text, area.width.into(), style);
}

fn heading(state: &State) -> String {
    let connections = match state.rows.len() {
        1 => "1 connection".to_owned(),
        count => format!("{count} connections"),
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

fn footing(state: &State) -> String {
    let input = state
        .filter_input
        .as_ref()
        .map(|text| crate::sanitize::text(text.as_bytes()));
    match (input, &state.message) {
        (Some(text), None) => format!("filter: {text}_"),
        (Some(text), Some(message)) => format!("filter: {text}_  {message}"),
        (None, Some(message)) => message.clone(),
        (None, None) => "q quit  enter open  / filter  s sort  space pause  ? help".into(),
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
    use crate::verdict::Factor;

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
    fn what_is_missing_and_what_has_ended_stand_below_the_heading_and_the_keys_stay() {
        let mut shown = state(100);
        shown.show_notice("1 source is missing".into());
        shown.ended_line = Some("212 ended".into());
        let lines = drawn(&mut shown, 80, 24);
        assert!(lines[0].starts_with("taut top: 100 connections"));
        assert_eq!(lines[1..3], ["1 source is missing", "212 ended"]);
        assert!(lines[3].starts_with("PEER") && lines[23].starts_with("q quit"));
        shown.key(Key::Down);
        assert_eq!(drawn(&mut shown, 80, 24)[1], "212 ended");
        assert!(drawn(&mut shown, 80, 7)[1].starts_with("PEER"));
    }

    #[test]
    fn a_wide_terminal_has_more_columns() {
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
    fn at_every_width_the_limit_fits_and_no_number_is_cut() {
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
        assert!(HELP.lines().all(|line| line.len() <= 80) && HELP.lines().count() <= 22);
    }

    #[test]
    fn each_factor_has_its_own_letter_and_short_name() {
        let letters: std::collections::HashSet<_> =
            Factor::ALL.iter().map(|f| f.letter()).collect();
        assert_eq!(letters.len(), Factor::ALL.len());
        for &factor in Factor::ALL {
            assert!(factor.short().len() <= 8, "{factor:?}");
            let named = format!("{} {}", factor.letter(), factor.name());
            assert!(HELP.contains(&named), "{named}");
        }
    }
}
