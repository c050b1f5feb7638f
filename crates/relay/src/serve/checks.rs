//! Health checks: connects to each address of forwards that have `check`, and closes the
//! connection. An address goes down after `check_fall` checks in a row have failed, at the start after the
//! first one, and is up again after `check_rise` have connected.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | checks at once | [`CHECKS`], one an address | further ones wait |
//! | a check | its interval, or `connect_timeout` if that is shorter | it has failed |

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use taut_sys::socket::Stream;
use taut_sys::{Errno, random};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use crate::config::HealthCheck;
use crate::node::{CHECKS, Check, SharedHandle};
use crate::outcome::session_end::End;

/// A check that finds an address down keeps sessions from it for this number of intervals. The next check
/// renews the time; if checks end, sessions try the address again.
const HELD: u32 = 3;

/// Checks the addresses of a node for as long as it runs.
pub(super) async fn run(node: Arc<SharedHandle>) {
    let mut schedule = Schedule::default();
    let mut checks = JoinSet::new();
    let places = Arc::new(Semaphore::new(CHECKS));
    loop {
        let wanted = node.checks();
        let addrs: Vec<_> = wanted
            .iter()
            .map(|c| (c.backend.addr.0, c.how.interval))
            .collect();
        for i in schedule.due(&addrs, Instant::now()) {
            let (node, check, places) = (node.clone(), wanted[i].clone(), places.clone());
            checks.spawn(async move {
                // The semaphore is never closed.
                let _place = places.acquire_owned().await;
                let outcome = connect(&check).await;
                node.count_check(outcome.is_ok());
                (check, outcome)
            });
        }
        tokio::select! {
            // Without checks in progress this branch is disabled.
            Some(Ok((check, outcome))) = checks.join_next() => {
                let (addr, now) = (check.backend.addr.0, Instant::now());
                let jitter = f64::from(u16::from_ne_bytes(random::bytes())) / f64::from(u16::MAX);
                if let Some(state) = schedule.done(addr, now, jitter) {
                    adopt(&check, outcome, state, now);
                }
            }
            () = until(schedule.next()) => {}
            () = node.changed.notified() => {}
        }
    }
}

async fn until(next: Option<Instant>) {
    match next {
        Some(next) => sleep_until(next.into()).await,
        None => std::future::pending().await,
    }
}

/// Connects to an address.
async fn connect(check: &Check) -> Result<(), Errno> {
    let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    let stream = Stream::connect(check.backend.addr.0, &check.options)?;
    let stream = TcpStream::from(OwnedFd::from(stream));
    let stream = tokio::net::TcpStream::from_std(stream).map_err(errno)?;
    let writable = timeout(check.timeout, stream.writable()).await;
    writable.map_err(|_| Errno::TIMEDOUT)?.map_err(errno)?;
    if let Some(error) = stream.take_error().map_err(errno)? {
        return Err(errno(error));
    }
    match stream.local_addr().map_err(errno)? == stream.peer_addr().map_err(errno)? {
        // Nothing listens at the address: the socket has connected to itself.
        true => Err(Errno::CONNREFUSED),
        false => Ok(()),
    }
}

/// Adopts the outcome of a check for new sessions.
fn adopt(check: &Check, outcome: Result<(), Errno>, state: &mut CheckState, now: Instant) {
    let backend = &check.backend;
    let until = now + check.how.interval * HELD;
    match outcome.map_err(End::of_connect) {
        // That says nothing about the address.
        Err(End::NoResources) => {}
        Ok(()) if state.record(true, check.how) => drop(backend.clear()),
        // A session may have connected meanwhile.
        Ok(()) => {
            if let Some(outage) = backend.outage() {
                backend.hold(now, until, outage.cause);
            }
        }
        Err(cause) => {
            if !state.record(false, check.how) {
                backend.hold(now, until, cause);
            }
        }
    }
}

/// Whether an address is up, by its checks.
#[derive(Debug, Default)]
struct CheckState {
    /// `None` before the first check, which decides at once.
    is_up: Option<bool>,
    /// Outcomes in a row that contradict it.
    against: u8,
}

impl CheckState {
    /// Records the outcome of a check. Returns whether the address is up.
    fn record(&mut self, connected: bool, how: HealthCheck) -> bool {
        let is_up = *self.is_up.get_or_insert(connected);
        if is_up == connected {
            self.against = 0;
            return is_up;
        }
        self.against = self.against.saturating_add(1);
        if self.against < if connected { how.rise } else { how.fall } {
            return is_up;
        }
        self.against = 0;
        self.is_up = Some(connected);
        connected
    }
}

/// When each address is checked. Without clock and sockets.
#[derive(Debug, Default)]
struct Schedule(HashMap<SocketAddr, Entry>);

#[derive(Debug)]
struct Entry {
    interval: Duration,
    progress: Progress,
    state: CheckState,
}

#[derive(Debug)]
enum Progress {
    /// The next check begins at this time.
    Waiting(Instant),
    /// A check is in progress.
    Checking,
}

