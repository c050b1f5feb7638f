//! Connections as lines of a table, made without a terminal.

use std::cmp::Ordering;
use std::net::SocketAddr;

use unicode_width::UnicodeWidthStr as _;

use crate::observer::Seen;
use crate::record::Rates;
use crate::verdict::{Confidence, Factor};

/// What a table is sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Payload a second, both ways together; most first.
    #[default]
    Rate,
    /// Round-trip time; longest first.
    Rtt,
    /// Segments sent again; most first.
    Retrans,
    /// The peer's address.
    Peer,
    /// The process's name.
    Process,
}

// === impl Sort ===

impl Sort {
    /// All, in the order in which a key goes through them.
    pub const ALL: [Self; 5] = [
        Self::Rate,
        Self::Rtt,
        Self::Retrans,
        Self::Peer,
        Self::Process,
    ];

    /// Its name, as it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Rtt => "rtt",
            Self::Retrans => "retrans",
            Self::Peer => "peer",
            Self::Process => "process",
        }
    }

    /// The one after it.
    pub fn next(self) -> Self {
        let mut after = Self::ALL
            .into_iter()
            .cycle()
            .skip_while(|sort| *sort != self);
        after.nth(1).unwrap_or_default()
    }
}

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Which connection.
    pub cookie: u64,
    /// The peer.
    pub peer: SocketAddr,
    /// This end.
    pub local: SocketAddr,
    /// Name and number of the process; nothing where they are not known.
    pub process: Option<(String, u32)>,
    /// Payload a second.
    pub rates: Option<Rates>,
    /// Round trip and its least, in seconds.
    pub rtt: Option<(f64, Option<f64>)>,
    /// Congestion window, in segments.
    pub cwnd: u32,
    /// The peer's window.
    pub rwnd: Option<u32>,
    /// Segments sent again, ever.
    pub retrans: u32,
    /// What limits it; nothing before the second look.
    pub limit: Option<(Factor, Confidence)>,
}

/// Columns of the table: title, width, and whether it stands at the right.
const COLUMNS: [(&str, usize, bool); 9] = [
    ("PEER", 26, false),
    ("LOCAL", 26, false),
    ("PROCESS", 18, false),
    ("OUT Mbit/s", 10, true),
    ("IN Mbit/s", 10, true),
    ("RTT/MIN ms", 14, true),
    ("CWND", 6, true),
    ("RETRANS", 7, true),
    ("LIMITED BY", 22, false),
];

// === impl Row ===

impl Row {
    /// Of what was seen last, without its verdict.
    pub fn of(seen: &Seen<'_>) -> Self {
        let connection = &seen.tracked.last().connection;
        let info = connection.info.as_ref();
        Self {
            cookie: seen.cookie,
            peer: connection.remote,
            local: connection.local,
            process: seen
                .process
                .map(|process| (process.name.clone(), process.pid)),
            rates: Rates::of(seen.tracked),
            rtt: info.and_then(|info| {
                let least = info.min_rtt.map(|rtt| rtt.as_secs_f64());
                Some((info.rtt?.as_secs_f64(), least))
            }),
            cwnd: info.map_or(0, |info| info.snd_cwnd),
            rwnd: info.and_then(|info| info.snd_wnd),
            retrans: info.map_or(0, |info| info.total_retrans),
            limit: None,
        }
    }

    /// With what limits it.
    pub fn judged(mut self, limit: Option<(Factor, Confidence)>) -> Self {
        self.limit = limit;
        self
    }

    fn cells(&self) -> [String; COLUMNS.len()] {
        let mbit = |rate: f64| format!("{:.2}", rate * 8.0 / 1e6);
        let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
        [
            self.peer.to_string(),
            self.local.to_string(),
            self.process.as_ref().map_or("-".into(), |(name, pid)| {
                // A line has the same words everywhere.
                format!("{}/{pid}", name.replace(' ', "_"))
            }),
            self.rates.map_or("-".into(), |rates| mbit(rates.sent)),
            self.rates.map_or("-".into(), |rates| mbit(rates.received)),
            match self.rtt {
                Some((rtt, Some(least))) => format!("{}/{}", ms(rtt), ms(least)),
                Some((rtt, None)) => format!("{}/-", ms(rtt)),
                None => "-".into(),
            },
            self.cwnd.to_string(),
            self.retrans.to_string(),
            match self.limit {
                Some((factor, Confidence::Sure)) => factor.name().into(),
                Some((factor, _)) => format!("{}?", factor.name()),
                None => "-".into(),
            },
        ]
    }
}

