//! Which running connections of this machine would gain by relays.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use taut_observe::filter::Filter;
use taut_observe::observer::{Observed, Observer};
use taut_observe::scan::{Scope, Wants};
use taut_observe::table::Retention;
use taut_relay::plan::{Candidate, Endpoint, Kind, Path, Planner, Ranking};
use taut_sys::plural::counted;
use taut_sys::tcp_info::TcpInfo;

use super::json::{self, Names, Route};
use super::{Known, text};
use crate::failure::Failure;

/// The largest number of connections that are considered.
const CONNECTIONS: usize = 10_000;

/// The largest number of connections that the text reports.
const REPORTED: usize = 20;

/// The number of segments from which a connection's loss is believed: with fewer, one lost segment would
/// look like a path that loses some percent.
const SEGMENTS: u32 = 300;

/// A relay must make the file arrive this much earlier to be worth a mention.
const GAIN: f64 = 1.1;

/// A connection and the routes that it might have taken.
struct Planned<'a> {
    seen: Observed<'a>,
    path: Path,
    /// `None` if the file does not know its ends.
    ranking: Option<Ranking>,
}

#[derive(Serialize)]
struct Line<'a> {
    /// Address and port of this end.
    local: SocketAddr,
    /// Address and port of the peer.
    remote: SocketAddr,
    /// The process that has the connection, if it is known.
    process: Option<&'a str>,
    /// That process's ID.
    pid: Option<u32>,
    /// The connection's least round-trip time, in milliseconds.
    rtt_ms: f64,
    /// The share of segments that were retransmitted, from 0 to 1.
    loss: f64,
    /// How many times as fast the file would arrive.
    gain: Option<f64>,
    /// The path that it takes now.
    now: Option<Route<'a>>,
    /// The best route with a relay.
    best: Option<Route<'a>>,
}

pub(super) fn report(
    known: &Known,
    filter: &str,
    from: Option<&Endpoint>,
    as_json: bool,
) -> Result<String, Failure> {
    let filter: Filter = filter.parse().map_err(|e| {
        Failure::Usage(format!(
            "filter {filter:?}: {e} (`taut top --help` has the syntax)"
        ))
    })?;
    let retention = Retention {
        connections: CONNECTIONS,
        samples: 1,
    };
    let mut observer = Observer::new(Scope::Machine, retention, Wants::default());
    let scanned = observer.scan(&filter);
    scanned.map_err(|e| Failure::Run(e.to_string()))?;
    let planner = known.planner();
    let planned = observer
        .connections(&filter)
        .filter_map(|seen| Planned::of(known, &planner, seen, from));
    let mut planned: Vec<Planned<'_>> = planned.collect();
    planned.sort_by_key(|planned| {
        let thousandths = planned.gain().map(|gain| (gain * 1e3) as u64);
        (Reverse(thousandths), planned.seen.cookie)
    });
    if as_json {
        let names = Names(&planner);
        let lines = planned
            .iter()
            .map(|planned| json::line(&planned.line(&names)));
        return lines.collect();
    }
    Ok(words(&planner, &planned, known))
}

fn words(planner: &Planner<'_>, planned: &[Planned<'_>], known: &Known) -> String {
    let gains = |planned: &&Planned<'_>| planned.gain().is_some_and(|gain| gain >= GAIN);
    let unknown: Vec<&Planned<'_>> = planned.iter().filter(|p| p.ranking.is_none()).collect();
    let mut text = format!(
        "{}: {} would gain by a relay\n",
        counted(planned.len(), "connection"),
        planned.iter().filter(gains).count()
    );
    for planned in planned.iter().filter(gains).take(REPORTED) {
        planned.describe(&mut text, planner);
    }
    if let Some(first) = unknown.first() {
        let _ = writeln!(
            text,
            "\nleft out: {}, because {} has no relay's round trip to one of the ends. \
             Add lines such as `RELAY {} 12.5`, or say with --from which place this machine is.",
            counted(unknown.len(), "connection"),
            known.rtt.display(),
            first.remote().ip()
        );
    }
    text
}

