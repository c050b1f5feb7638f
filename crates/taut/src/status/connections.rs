//! The connections of this machine, and what limits them.

use std::cmp::Reverse;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::Serialize;
use taut_observe::filter::Filter;
use taut_observe::observer::{Observed, Observer};
use taut_observe::record::Rates;
use taut_observe::scan::{Scope, Wants};
use taut_observe::table::Retention;
use taut_observe::verdict::{Confidence, Factor};
use taut_observe::view::{self, Row, Sort};

use crate::failure::Failure;
use crate::observe::{Missing, wait_until};

/// The time for which connections are observed.
const WATCH: Duration = Duration::from_millis(1500);
/// The number of scans in this time.
const SCANS: u32 = 4;
/// The maximum number of connections.
const CONNECTIONS: usize = 10_000;
/// The maximum number of factors that are named in a line.
const MAX_FACTORS: usize = 3;
/// The number of connections that are shown one by one.
const TOP: usize = 12;

/// Observes the connections of this machine, a round at a time.
pub(super) struct Watched {
    observer: Observer,
    filter: Filter,
}

/// The connections of this machine.
#[derive(Debug, Default, Serialize)]
pub(super) struct Connections {
    /// Those that are open.
    pub(super) open: u64,
    /// Those that are not idle.
    pub(super) busy: u64,
    /// Those that something on this host or on the path makes slow.
    pub(super) slow: Limited,
    /// Those that do not work.
    pub(super) broken: Limited,
    /// What could not be observed; `null` if everything was.
    pub(super) unseen: Option<String>,
}

/// Connections that are limited.
#[derive(Debug, Default, Serialize)]
pub(super) struct Limited {
    /// Their number.
    pub(super) count: u64,
    /// What limits them, the most frequent factor first.
    pub(super) factors: Vec<Counted>,
}

/// A factor, and the connections that it limits.
#[derive(Debug, Serialize)]
pub(super) struct Counted {
    /// What limits them.
    pub(super) factor: Factor,
    /// Their number.
    pub(super) count: u64,
}

/// What limits the connections, and the first of them.
#[derive(Debug, Serialize)]
pub(super) struct Limits {
    /// The factors, those first that call for something to be done.
    factors: Vec<Sum>,
    /// Up to [`TOP`] connections that are not idle: those with the most trouble first, and of these the fastest.
    top: Vec<Busy>,
}

/// The connections that a factor limits.
#[derive(Debug, Serialize)]
struct Sum {
    factor: Factor,
    /// What it does to a connection: `is limited by loss on the path`.
    words: &'static str,
    /// [`Factor::trouble`].
    trouble: u8,
    count: u64,
    rates: Rates,
}

/// A connection that is not idle.
#[derive(Debug, Serialize)]
struct Busy {
    /// `None` if its owner is not known.
    process: Option<String>,
    pid: Option<u32>,
    container: Option<String>,
    local: SocketAddr,
    peer: SocketAddr,
    rates: Option<Rates>,
    factor: Factor,
    confidence: Confidence,
    trouble: u8,
    /// What limits it, in words.
    words: String,
    /// The first sentence that supports it.
    evidence: Option<String>,
    /// What to do about it.
    remedy: Option<String>,
}

// === impl Watched ===

impl Watched {
    pub(super) fn begin() -> Self {
        let keep = Retention {
            connections: CONNECTIONS,
            samples: SCANS as usize,
        };
        let wants = Wants {
            events: true,
            ends: false,
        };
        let mut observer = Observer::new(Scope::Machine, keep, wants);
        observer.measure_cpu_time();
        Self {
            observer,
            filter: Filter::all(),
        }
    }

    /// Scans for [`WATCH`], and returns what there was in this time.
    pub(super) fn round(&mut self) -> Result<Connections, Failure> {
        let began = Instant::now();
        let mut missing = Missing::default();
        let mut unseen = None;
        for scan in 0..SCANS {
            let summary = self
                .observer
                .scan(&self.filter)
                .map_err(|error| Failure::Run(error.to_string()))?;
            unseen = unseen.or(missing.sentence(&self.observer, &summary));
            if scan + 1 < SCANS {
                // Ends are not recorded: there is nothing to read meanwhile.
                wait_until(began + WATCH / (SCANS - 1) * (scan + 1), || {});
            }
        }
        Ok(self.counted(unseen))
    }