/// The titles, then a line for each row; no line ends in a blank.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::with_capacity(rows.len() * 140 + 140);
    line(&mut text, COLUMNS.map(|(title, ..)| title.to_owned()));
    for row in rows {
        line(&mut text, row.cells());
    }
    text
}

fn line(text: &mut String, cells: [String; COLUMNS.len()]) {
    for ((_, width, right), cell) in COLUMNS.iter().zip(cells) {
        let pad = width.saturating_sub(cell.width());
        let blanks = std::iter::repeat_n(' ', pad);
        if *right {
            text.extend(blanks);
            text.push_str(&cell);
        } else {
            text.push_str(&cell);
            text.extend(blanks);
        }
        text.push(' ');
    }
    text.truncate(text.trim_end_matches(' ').len());
    text.push('\n');
}

/// Puts rows, and what belongs to each, into an order in which equal ones stay where they are from look to
/// look.
pub fn sort_by<T>(rows: &mut [T], row: impl Fn(&T) -> &Row, by: Sort) {
    let rate = |row: &Row| row.rates.map_or(0.0, |rates| rates.sent + rates.received);
    let rtt = |row: &Row| row.rtt.map_or(0.0, |(rtt, _)| rtt);
    rows.sort_by(|a, b| {
        let (a, b) = (row(a), row(b));
        let order = match by {
            Sort::Rate => rate(b).total_cmp(&rate(a)),
            Sort::Rtt => rtt(b).total_cmp(&rtt(a)),
            Sort::Retrans => b.retrans.cmp(&a.retrans),
            Sort::Peer => Ordering::Equal,
            // Those without one last.
            Sort::Process => {
                (a.process.is_none(), &a.process).cmp(&(b.process.is_none(), &b.process))
            }
        };
        order
            .then_with(|| (a.peer, a.local).cmp(&(b.peer, b.local)))
            .then(a.cookie.cmp(&b.cookie))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cookie: u64, sent: f64) -> Row {
        Row {
            cookie,
            peer: "10.0.0.9:443".parse().unwrap(),
            local: "10.0.0.1:50000".parse().unwrap(),
            process: Some(("curl".into(), 77)),
            rates: Some(Rates {
                sent,
                received: 125.0,
            }),
            rtt: Some((0.0204, Some(0.02))),
            cwnd: 10,
            rwnd: Some(65535),
            retrans: 3,
            limit: Some((Factor::SlowStart, Confidence::Likely)),
        }
    }

    #[test]
    fn a_line_has_what_there_is_and_a_dash_for_the_rest() {
        let mut unknown = row(1, 0.0);
        (unknown.process, unknown.rates, unknown.rtt, unknown.limit) = (None, None, None, None);
        let text = table(&[row(2, 1_250_000.0), unknown]);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            lines[1],
            [
                "10.0.0.9:443",
                "10.0.0.1:50000",
                "curl/77",
                "10.00",
                "0.00",
                "20.4/20.0",
                "10",
                "3",
                "slow-start?"
            ]
        );
        assert_eq!(
            lines[2],
            [
                "10.0.0.9:443",
                "10.0.0.1:50000",
                "-",
                "-",
                "-",
                "-",
                "10",
                "3",
                "-"
            ]
        );
        assert!(
            text.lines()
                .all(|line| line.len() < 160 && !line.ends_with(' '))
        );
    }

    #[test]
    fn the_fastest_come_first_and_equals_keep_their_order() {
        let mut rows = [row(3, 5.0), row(1, 5.0), row(2, 9.0)];
        sort_by(&mut rows, |row| row, Sort::Rate);
        assert_eq!(rows.map(|row| row.cookie), [2, 1, 3]);
    }

    #[test]
    fn a_key_goes_through_all_orders() {
        let after: Vec<_> = Sort::ALL.iter().map(|sort| sort.next()).collect();
        assert_eq!(after[..4], Sort::ALL[1..]);
        assert_eq!(after[4], Sort::ALL[0]);
    }

    #[test]
    fn those_without_a_process_come_last() {
        let mut rows = [row(1, 0.0), row(2, 0.0), row(3, 0.0)];
        rows[0].process = None;
        rows[1].process = Some(("zsh".into(), 1));
        sort_by(&mut rows, |row| row, Sort::Process);
        assert_eq!(rows.map(|row| row.cookie), [3, 2, 1]);
    }
}