/// Returns the path of a connection as it was measured; `None` before it has a round trip.
fn measured(info: &TcpInfo) -> Option<Path> {
    let rtt = info.min_rtt.or(info.rtt).filter(|rtt| !rtt.is_zero())?;
    let sent = info.data_segs_out.unwrap_or_default();
    let again = info.total_retrans;
    let lost = again.saturating_sub(info.dsack_dups.unwrap_or_default());
    let loss = match sent >= SEGMENTS {
        true => f64::from(lost) / f64::from(sent),
        false => 0.0,
    };
    Some(Path::new(rtt, loss, None))
}

// === impl Planned ===

impl<'a> Planned<'a> {
    /// Plans for a connection. `None` if nothing is to be gained: it is local, or has no round trip yet.
    fn of(
        known: &Known,
        planner: &Planner<'_>,
        seen: Observed<'a>,
        from: Option<&Endpoint>,
    ) -> Option<Self> {
        let connection = &seen.tracked.last().connection;
        let remote = connection.remote.ip().to_canonical();
        let is_local = remote.is_loopback() || remote == connection.local.ip().to_canonical();
        let path = measured(seen.tracked.last().info()?).filter(|_| !is_local)?;
        let place = |addr: IpAddr| Endpoint::Prefix(addr.into());
        let local = place(connection.local.ip().to_canonical());
        let ends = known.table.locate(from.unwrap_or(&local)).and_then(|from| {
            let to = known.table.locate(&place(remote))?;
            let mut ends = known.table.ends(&known.network, &from, &to);
            ends.direct = path;
            Some(ends)
        });
        Some(Self {
            seen,
            path,
            ranking: ends.map(|ends| planner.choose(&ends, None)),
        })
    }

    fn remote(&self) -> SocketAddr {
        self.seen.tracked.last().connection.remote
    }

    fn now(&self) -> Option<&Candidate> {
        let mut routes = self.ranking.as_ref()?.routes.iter();
        routes.find(|route| route.kind == Kind::Direct)
    }

    /// Returns the best route with a relay.
    fn best(&self) -> Option<&Candidate> {
        let mut routes = self.ranking.as_ref()?.routes.iter();
        routes.find(|route| route.kind != Kind::Direct)
    }

    /// Returns how many times as fast the file would arrive by the best relays.
    fn gain(&self) -> Option<f64> {
        let (now, best) = (self.now()?.finish, self.best()?.finish);
        (!best.is_zero()).then(|| now.as_secs_f64() / best.as_secs_f64())
    }

    fn describe(&self, text: &mut String, planner: &Planner<'_>) {
        let (Some(now), Some(best), Some(gain)) = (self.now(), self.best(), self.gain()) else {
            return;
        };
        let connection = &self.seen.tracked.last().connection;
        let who = match self.seen.process {
            Some(process) => format!(" ({}, pid {})", process.name, process.pid),
            None => String::new(),
        };
        let _ = write!(
            text,
            "\n{} -> {}{who}\n  round trip {}, loss {:.2} %\n  now: {} in {}, first byte after {}\n  \
             through {}: {} in {}, first byte after {} ({gain:.1} times as fast)\n",
            connection.local,
            connection.remote,
            text::ms(self.path.rtt().unwrap_or_default()),
            self.path.loss() * 100.0,
            text::size(planner),
            text::ms(now.finish),
            text::ms(now.first_byte),
            text::name(planner, best),
            text::size(planner),
            text::ms(best.finish),
            text::ms(best.first_byte),
        );
    }

    fn line<'b>(&self, names: &Names<'b>) -> Line<'b>
    where
        'a: 'b,
    {
        let connection = &self.seen.tracked.last().connection;
        Line {
            local: connection.local,
            remote: connection.remote,
            process: self.seen.process.map(|process| &*process.name),
            pid: self.seen.process.map(|process| process.pid),
            rtt_ms: self.path.rtt().unwrap_or_default().as_secs_f64() * 1e3,
            loss: self.path.loss(),
            gain: self.gain(),
            now: self.now().map(|route| names.route(route)),
            best: self.best().map(|route| names.route(route)),
        }
    }
}
