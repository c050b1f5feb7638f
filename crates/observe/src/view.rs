//! Formats connections as lines of a table, without a terminal.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use strum::{IntoStaticStr, VariantArray};
use unicode_width::UnicodeWidthStr as _;

use crate::observer::{Observed, Tracked};
use crate::record::Rates;
use crate::verdict::{Confidence, Factor, trouble};

/// The sort key of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Sort {
    /// Rate of payload, sum of sent and received; highest first.
    #[default]
    Rate,
    /// Round-trip time; longest first.
    Rtt,
    /// Retransmitted segments; most first.
    Retrans,
    /// What limits it: what does not work first, then what can be mended.
    Trouble,
    /// Address of the peer.
    Peer,
    /// Name of the process.
    Process,
}

// === impl Sort ===

impl Sort {
    /// All sort keys, in the order in which the screen cycles through them.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the name that the user types.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the next sort key.
    pub fn next(self) -> Self {
        let mut after = Self::ALL
            .iter()
            .copied()
            .cycle()
            .skip_while(|sort| *sort != self);
        after.nth(1).unwrap_or_default()
    }
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The cookie of the connection.
    pub cookie: u64,
    /// Address and port of the peer.
    pub peer: SocketAddr,
    /// Address and port of this end.
    pub local: SocketAddr,
    /// Name and pid of the process, if they are known.
    pub process: Option<(Arc<str>, u32)>,
    /// Rates of payload.
    pub rates: Option<Rates>,
    /// The round trip and the shortest one, in seconds.
    pub rtt: Option<(f64, Option<f64>)>,
    /// Congestion window, in segments.
    pub cwnd: u32,
    /// The peer's window, in bytes.
    pub rwnd: Option<u32>,
    /// Segments retransmitted since the connection began.
    pub retrans: u32,
    /// Segments retransmitted between the last two samples.
    pub lately_retrans: u32,
    /// The factor that limits it; `None` before the second scan.
    pub limit: Option<(Factor, Confidence)>,
}

