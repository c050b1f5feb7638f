//! What the screen shows, and what keys do to it.

use std::collections::{HashMap, HashSet, VecDeque};

use super::Options;
use crate::filter::Filter;
use crate::instruments::{INSTRUMENTS, Unit};
use crate::observer::Observer;
use crate::verdict::{Factor, Verdict};
use crate::view::{self, Row, Sort};

/// Looks of which the chief instruments are kept.
pub(super) const POINTS: usize = 60;
/// Connections of which they are kept: those that stand first.
const HISTORIES: usize = 10_000;
/// Letters of a filter that is typed.
const FILTER: usize = 1000;

/// A key that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Interrupt,
}

/// What is to be done after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Draw.
    Nothing,
    /// Choose anew what is shown.
    Choose,
    /// End.
    Quit,
}

/// The chief instruments at one look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Point {
    /// Payload, bytes a second.
    pub(super) sent: f64,
    /// Payload, bytes a second.
    pub(super) received: f64,
    /// Seconds.
    pub(super) rtt: f64,
    /// Segments.
    pub(super) cwnd: f64,
    /// Bytes.
    pub(super) rwnd: f64,
    /// What limited it.
    pub(super) factor: Option<Factor>,
}

/// A connection that is open.
#[derive(Debug)]
pub(super) struct Details {
    pub(super) row: Row,
    pub(super) state: &'static str,
    pub(super) netns: String,
    pub(super) verdict: Option<Verdict>,
    /// Names, values and units.
    pub(super) instruments: Vec<(&'static str, f64, Unit)>,
    /// It has ended.
    pub(super) ended: bool,
}

/// What is on the screen.
#[derive(Debug)]
pub(super) struct State {
    pub(super) rows: Vec<Row>,
    histories: HashMap<u64, VecDeque<Point>>,
    pub(super) selected: usize,
    chosen: Option<u64>,
    /// The first line that is shown.
    pub(super) first: usize,
    /// Lines that there is room for.
    pub(super) page: usize,
    pub(super) open: Option<Details>,
    pub(super) sort: Sort,
    filter: Filter,
    pub(super) filter_text: String,
    /// The filter while it is typed.
    pub(super) typing: Option<String>,
    /// What is to be said at the foot.
    pub(super) said: Option<String>,
    paused: bool,
    pub(super) help: bool,
}

// === impl State ===

impl State {
    pub(super) fn new(filter: Filter, options: &Options) -> Self {
        Self {
            rows: Vec::new(),
            histories: HashMap::new(),
            selected: 0,
            chosen: None,
            first: 0,
            page: 1,
            open: None,
            sort: options.sort,
            filter,
            filter_text: options.filter.clone(),
            typing: None,
            said: None,
            paused: false,
            help: false,
        }
    }

    pub(super) fn paused(&self) -> bool {
        self.paused
    }

    /// Says something at the foot until the next key.
    pub(super) fn say(&mut self, sentence: String) {
        self.said = Some(sentence);
    }

    /// After a look: takes what was seen, and remembers it.
    pub(super) fn look(&mut self, observer: &Observer) {
        self.choose(observer);
        let mut shown = HashSet::new();
        for row in self.rows.iter().take(HISTORIES) {
            shown.insert(row.cookie);
            let points = self.histories.entry(row.cookie).or_default();
            if points.len() == POINTS {
                points.pop_front();
            }
            points.push_back(Point {
                sent: row.rates.map_or(0.0, |rates| rates.sent),
                received: row.rates.map_or(0.0, |rates| rates.received),
                rtt: row.rtt.map_or(0.0, |(rtt, _)| rtt),
                cwnd: row.cwnd.into(),
                rwnd: row.rwnd.unwrap_or(0).into(),
                factor: row.limit.map(|(factor, _)| factor),
            });
        }
        let open = self.open.as_ref().map(|details| details.row.cookie);
        self.histories
            .retain(|cookie, _| shown.contains(cookie) || Some(*cookie) == open);
    }

