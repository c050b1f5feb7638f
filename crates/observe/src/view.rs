//! Connections as lines of a table, made without a terminal.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

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
    pub process: Option<(Arc<str>, u32)>,
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

    /// Writes what stands in a column.
    fn cell(&self, column: usize, out: &mut String) {
        match column {
            0 => address(out, self.peer),
            1 => address(out, self.local),
            2 => match &self.process {
                Some((name, pid)) => {
                    // A line has the same words everywhere.
                    out.extend(name.chars().map(|c| if c == ' ' { '_' } else { c }));
                    out.push('/');
                    whole(out, *pid);
                }
                None => out.push('-'),
            },
            3 => mbit(out, self.rates.map(|rates| rates.sent)),
            4 => mbit(out, self.rates.map(|rates| rates.received)),
            5 => match self.rtt {
                Some((rtt, least)) => {
                    fixed(out, rtt * 1e3, 1);
                    out.push('/');
                    match least {
                        Some(least) => fixed(out, least * 1e3, 1),
                        None => out.push('-'),
                    }
                }
                None => out.push('-'),
            },
            6 => whole(out, self.cwnd),
            7 => whole(out, self.retrans),
            _ => match self.limit {
                Some((factor, confidence)) => {
                    out.push_str(factor.name());
                    if confidence != Confidence::Sure {
                        out.push('?');
                    }
                }
                None => out.push('-'),
            },
        }
    }
}

// Each of ten thousand connections has a line every second: these are several times as fast as `std::fmt`.

fn whole(out: &mut String, number: impl itoa::Integer) {
    out.push_str(itoa::Buffer::new().format(number));
}

/// With so many decimals, one or two.
fn fixed(out: &mut String, number: f64, decimals: u32) {
    let unit = 10u64.pow(decimals);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what is less than nothing, or does not fit, becomes the least and the most"
    )]
    let parts = (number * unit as f64).round() as u64;
    whole(out, parts / unit);
    out.push('.');
    if decimals == 2 && parts % unit < 10 {
        out.push('0');
    }
    whole(out, parts % unit);
}

fn mbit(out: &mut String, rate: Option<f64>) {
    match rate {
        Some(rate) => fixed(out, rate * 8.0 / 1e6, 2),
        None => out.push('-'),
    }
}

fn address(out: &mut String, address: SocketAddr) {
    match address {
        SocketAddr::V4(address) => {
            for (index, byte) in address.ip().octets().into_iter().enumerate() {
                if index > 0 {
                    out.push('.');
                }
                whole(out, byte);
            }
            out.push(':');
            whole(out, address.port());
        }
        // To a string nothing fails.
        SocketAddr::V6(address) => drop(write!(out, "{address}")),
    }
}

/// Writes the titles, then a line for each row; no line ends in a blank.
///
/// # Errors
/// The writer's.
pub fn table(rows: impl IntoIterator<Item = Row>, to: &mut impl io::Write) -> io::Result<()> {
    let (mut text, mut scratch) = (String::new(), String::new());
    line(&mut text, &mut scratch, |column, out| {
        out.push_str(COLUMNS[column].0);
    });
    to.write_all(text.as_bytes())?;
    for row in rows {
        text.clear();
        line(&mut text, &mut scratch, |column, out| row.cell(column, out));
        to.write_all(text.as_bytes())?;
    }
    Ok(())
}

fn line(text: &mut String, scratch: &mut String, cell: impl Fn(usize, &mut String)) {
    const BLANKS: &str = "                                ";
    for (column, (_, width, right)) in COLUMNS.iter().enumerate() {
        scratch.clear();
        cell(column, scratch);
        let wide = match scratch.is_ascii() {
            true => scratch.len(),
            false => scratch.width(),
        };
        let pad = &BLANKS[..width.saturating_sub(wide)];
        let (before, after) = if *right { (pad, "") } else { ("", pad) };
        text.push_str(before);
        text.push_str(scratch);
        text.push_str(after);
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
        let mut text = Vec::new();
        table([row(2, 1_250_000.0), unknown], &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
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
    fn figures_are_as_the_standard_library_writes_them() {
        for number in [0.0, 0.04, 0.06, 1.0, 9.99, 10.05, 123.456, 99_999.949, 1e9] {
            let (mut one, mut two) = (String::new(), String::new());
            fixed(&mut one, number, 1);
            fixed(&mut two, number, 2);
            assert_eq!([one, two], [format!("{number:.1}"), format!("{number:.2}")]);
        }
        for (number, text) in [(-1.0, "0.0"), (f64::NAN, "0.0"), (0.95, "1.0")] {
            let mut one = String::new();
            fixed(&mut one, number, 1);
            assert_eq!(one, text);
        }
        for end in ["192.0.2.1:65535", "0.0.0.0:0", "[2001:db8::1]:443"] {
            let mut text = String::new();
            address(&mut text, end.parse().unwrap());
            assert_eq!(text, end);
        }
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
