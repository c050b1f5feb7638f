//! The state of the screen, and how keys change it.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};

use super::Options;
use crate::ended::{Ended, Groups};
use crate::filter::{Filter, Subject};
use crate::instruments::{INSTRUMENTS, Unit};
use crate::observer::Observer;
use crate::verdict::{Factor, Verdict};
use crate::view::{self, Row, Sort};

/// The number of scans for which the main instruments are kept.
pub(super) const POINTS: usize = 60;
/// The number of connections whose history is kept: the first rows of the table.
const HISTORIES: usize = 10_000;
/// The maximum length of the filter, in characters.
const FILTER: usize = 1000;

/// A key that the screen uses.
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

/// The action of the loop after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Draws the screen.
    Draw,
    /// Selects and sorts the rows again.
    Refresh,
    /// Ends the screen.
    Quit,
}

/// The main instruments at one scan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Point {
    /// Rate of payload sent, in bytes a second.
    pub(super) sent: f64,
    /// Rate of payload received, in bytes a second.
    pub(super) received: f64,
    /// Round trip, in seconds.
    pub(super) rtt: f64,
    /// Congestion window, in segments.
    pub(super) cwnd: f64,
    /// The peer's window, in bytes.
    pub(super) rwnd: f64,
    /// The factor that limited the connection.
    pub(super) factor: Option<Factor>,
}

/// The connection whose details are open.
#[derive(Debug)]
pub(super) struct Details {
    pub(super) row: Row,
    pub(super) state: &'static str,
    pub(super) netns: String,
    pub(super) verdict: Option<Verdict>,
    /// Names, values and units of the instruments.
    pub(super) instruments: Vec<(&'static str, f64, Unit)>,
    /// The connection has ended.
    pub(super) ended: bool,
}

/// Sums over the connections in the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Totals {
    /// All connections, also those that the filter does not match.
    pub(super) connections: usize,
    /// Rate of payload sent, in bytes a second.
    pub(super) sent: f64,
    /// Rate of payload received, in bytes a second.
    pub(super) received: f64,
    /// Segments retransmitted between the last two scans.
    pub(super) retransmitted: u64,
    /// How many connections each factor limits, most trouble first, then most connections.
    pub(super) factors: Vec<(Factor, usize)>,
}

/// The content of the screen.
#[derive(Debug)]
pub(super) struct State {
    pub(super) rows: Vec<Row>,
    pub(super) totals: Totals,
    histories: HashMap<u64, VecDeque<Point>>,
    pub(super) selected: usize,
    selected_cookie: Option<u64>,
    /// Index of the first row on the screen.
    pub(super) first: usize,
    /// Number of rows that fit on the screen.
    pub(super) page: usize,
    /// Index of the first line of the open page, or of the help, on the screen.
    pub(super) scroll: usize,
    pub(super) open: Option<Details>,
    pub(super) sort: Sort,
    filter: Filter,
    pub(super) filter_text: String,
    /// The filter while the user edits it.
    pub(super) filter_input: Option<String>,
    /// The message in the last line.
    pub(super) message: Option<String>,
    /// A sentence on what the scans cannot collect, shown below the heading until the next key.
    pub(super) notice: Option<String>,
    /// The connections that have ended since the last scan.
    ended: Groups,
    /// A line on the connections that ended between the last two scans.
    pub(super) ended_line: Option<String>,
    paused: bool,
    pub(super) help: bool,
}

// === impl State ===

impl State {
    pub(super) fn new(filter: Filter, options: &Options) -> Self {
        Self {
            rows: Vec::new(),
            totals: Totals::default(),
            histories: HashMap::new(),
            selected: 0,
            selected_cookie: None,
            first: 0,
            page: 1,
            scroll: 0,
            open: None,
            sort: options.sort,
            filter,
            filter_text: options.filter.clone(),
            filter_input: None,
            message: None,
            notice: None,
            ended: Groups::default(),
            ended_line: None,
            paused: false,
            help: false,
        }
    }

    pub(super) fn paused(&self) -> bool {
        self.paused
    }

    /// Shows a sentence below the heading until the next key.
    pub(super) fn show_notice(&mut self, sentence: String) {
        self.notice = Some(sentence);
    }

    /// Adds a connection that has ended.
    pub(super) fn add_ended(&mut self, ended: &Ended) {
        if self.filter.matches(&Subject::of_ended(ended)) {
            self.ended.add(ended);
        }
    }