    /// Puts those of the last look that are meant into their order.
    pub(super) fn choose(&mut self, observer: &Observer) {
        let filter = std::mem::replace(&mut self.filter, Filter::all());
        let rows = observer
            .connections(&filter)
            .map(|seen| Row::of(&seen).with_limit(observer.limit(&seen)));
        self.rows = rows.collect();
        self.filter = filter;
        view::sort_by(&mut self.rows, |row| row, self.sort);
        // What was selected stays so, wherever it stands now.
        let at = self
            .chosen
            .and_then(|cookie| self.rows.iter().position(|row| row.cookie == cookie));
        self.select(at.unwrap_or(self.selected));
        self.detail(observer);
    }

    fn detail(&mut self, observer: &Observer) {
        let Some(details) = &mut self.open else {
            return;
        };
        let Some(seen) = observer.get(details.row.cookie) else {
            // What was known last stays.
            details.ended = true;
            return;
        };
        let connection = &seen.tracked.last().connection;
        let read = |i: &crate::instruments::Instrument| Some((i.name, i.read(connection)?, i.unit));
        *details = Details {
            row: Row::of(&seen),
            state: connection.state.name(),
            netns: seen.tracked.netns.to_string(),
            verdict: observer.verdict(&seen),
            instruments: INSTRUMENTS.iter().filter_map(read).collect(),
            ended: false,
        };
    }

    /// What was seen of this connection, oldest first.
    pub(super) fn history(
        &self,
        cookie: u64,
    ) -> impl DoubleEndedIterator<Item = &Point> + ExactSizeIterator {
        const NONE: &VecDeque<Point> = &VecDeque::new();
        self.histories.get(&cookie).unwrap_or(NONE).iter()
    }

    fn select(&mut self, at: usize) {
        self.selected = at.min(self.rows.len().saturating_sub(1));
        self.chosen = self.rows.get(self.selected).map(|row| row.cookie);
    }

    /// There is room for so many lines: the selected one is among them.
    pub(super) fn fit(&mut self, page: usize) {
        self.page = page.max(1);
        let last = self.rows.len().saturating_sub(self.page);
        let least = (self.selected + 1).saturating_sub(self.page);
        self.first = self
            .first
            .clamp(least, self.selected.max(least))
            .min(last.max(least));
    }

