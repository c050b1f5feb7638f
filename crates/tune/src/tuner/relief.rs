//! Shrinks idle buffers while memory is short, and restores them afterwards.

use taut_observe::filter::Filter;

use super::planned::{Planned, demand_of};
use super::{MAX_ATTEMPTS, Tuner};
use crate::budget::Claim;
use crate::demand::Direction;
use crate::plan::Change;
use crate::pressure::{MAX_AT_ONCE, relieve};

impl Tuner {
    /// Plans which buffers to shrink or restore.
    pub(super) fn plan_relief(&mut self, everything: &Filter) -> Vec<Planned> {
        let memory = match (self.memory)() {
            Ok(memory) => memory,
            Err(error) => {
                tracing::debug!(%error, "the memory of TCP cannot be read");
                return Vec::new();
            }
        };
        if let Some(excess) = memory.excess() {
            // Buffers that are already shrunk give up their part when it is needed, so that part
            // counts as freed.
            let given = self
                .shrunk
                .values()
                .fold(0, |sum: u64, gives| sum.saturating_add(*gives));
            return self.plan_shrinking(everything, excess.saturating_sub(given));
        }
        match memory.is_relieved() {
            true => self.plan_restoring(),
            false => Vec::new(),
        }
    }

    /// Whether memory is known to be short.
    pub(super) fn is_memory_short(&self) -> bool {
        (self.memory)().is_ok_and(|memory| memory.excess().is_some())
    }

    fn plan_shrinking(&mut self, everything: &Filter, excess: u64) -> Vec<Planned> {
        let mut claims = Vec::new();
        for seen in self.observer.connections(everything) {
            // It is unknown yet whether a new connection is idle.
            let Some(window) = seen.tracked.window() else {
                continue;
            };
            if self.selection.leaves_alone(&seen)
                || !seen.is_owner_sought
                || self.is_foreign(&seen.tracked.netns)
            {
                continue;
            }
            let connection = &seen.tracked.last().connection;
            for direction in [Direction::Send, Direction::Receive] {
                let key = (seen.cookie, direction);
                if self.shrunk.contains_key(&key) || self.attempts.contains_key(&key) {
                    continue;
                }
                let Some(demand) = demand_of(&seen, Some(&window), direction, self.cap) else {
                    continue;
                };
                claims.push(Claim {
                    cookie: seen.cookie,
                    direction,
                    demand,
                    is_left_alone: false,
                    cgroup: connection.cgroup,
                    destination: connection.remote.ip().to_canonical(),
                });
            }
        }
        let mut planned = Vec::new();
        for change in relieve(&claims, excess) {
            let Change::Shrink {
                cookie, direction, ..
            } = change
            else {
                continue;
            };
            if self.attempts.len() >= MAX_ATTEMPTS || self.shrunk.len() >= MAX_ATTEMPTS {
                break;
            }
            // Advice is not repeated in each scan.
            if self.actuators.is_none() {
                self.attempts.insert((cookie, direction), self.scans);
            }
            if let Some(seen) = self.observer.get(cookie) {
                planned.push(Planned::new(change, &seen));
            }
        }
        planned
    }

    /// Remembers a buffer that was shrunk or advised to be shrunk.
    pub(super) fn note_shrunk(&mut self, change: &Change) {
        if let Change::Shrink {
            cookie,
            direction,
            demand,
            to,
        } = change
        {
            let gives = demand.size.saturating_sub(*to);
            self.shrunk.insert((*cookie, *direction), gives);
        }
    }

    fn plan_restoring(&mut self) -> Vec<Planned> {
        if self.actuators.is_none() {
            self.shrunk.clear();
        }
        let some: Vec<_> = self.shrunk.keys().copied().take(MAX_AT_ONCE).collect();
        let mut planned = Vec::new();
        for (cookie, direction) in some {
            self.shrunk.remove(&(cookie, direction));
            // A connection that has ended is forgotten elsewhere.
            if let Some(seen) = self.observer.get(cookie) {
                let change = Change::Restore { cookie, direction };
                planned.push(Planned::new(change, &seen));
            }
        }
        planned
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::net::sockopt;
    use taut_observe::observer::Observer;
    use taut_observe::scan::{Scope, Wants};
    use taut_observe::table::Retention;
    use taut_sys::pidfd_socket::{Buffers, Pidfd};

    use super::*;
    use crate::pressure::Memory;
    use crate::report::{ChangeReport, Outcome};
    use crate::testing::{TestNetns, actuators};
    use crate::tuner::Selection;

    static IN_USE: AtomicU64 = AtomicU64::new(0);

    /// Returns the memory that the test sets, instead of the machine's.
    #[expect(clippy::unnecessary_wraps, reason = "the type of Memory::read")]
    fn memory() -> io::Result<Memory> {
        Ok(Memory {
            in_use: IN_USE.load(Ordering::SeqCst),
            pressure: 800,
        })
    }

    fn buffers(stream: &TcpStream) -> Buffers {
        let own = Pidfd::open(std::process::id()).unwrap();
        let cookie = sockopt::socket_cookie(stream).unwrap();
        let lent = own.socket(stream.as_raw_fd(), cookie).unwrap().unwrap();
        lent.buffers().unwrap()
    }

    #[test]
    fn an_idle_buffer_is_shrunk_while_memory_is_short_and_restored_afterwards() {
        let host = TestNetns::new("relief");
        let name = host.name().to_owned();
        let up = std::process::Command::new("ip")
            .args(["-n", &name, "link", "set", "lo", "up"])
            .status();
        assert!(up.unwrap().success());
        let connect = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (near, listener.accept().unwrap().0)
        };
        let (near, _far) = host.run(connect).unwrap();
        // An idle connection with a large buffer.
        sockopt::set_socket_send_buffer_size_force(&near, 8 << 20).unwrap();
        let large = buffers(&near);
        let (actuators, _dir) = actuators();
        let keep = Retention {
            connections: 100,
            samples: 2,
        };
        let observer = Observer::new(Scope::Named(name), keep, Wants::default());
        let selection = Selection {
            only: Filter::all(),
            skip: Vec::new(),
        };
        let mut tuner = Tuner::new(observer, selection, Some(actuators));
        tuner.memory = memory;
        let mut round = || -> Vec<ChangeReport> {
            let reports = tuner.round(|| false).unwrap().reports;
            reports
                .into_iter()
                .filter(|report| report.connection.is_some())
                .collect()
        };
        round();
        assert_eq!(round(), []);
        assert_eq!(buffers(&near), large);
        // Memory is short: shrinking the largest buffer is enough.
        IN_USE.store(799, Ordering::SeqCst);
        let reports = round();
        assert_eq!(reports.len(), 1, "{reports:?}");
        assert_eq!(reports[0].outcome, Outcome::Applied);
        assert!(
            reports[0]
                .change
                .ends_with("KiB, until memory is no longer short"),
            "{reports:?}"
        );
        let small = buffers(&near);
        assert!(small.send < large.send / 4, "{small:?}");
        // Between the two bounds no buffer changes.
        IN_USE.store(650, Ordering::SeqCst);
        assert_eq!(round(), []);
        assert_eq!(buffers(&near), small);
        IN_USE.store(100, Ordering::SeqCst);
        let reports = round();
        assert_eq!(reports.len(), 1, "{reports:?}");
        assert_eq!(reports[0].outcome, Outcome::Applied);
        assert_eq!(buffers(&near), large);
        assert_eq!(round(), []);
        let undone = tuner.end();
        assert_eq!(undone.failed + undone.foreign, 0, "{undone:?}");
    }
}
