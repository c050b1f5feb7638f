//! Threads that answer over UDP. They take no lock for a query.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | a query | [`QUERY`] bytes | the rest is cut off, and the query is malformed |
//! | queries that wait | the receive buffer, [`RECEIVE_BUFFER`] or the kernel's maximum | the kernel drops further ones |
//! | answers that wait | the send buffer | `taut_dns_dropped_total{cause="send"}` |
//! | answers to a network | `rate_limit`, and ten times as many beyond it to queries whose cookie proves their address | `taut_dns_truncated_total{cause="rate"}`, `taut_dns_dropped_total{cause="rate"}` |

use std::net::IpAddr;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use taut_sys::Errno;
use taut_sys::datagram::{Received, UdpPort};

use crate::answer::{Asker, Transport};
use crate::cookie::Proof;
use crate::rate_limit::{Admission, RateLimits, Verdict};
use crate::state::{Shared, seconds_since_1970};

/// The longest query: a question and an OPT record with every option that resolvers send are shorter.
const QUERY: usize = 4096;

/// The receive buffer that is asked for, for a burst of 2,000 queries.
pub(crate) const RECEIVE_BUFFER: usize = 2 << 20;

/// Queries that are taken from one socket before the others get their turn.
const TURN: usize = 64;

/// Answers the queries that arrive at `ports`, and returns only with an error.
pub(crate) fn run(mut ports: Vec<UdpPort>, shared: &Shared, workers: usize) -> Result<(), Errno> {
    let started = Instant::now();
    let mut limit = Limit::new(shared, workers);
    let (mut query, mut answer) = (vec![0; QUERY], Vec::with_capacity(QUERY));
    loop {
        wait(&ports)?;
        let current = shared.current.load();
        limit.follow(current.config.rate_limit, workers);
        for port in &mut ports {
            for _ in 0..TURN {
                // A failure concerns one datagram, such as one whose checksum is wrong.
                let Ok(Some(received)) = port.receive(&mut query) else {
                    break;
                };
                let source = received.source.ip().to_canonical();
                let Received { len, sent_to, .. } = received;
                let now = seconds_since_1970();
                let is_proven =
                    || current.answers.proof(&query[..len], source, now) == Some(Proof::Proven);
                let Admission { verdict, is_spared } =
                    limit.admit(source, &current.config.unlimited, started, is_proven);
                if is_spared {
                    shared.metrics.spared.inc();
                }
                let transport = match verdict {
                    Verdict::Answer => Transport::Udp,
                    Verdict::Truncate => Transport::UdpTruncated,
                    Verdict::Drop => {
                        shared.metrics.count_rate_limited();
                        continue;
                    }
                };
                let asker = Asker {
                    source,
                    transport,
                    now,
                };
                let reply = current.answers.respond(&query[..len], asker, &mut answer);
                shared
                    .metrics
                    .count(transport, &reply, &current.relay_metrics);
                let is_sent =
                    answer.is_empty() || port.send(&answer, received.source, sent_to).is_ok();
                if !is_sent {
                    shared.metrics.not_sent.inc();
                }
            }
        }
    }
}

fn wait(ports: &[UdpPort]) -> Result<(), Errno> {
    let wait = ports.iter().map(|port| PollFd::new(port, PollFlags::IN));
    match poll(&mut wait.collect::<Vec<_>>(), None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The share of the rate that a thread enforces: the kernel spreads the clients of a network, which
/// have different ports, over the threads.
struct Limit {
    rate: Option<f64>,
    tables: Option<RateLimits>,
}

// === impl Limit ===

impl Limit {
    fn new(shared: &Shared, workers: usize) -> Self {
        let mut limit = Self {
            rate: None,
            tables: None,
        };
        limit.follow(shared.current.load().config.rate_limit, workers);
        limit
    }

    /// Adopts a changed rate.
    fn follow(&mut self, rate: Option<f64>, workers: usize) {
        if self.rate != rate {
            self.rate = rate;
            #[expect(clippy::cast_precision_loss, reason = "few threads")]
            let share = rate.map(|rate| rate / workers.max(1) as f64);
            self.tables = share.map(RateLimits::new);
        }
    }

    fn admit(
        &mut self,
        source: IpAddr,
        unlimited: &[ipnet::IpNet],
        since: Instant,
        is_proven: impl FnOnce() -> bool,
    ) -> Admission {
        match &mut self.tables {
            Some(tables) if !unlimited.iter().any(|net| net.contains(&source)) => {
                tables.admit(source, since.elapsed(), is_proven)
            }
            _ => Admission {
                verdict: Verdict::Answer,
                is_spared: false,
            },
        }
    }
}