    pub(super) fn key(&mut self, key: Key) -> Then {
        self.said = None;
        if key == Key::Interrupt {
            return Then::Quit;
        }
        if self.typing.is_some() {
            return self.type_key(key);
        }
        if std::mem::take(&mut self.help) {
            return Then::Nothing;
        }
        match key {
            Key::Char('q') | Key::Escape if self.open.is_some() => self.open = None,
            Key::Backspace => self.open = None,
            Key::Char('q') => return Then::Quit,
            Key::Char('?' | 'h') => self.help = true,
            Key::Char(' ') => self.paused = !self.paused,
            Key::Char('/') => self.typing = Some(self.filter_text.clone()),
            Key::Char('s') => {
                self.sort = self.sort.next();
                return Then::Choose;
            }
            Key::Up | Key::Char('k') => self.select(self.selected.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.select(self.selected + 1),
            Key::PageUp => self.select(self.selected.saturating_sub(self.page)),
            Key::PageDown => self.select(self.selected + self.page),
            Key::Home => self.select(0),
            Key::End => self.select(usize::MAX),
            Key::Enter if self.open.is_none() => {
                self.open = self.rows.get(self.selected).map(|row| Details {
                    row: row.clone(),
                    state: "",
                    netns: String::new(),
                    verdict: None,
                    instruments: Vec::new(),
                    ended: false,
                });
                return Then::Choose;
            }
            _ => {}
        }
        Then::Nothing
    }

    fn type_key(&mut self, key: Key) -> Then {
        let Some(text) = &mut self.typing else {
            return Then::Nothing;
        };
        match key {
            Key::Escape => self.typing = None,
            Key::Backspace => {
                text.pop();
            }
            Key::Char(c) if text.chars().count() < FILTER => text.push(c),
            Key::Enter => match text.parse() {
                Ok(filter) => {
                    self.filter = filter;
                    self.filter_text = self.typing.take().unwrap_or_default();
                    self.first = 0;
                    return Then::Choose;
                }
                // It stays, to be mended.
                Err(e) => self.said = Some(e.to_string()),
            },
            _ => {}
        }
        Then::Nothing
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::record::Rates;
    use crate::verdict::Confidence;

    pub(crate) fn options() -> Options {
        Options {
            filter: String::new(),
            interval: Duration::from_secs(1),
            sort: Sort::Rate,
        }
    }

    pub(crate) fn row(cookie: u64, sent: f64) -> Row {
        Row {
            cookie,
            peer: format!("10.0.0.9:{}", 1000 + cookie).parse().unwrap(),
            local: "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:1]:50000"
                .parse()
                .unwrap(),
            process: Some(("a-rather-long-process-name".into(), 4_194_304)),
            rates: Some(Rates {
                sent,
                received: 0.0,
            }),
            rtt: Some((0.120, Some(0.1))),
            cwnd: 10,
            rwnd: Some(65535),
            retrans: 0,
            limit: Some((Factor::ReceiverApplication, Confidence::Sure)),
        }
    }

    pub(crate) fn state(rows: u64) -> State {
        let mut state = State::new(Filter::all(), &options());
        state.rows = (0..rows)
            .map(|cookie| row(cookie, (rows - cookie) as f64 * 1e6))
            .collect();
        state.select(0);
        state
    }

    #[test]
    fn the_selection_is_always_in_sight() {
        let mut state = state(100);
        state.fit(10);
        for key in [
            Key::PageDown,
            Key::Down,
            Key::End,
            Key::Up,
            Key::PageUp,
            Key::Home,
            Key::Up,
        ] {
            state.key(key);
            for page in [10, 3, 1, 50, 200] {
                state.fit(page);
                let shown = state.first..state.first + page;
                assert!(
                    shown.contains(&state.selected),
                    "{key:?} {page}: {shown:?} {}",
                    state.selected
                );
            }
        }
        assert_eq!(state.selected, 0);
    }

    #[test]
    fn nothing_to_select_is_no_harm() {
        let mut state = state(0);
        for key in [Key::Down, Key::Enter, Key::End, Key::PageUp] {
            state.key(key);
            state.fit(10);
        }
        assert!(state.open.is_none());
    }

    #[test]
    fn q_leaves_what_is_open_first() {
        let mut state = state(3);
        assert_eq!(state.key(Key::Enter), Then::Choose);
        assert!(state.open.is_some());
        assert_eq!(state.key(Key::Char('q')), Then::Nothing);
        assert_eq!(state.key(Key::Char('q')), Then::Quit);
    }

    #[test]
    fn a_wrong_filter_stays_to_be_mended() {
        let mut state = state(3);
        state.key(Key::Char('/'));
        for c in "dport q".chars() {
            assert_eq!(state.key(Key::Char(c)), Then::Nothing);
        }
        assert_eq!(state.key(Key::Enter), Then::Nothing);
        assert!(state.said.as_ref().unwrap().contains("port"));
        state.key(Key::Backspace);
        state.key(Key::Char('8'));
        assert_eq!(state.key(Key::Enter), Then::Choose);
        assert_eq!((&*state.filter_text, &state.typing), ("dport 8", &None));
        state.key(Key::Char('/'));
        state.key(Key::Char('x'));
        state.key(Key::Escape);
        assert_eq!(state.filter_text, "dport 8");
    }

    #[test]
    fn an_interrupt_ends_it_wherever_it_is() {
        let mut state = state(3);
        state.key(Key::Char('/'));
        assert_eq!(state.key(Key::Interrupt), Then::Quit);
    }
}