    fn counted(&self, unseen: Option<String>) -> Connections {
        let mut found = Connections {
            open: self.observer.left_out() as u64,
            unseen,
            ..Connections::default()
        };
        for seen in self.observer.connections(&self.filter) {
            found.open += 1;
            let Some((factor, _)) = self.observer.limit(&seen) else {
                continue;
            };
            found.busy += u64::from(factor != Factor::Idle);
            match factor.trouble() {
                3 => found.broken.add(factor),
                2 => found.slow.add(factor),
                _ => {}
            }
        }
        for limited in [&mut found.slow, &mut found.broken] {
            limited
                .factors
                .sort_by_key(|counted| Reverse(counted.count));
        }
        found
    }

    /// Returns what limits the connections of the last round.
    pub(super) fn limits(&self) -> Limits {
        let mut factors: Vec<Sum> = Vec::new();
        let mut rows = Vec::new();
        for seen in self.observer.connections(&self.filter) {
            let Some(limit) = self.observer.limit(&seen) else {
                continue;
            };
            let row = Row::of(&seen).with_limit(Some(limit));
            add(&mut factors, limit.0, row.rates.unwrap_or_default());
            if limit.0 != Factor::Idle {
                rows.push((row, seen));
            }
        }
        factors.sort_by_key(|sum| (Reverse(sum.trouble), Reverse(sum.count)));
        view::sort_by(&mut rows, |(row, _)| row, Sort::Trouble);
        rows.truncate(TOP);
        let top = rows.iter().filter_map(|(row, seen)| self.busy(row, seen));
        Limits {
            factors,
            top: top.collect(),
        }
    }

    fn busy(&self, row: &Row, seen: &Observed<'_>) -> Option<Busy> {
        let verdict = self.observer.verdict(seen)?;
        let (factor, confidence) = (verdict.factor, verdict.confidence);
        let process = seen.process;
        Some(Busy {
            process: process.map(|process| process.name.to_string()),
            pid: process.map(|process| process.pid),
            container: process.and_then(|process| process.container.clone()),
            local: row.local,
            peer: row.peer,
            rates: row.rates,
            factor,
            confidence,
            trouble: factor.trouble(),
            words: format!("{}{}", factor.sentence(), confidence.doubt()),
            evidence: verdict.evidence().into_iter().next().map(|one| one.text),
            remedy: verdict.remedy().map(|remedy| remedy.into_owned()),
        })
    }

    /// Returns a connection of the last round.
    pub(super) fn get(&self, cookie: u64) -> Option<Observed<'_>> {
        self.observer.get(cookie)
    }
}

fn add(factors: &mut Vec<Sum>, factor: Factor, rates: Rates) {
    let place = factors.iter().position(|sum| sum.factor == factor);
    let place = place.unwrap_or_else(|| {
        factors.push(Sum {
            factor,
            words: factor.sentence(),
            trouble: factor.trouble(),
            count: 0,
            rates: Rates::default(),
        });
        factors.len() - 1
    });
    let sum = &mut factors[place];
    sum.count += 1;
    sum.rates.sent += rates.sent;
    sum.rates.received += rates.received;
}

// === impl Limited ===

impl Limited {
    fn add(&mut self, factor: Factor) {
        self.count += 1;
        match self
            .factors
            .iter_mut()
            .find(|counted| counted.factor == factor)
        {
            Some(counted) => counted.count += 1,
            None => self.factors.push(Counted { factor, count: 1 }),
        }
    }

    /// Returns the most frequent factors: `loss 3, receive-buffer 1`.
    pub(super) fn named(&self) -> String {
        let named = self.factors.iter().take(MAX_FACTORS);
        let named = named.map(|counted| format!("{} {}", counted.factor.name(), counted.count));
        named.collect::<Vec<_>>().join(", ")
    }
}