/// The columns: title, width, and whether they are right-aligned.
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
    /// Returns the row of the last sample, without the limit.
    pub fn of(seen: &Observed<'_>) -> Self {
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
            lately_retrans: lately_retrans(seen.tracked),
            limit: None,
        }
    }

    /// Returns the row with this limit.
    pub fn with_limit(mut self, limit: Option<(Factor, Confidence)>) -> Self {
        self.limit = limit;
        self
    }

    /// Returns a number by which most rows are in order; [`Row::compare`] orders those with the same.
    fn key(&self, by: Sort) -> (i64, u64) {
        let first = match by {
            Sort::Rate => {
                let rates = self.rates.unwrap_or_default();
                descending(rates.sent + rates.received)
            }
            Sort::Rtt => descending(self.rtt.map_or(0.0, |(rtt, _)| rtt)),
            Sort::Retrans => -i64::from(self.retrans),
            // The fastest of those with as much trouble come first, whatever their addresses.
            Sort::Trouble => {
                let rates = self.rates.unwrap_or_default();
                let of_rate = descending(rates.sent + rates.received);
                let first = self.limit.map_or(1, |limit| -i64::from(trouble(limit)));
                return (first, of_rate.cast_unsigned() ^ 1 << 63);
            }
            Sort::Peer => 0,
            // Rows without a process come last. Names order the others before addresses do.
            Sort::Process => return (self.process.is_none().into(), 0),
        };
        (first, prefix(self.peer))
    }

    fn compare(&self, other: &Self, by: Sort) -> Ordering {
        let by_process = match by {
            Sort::Process => self.process.cmp(&other.process),
            _ => Ordering::Equal,
        };
        by_process
            .then_with(|| (self.peer, self.local).cmp(&(other.peer, other.local)))
            .then(self.cookie.cmp(&other.cookie))
    }

    /// Writes the text of a column.
    fn cell(&self, column: usize, out: &mut String) {
        match column {
            0 => address(out, self.peer),
            1 => address(out, self.local),
            2 => match &self.process {
                Some((name, pid)) => {
                    // Scripts split a line at blanks.
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

fn lately_retrans(tracked: &Tracked) -> u32 {
    let step = (!tracked.is_unchanged()).then(|| tracked.step()).flatten();
    step.map_or(0, |step| {
        step.more_wrapping(|info| Some(info.total_retrans))
    })
}

// At ten thousand lines a second, these functions are several times as fast as `std::fmt`.

fn whole(out: &mut String, number: impl itoa::Integer) {
    out.push_str(itoa::Buffer::new().format(number));
}

/// Writes a number with one or two decimals.
fn fixed(out: &mut String, number: f64, decimals: u32) {
    let unit = 10u64.pow(decimals);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a value out of range becomes the nearest one in range"
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
        // Writing to a string cannot fail.
        SocketAddr::V6(address) => drop(write!(out, "{address}")),
    }
}

/// Writes the titles, then a line for each row, without trailing blanks.
///
/// # Errors
/// Those of the writer.
pub fn table<'a>(
    rows: impl IntoIterator<Item = &'a Row>,
    to: &mut impl io::Write,
) -> io::Result<()> {
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

/// Sorts items by their rows. Equal rows keep their order from scan to scan.
pub fn sort_by<T>(rows: &mut [T], row: impl Fn(&T) -> &Row, by: Sort) {
    let keys = rows.iter().map(|item| row(item).key(by));
    let mut order: Vec<((i64, u64), usize)> = keys.zip(0..).collect();
    order.sort_unstable_by(|(a, i), (b, j)| {
        a.cmp(b)
            .then_with(|| row(&rows[*i]).compare(row(&rows[*j]), by))
    });
    // Rows are large, so each is moved only once.
    for to in 0..order.len() {
        let mut from = order[to].1;
        // It has been moved to where the row of its place belonged.
        while from < to {
            from = order[from].1;
        }
        order[to].1 = from;
        rows.swap(to, from);
    }
}

/// Returns a number that is smaller for a larger number, as [`f64::total_cmp`] orders them.
fn descending(number: f64) -> i64 {
    let bits = number.to_bits().cast_signed();
    !(bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed())
}

/// Returns a number that orders most addresses as they are ordered; some have the same.
fn prefix(address: SocketAddr) -> u64 {
    match address {
        SocketAddr::V4(address) => {
            u64::from(address.ip().to_bits()) << 16 | u64::from(address.port())
        }
        SocketAddr::V6(address) => {
            let [high @ .., _, _, _, _, _, _, _, _] = address.ip().octets();
            1 << 63 | u64::from_be_bytes(high) >> 1
        }
    }
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
            lately_retrans: 0,
            limit: Some((Factor::SlowStart, Confidence::Likely)),
        }
    }

    #[test]
    fn an_unknown_value_is_a_dash() {
        let mut unknown = row(1, 0.0);
        (unknown.process, unknown.rates, unknown.rtt, unknown.limit) = (None, None, None, None);
        let mut text = Vec::new();
        table(&[row(2, 1_250_000.0), unknown], &mut text).unwrap();
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
    fn numbers_are_formatted_as_the_standard_library_does() {
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
    fn the_fastest_come_first_and_equal_rows_keep_their_order() {
        let mut rows = [row(3, 5.0), row(1, 5.0), row(2, 9.0)];
        sort_by(&mut rows, |row| row, Sort::Rate);
        assert_eq!(rows.map(|row| row.cookie), [2, 1, 3]);
    }

    #[test]
    fn the_number_that_orders_most_rows_agrees_with_their_order() {
        let numbers = [
            f64::NEG_INFINITY,
            -2.0,
            -0.0,
            0.0,
            1e-9,
            1.0,
            2.5,
            1e300,
            f64::INFINITY,
        ];
        for pair in numbers.windows(2) {
            assert!(descending(pair[0]) > descending(pair[1]), "{pair:?}");
        }
        let ends = [
            "0.0.0.0:0",
            "10.0.0.1:9",
            "10.0.0.1:10",
            "255.255.255.255:65535",
            "[::]:1",
            "[2001:db8::1]:5",
            "[2001:db8::1]:6",
            "[2001:db8:1::]:0",
            "[ffff::]:0",
        ];
        let ends = ends.map(|end| end.parse::<SocketAddr>().unwrap());
        for pair in ends.windows(2) {
            assert!(
                pair[0] < pair[1] && prefix(pair[0]) <= prefix(pair[1]),
                "{pair:?}"
            );
        }
    }

    #[test]
    fn next_cycles_through_all_sort_keys() {
        let after: Vec<_> = Sort::ALL.iter().map(|sort| sort.next()).collect();
        assert_eq!(after[..5], Sort::ALL[1..]);
        assert_eq!(after[5], Sort::ALL[0]);
    }

    #[test]
    fn what_does_not_work_comes_before_what_is_slow_and_what_is_fast() {
        let of = |cookie, sent, limit| row(cookie, sent).with_limit(limit);
        let (sure, unclear) = (Confidence::Sure, Confidence::Unclear);
        let mut rows = [
            of(1, 9e9, Some((Factor::Link, sure))),
            of(2, 1e6, Some((Factor::SenderApplication, sure))),
            of(3, 2e6, Some((Factor::SenderApplication, sure))),
            of(4, 1e6, Some((Factor::Loss, sure))),
            of(5, 0.0, Some((Factor::Timeouts, sure))),
            of(6, 1e3, Some((Factor::Loss, unclear))),
            of(7, 1e3, None),
        ];
        sort_by(&mut rows, |row| row, Sort::Trouble);
        assert_eq!(rows.map(|row| row.cookie), [5, 4, 3, 2, 6, 1, 7]);
    }

    #[test]
    fn rows_without_a_process_come_last() {
        let mut rows = [row(1, 0.0), row(2, 0.0), row(3, 0.0)];
        rows[0].process = None;
        rows[1].process = Some(("zsh".into(), 1));
        sort_by(&mut rows, |row| row, Sort::Process);
        assert_eq!(rows.map(|row| row.cookie), [3, 2, 1]);
    }
}