    /// Shows the results of a scan and adds them to the histories.
    pub(super) fn update(&mut self, observer: &Observer) {
        self.ended_line = std::mem::take(&mut self.ended).line();
        self.refresh(observer);
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

    /// Selects the connections that the filter matches, and sorts them.
    pub(super) fn refresh(&mut self, observer: &Observer) {
        let filter = std::mem::replace(&mut self.filter, Filter::all());
        let rows = observer
            .connections(&filter)
            .map(|seen| Row::of(&seen).with_limit(observer.limit(&seen)));
        self.rows = rows.collect();
        self.filter = filter;
        view::sort_by(&mut self.rows, |row| row, self.sort);
        self.totals = Totals::of(&self.rows, observer.kept() + observer.left_out());
        // The selected connection stays selected, wherever it is now.
        let at = self
            .selected_cookie
            .and_then(|cookie| self.rows.iter().position(|row| row.cookie == cookie));
        self.select(at.unwrap_or(self.selected));
        self.update_details(observer);
    }

    fn update_details(&mut self, observer: &Observer) {
        let Some(details) = &mut self.open else {
            return;
        };
        let Some(seen) = observer.get(details.row.cookie) else {
            // The last figures stay on the screen.
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

    /// Returns the history of a connection, oldest first.
    pub(super) fn history(
        &self,
        cookie: u64,
    ) -> impl DoubleEndedIterator<Item = &Point> + ExactSizeIterator {
        const NONE: &VecDeque<Point> = &VecDeque::new();
        self.histories.get(&cookie).unwrap_or(NONE).iter()
    }

    fn select(&mut self, at: usize) {
        self.selected = at.min(self.rows.len().saturating_sub(1));
        self.selected_cookie = self.rows.get(self.selected).map(|row| row.cookie);
    }

    /// Sets how many rows fit, and scrolls so that the selected one is visible.
    pub(super) fn fit(&mut self, page: usize) {
        self.page = page.max(1);
        let last = self.rows.len().saturating_sub(self.page);
        let least = (self.selected + 1).saturating_sub(self.page);
        self.first = self
            .first
            .clamp(least, self.selected.max(least))
            .min(last.max(least));
    }

    /// Sets how many lines of an open page fit, of which it has `lines`, and scrolls back if fewer follow.
    pub(super) fn fit_page(&mut self, lines: usize, page: usize) {
        self.page = page.max(1);
        self.scroll = self.scroll.min(lines.saturating_sub(self.page));
    }

    /// Scrolls the open page or the help. Returns whether the key does so.
    fn scroll(&mut self, key: Key) -> bool {
        self.scroll = match key {
            Key::Up | Key::Char('k') => self.scroll.saturating_sub(1),
            Key::Down | Key::Char('j') => self.scroll.saturating_add(1),
            Key::PageUp => self.scroll.saturating_sub(self.page),
            Key::PageDown => self.scroll.saturating_add(self.page),
            Key::Home => 0,
            Key::End => usize::MAX,
            _ => return false,
        };
        true
    }

    pub(super) fn key(&mut self, key: Key) -> Action {
        self.message = None;
        self.notice = None;
        if key == Key::Interrupt {
            return Action::Quit;
        }
        if self.filter_input.is_some() {
            return self.type_key(key);
        }
        if (self.help || self.open.is_some()) && self.scroll(key) {
            return Action::Draw;
        }
        if std::mem::take(&mut self.help) {
            self.scroll = 0;
            return Action::Draw;
        }
        match key {
            Key::Char('q') | Key::Escape if self.open.is_some() => self.open = None,
            Key::Backspace => self.open = None,
            Key::Char('q') => return Action::Quit,
            Key::Char('?' | 'h') => (self.help, self.scroll) = (true, 0),
            Key::Char(' ') => self.paused = !self.paused,
            Key::Char('/') => self.filter_input = Some(self.filter_text.clone()),
            Key::Char('s') => {
                self.sort = self.sort.next();
                return Action::Refresh;
            }
            Key::Up | Key::Char('k') => self.select(self.selected.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.select(self.selected + 1),
            Key::PageUp => self.select(self.selected.saturating_sub(self.page)),
            Key::PageDown => self.select(self.selected + self.page),
            Key::Home => self.select(0),
            Key::End => self.select(usize::MAX),
            Key::Enter if self.open.is_none() => {
                self.scroll = 0;
                self.open = self.rows.get(self.selected).map(|row| Details {
                    row: row.clone(),
                    state: "",
                    netns: String::new(),
                    verdict: None,
                    instruments: Vec::new(),
                    ended: false,
                });
                return Action::Refresh;
            }
            _ => {}
        }
        Action::Draw
    }

    fn type_key(&mut self, key: Key) -> Action {
        let Some(text) = &mut self.filter_input else {
            return Action::Draw;
        };
        match key {
            Key::Escape => self.filter_input = None,
            Key::Backspace => {
                text.pop();
            }
            Key::Char(c) if text.chars().count() < FILTER => text.push(c),
            Key::Enter => match text.parse() {
                Ok(filter) => {
                    self.filter = filter;
                    self.filter_text = self.filter_input.take().unwrap_or_default();
                    self.first = 0;
                    return Action::Refresh;
                }
                // The input stays open for correction.
                Err(e) => self.message = Some(e.to_string()),
            },
            _ => {}
        }
        Action::Draw
    }
}

// === impl Totals ===

impl Totals {
    /// Returns the sums over these rows, of `connections` in all.
    pub(super) fn of(rows: &[Row], connections: usize) -> Self {
        let mut totals = Self {
            connections,
            ..Self::default()
        };
        let mut limited = vec![0; Factor::ALL.len()];
        for row in rows {
            let rates = row.rates.unwrap_or_default();
            totals.sent += rates.sent;
            totals.received += rates.received;
            totals.retransmitted += u64::from(row.lately_retrans);
            if let Some((factor, _)) = row.limit {
                limited[factor.index()] += 1;
            }
        }
        let all = Factor::ALL.iter().copied().zip(limited);
        totals.factors = all.filter(|(_, count)| *count > 0).collect();
        let order = |&(factor, count): &(Factor, usize)| Reverse((factor.trouble(), count));
        totals.factors.sort_by_key(order);
        totals
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
            lately_retrans: 1,
            limit: Some((Factor::ReceiverApplication, Confidence::Sure)),
        }
    }

    pub(crate) fn state(rows: u64) -> State {
        let mut state = State::new(Filter::all(), &options());
        state.rows = (0..rows)
            .map(|cookie| row(cookie, (rows - cookie) as f64 * 1e6))
            .collect();
        state.totals = Totals::of(&state.rows, state.rows.len());
        state.select(0);
        state
    }

    #[test]
    fn totals_are_those_of_the_rows_with_trouble_first() {
        let limited = |factor| Some((factor, Confidence::Sure));
        let mut rows = vec![row(1, 1e6), row(2, 2e6), row(3, 0.0), row(4, 0.0)];
        rows[0].limit = limited(Factor::Loss);
        rows[2].limit = limited(Factor::Idle);
        rows[3].limit = limited(Factor::Idle);
        let totals = Totals::of(&rows, 9);
        assert_eq!(
            (totals.sent, totals.retransmitted, totals.connections),
            (3e6, 4, 9)
        );
        let factors = [
            (Factor::Loss, 1),
            (Factor::ReceiverApplication, 1),
            (Factor::Idle, 2),
        ];
        assert_eq!(totals.factors, factors);
    }

    #[test]
    fn keys_scroll_the_open_page_and_not_the_selection_behind_it() {
        let mut state = state(100);
        state.key(Key::Enter);
        state.fit_page(30, 10);
        for (key, first) in [
            (Key::Down, 1),
            (Key::PageDown, 11),
            (Key::End, 20),
            (Key::Up, 19),
            (Key::PageUp, 9),
            (Key::Home, 0),
            (Key::Up, 0),
        ] {
            state.key(key);
            state.fit_page(30, 10);
            assert_eq!(state.scroll, first, "{key:?}");
        }
        assert_eq!(state.selected, 0);
    }

    #[test]
    fn the_selected_row_is_always_visible() {
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
    fn keys_do_no_harm_without_rows() {
        let mut state = state(0);
        for key in [Key::Down, Key::Enter, Key::End, Key::PageUp] {
            state.key(key);
            state.fit(10);
        }
        assert!(state.open.is_none());
    }

    #[test]
    fn q_closes_an_open_connection_first() {
        let mut state = state(3);
        assert_eq!(state.key(Key::Enter), Action::Refresh);
        assert!(state.open.is_some());
        assert_eq!(state.key(Key::Char('q')), Action::Draw);
        assert_eq!(state.key(Key::Char('q')), Action::Quit);
    }

    #[test]
    fn a_wrong_filter_stays_for_correction() {
        let mut state = state(3);
        state.key(Key::Char('/'));
        for c in "dport q".chars() {
            assert_eq!(state.key(Key::Char(c)), Action::Draw);
        }
        assert_eq!(state.key(Key::Enter), Action::Draw);
        assert!(state.message.as_ref().unwrap().contains("port"));
        state.key(Key::Backspace);
        state.key(Key::Char('8'));
        assert_eq!(state.key(Key::Enter), Action::Refresh);
        assert_eq!(
            (&*state.filter_text, &state.filter_input),
            ("dport 8", &None)
        );
        state.key(Key::Char('/'));
        state.key(Key::Char('x'));
        state.key(Key::Escape);
        assert_eq!(state.filter_text, "dport 8");
    }

    #[test]
    fn an_interrupt_quits_in_every_mode() {
        let mut state = state(3);
        state.key(Key::Char('/'));
        assert_eq!(state.key(Key::Interrupt), Action::Quit);
    }
}