impl Schedule {
    /// Returns the indices of the addresses in `wanted` whose check begins now. An address that is
    /// new or has a new interval is due at once; addresses that are no longer wanted are forgotten.
    fn due(&mut self, wanted: &[(SocketAddr, Duration)], now: Instant) -> Vec<usize> {
        self.0
            .retain(|addr, _| wanted.iter().any(|(other, _)| other == addr));
        let mut due = Vec::new();
        for (i, &(addr, interval)) in wanted.iter().enumerate() {
            let entry = self.0.entry(addr).or_insert_with(|| Entry {
                interval,
                progress: Progress::Waiting(now),
                state: CheckState::default(),
            });
            let is_new = std::mem::replace(&mut entry.interval, interval) != interval;
            match entry.progress {
                Progress::Waiting(next) if is_new || next <= now => {
                    entry.progress = Progress::Checking;
                    due.push(i);
                }
                _ => {}
            }
        }
        due
    }

    /// Records the end of a check, and returns what the checks of the address have found; `None` if the address
    /// is no longer wanted. `jitter` is random, from 0 to 1: the next check comes after 0.9 to 1.1 intervals, so
    /// that relays do not check an address at the same time.
    fn done(&mut self, addr: SocketAddr, now: Instant, jitter: f64) -> Option<&mut CheckState> {
        let entry = self.0.get_mut(&addr)?;
        let next = now + entry.interval.mul_f64(0.9 + 0.2 * jitter);
        entry.progress = Progress::Waiting(next);
        Some(&mut entry.state)
    }

    /// Returns the time of the next check.
    fn next(&self) -> Option<Instant> {
        let next = |entry: &Entry| match entry.progress {
            Progress::Waiting(next) => Some(next),
            Progress::Checking => None,
        };
        self.0.values().filter_map(next).min()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use taut_sys_testing::network::enter_private_network;

    use super::*;
    use crate::config::{Config, Forward};
    use crate::net::addr::Destination;
    use crate::node::Node;

    const SECOND: Duration = Duration::from_secs(1);

    fn addr(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    #[test]
    fn an_address_is_checked_at_once_and_then_once_an_interval() {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        let wanted = [(addr(1), SECOND), (addr(2), SECOND * 10)];
        assert_eq!(schedule.due(&wanted, start), [0, 1]);
        // Checks in progress are not begun again.
        assert!(schedule.due(&wanted, start + SECOND * 60).is_empty());
        assert_eq!(schedule.next(), None);
        schedule.done(addr(1), start, 0.5);
        schedule.done(addr(2), start, 0.0);
        assert_eq!(schedule.next(), Some(start + SECOND));
        assert_eq!(schedule.due(&wanted, start + SECOND), [0]);
        assert_eq!(schedule.due(&wanted, start + SECOND * 9), [1]);
    }

    #[test]
    fn a_new_interval_applies_at_once_and_a_removed_address_is_forgotten() {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        let slow = [(addr(1), SECOND * 600)];
        schedule.due(&slow, start);
        schedule.done(addr(1), start, 0.5);
        assert!(schedule.due(&slow, start + SECOND).is_empty());
        assert_eq!(schedule.due(&[(addr(1), SECOND)], start + SECOND), [0]);
        assert!(schedule.due(&[], start + SECOND).is_empty());
        schedule.done(addr(1), start, 0.5);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn one_lost_check_takes_no_address_down_and_one_success_brings_none_up() {
        let how = HealthCheck::every(SECOND);
        let states = |outcomes: &str| {
            let mut state = CheckState::default();
            let outcomes = outcomes.chars();
            let states = outcomes.map(|c| state.record(c == '+', how));
            states
                .map(|is_up| if is_up { '+' } else { '-' })
                .collect::<String>()
        };
        assert_eq!(states("+--+--+---"), "+++++++++-");
        assert_eq!(states("-+-+-++---"), "------+++-");
        let how = HealthCheck {
            rise: 1,
            fall: 1,
            ..how
        };
        let mut state = CheckState::default();
        assert!(state.record(true, how) && !state.record(false, how) && state.record(true, how));
    }

    #[tokio::test]
    async fn an_address_is_down_while_its_checks_fail_and_up_again_afterwards() {
        enter_private_network();
        let up = TcpListener::bind("127.0.0.1:0").unwrap();
        let down = TcpListener::bind("127.0.0.1:0").unwrap();
        let addrs = [&up, &down].map(|l| l.local_addr().unwrap());
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        let to: [Destination; 2] = addrs.map(|addr| addr.to_string().parse().unwrap());
        let mut forward = Forward::new(listen, to[0].clone());
        forward.to = to.to_vec();
        forward.check = Some(HealthCheck::every(Duration::from_millis(100)));
        let mut config = Config::new(vec![forward]);
        config.workers = Some(1);
        config.max_sessions = Some(4);
        let node = Node::start(&config).unwrap();
        let metrics = node.metrics();
        let checks = tokio::spawn(run(node.handle()));
        let until = async |what: &str, state: (u64, u64)| {
            let wait = async {
                while metrics.addresses() != state {
                    tokio::task::yield_now().await;
                }
            };
            let waited = timeout(Duration::from_secs(30), wait).await;
            waited.unwrap_or_else(|_| panic!("{what} does not come"));
        };
        drop(down);
        until("down", (1, 1)).await;
        let again = TcpListener::bind(addrs[1]).unwrap();
        until("up", (2, 0)).await;
        drop((up, again));
        until("both down", (0, 2)).await;
        checks.abort();
    }
}
