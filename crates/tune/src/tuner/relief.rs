//! While memory is short: who rests gives back, and has it again when that is past.

use taut_observe::filter::Filter;

use super::{Planned, REMEMBERED, Tuner, asked};
use crate::budget::Claim;
use crate::demand::Direction;
use crate::plan::Change;
use crate::pressure::{AT_ONCE, relieve};

impl Tuner {
    /// What is to be made smaller, or is given back.
    pub(super) fn relief(&mut self, everything: &Filter) -> Vec<Planned> {
        let memory = match (self.memory)() {
            Ok(memory) => memory,
            Err(error) => {
                tracing::debug!(%error, "how much memory TCP has is not known");
                return Vec::new();
            }
        };
        if let Some(excess) = memory.excess() {
            // What was made smaller before gives that much, when it comes to be needed.
            let given = self
                .relieved
                .values()
                .fold(0, |sum: u64, gives| sum.saturating_add(*gives));
            return self.shrink(everything, excess.saturating_sub(given));
        }
        match memory.is_past() {
            true => self.restore(),
            false => Vec::new(),
        }
    }

    /// Memory is short, as far as that is known.
    pub(super) fn is_short(&self) -> bool {
        (self.memory)().is_ok_and(|memory| memory.excess().is_some())
    }

    fn shrink(&mut self, everything: &Filter, excess: u64) -> Vec<Planned> {
        let mut claims = Vec::new();
        for seen in self.observer.seen(everything) {
            // Of one that has just begun it is not known whether it rests.
            let Some(window) = seen.tracked.window() else {
                continue;
            };
            if self.lists.leaves_alone(&seen) {
                continue;
            }
            let connection = &seen.tracked.last().connection;
            for direction in [Direction::Send, Direction::Receive] {
                let key = (seen.cookie, direction);
                if self.relieved.contains_key(&key) || self.tried.contains_key(&key) {
                    continue;
                }
                let Some(demand) = asked(&seen, Some(&window), direction, self.cap) else {
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
            if self.tried.len() >= REMEMBERED || self.relieved.len() >= REMEMBERED {
                break;
            }
            // What is only said is not said again in each look.
            if self.actuators.is_none() {
                self.tried.insert((cookie, direction), self.look);
            }
            if let Some(seen) = self.observer.get(cookie) {
                planned.push(Planned::of(change, &seen));
            }
        }
        planned
    }

    /// It was made smaller, or that was said: so much it gives.
    pub(super) fn relieve(&mut self, change: &Change) {
        if let Change::Shrink {
            cookie,
            direction,
            demand,
            to,
        } = change
        {
            let gives = demand.has.saturating_sub(*to);
            self.relieved.insert((*cookie, *direction), gives);
        }
    }

    /// Those that were made smaller are as before.
    fn restore(&mut self) -> Vec<Planned> {
        if self.actuators.is_none() {
            self.relieved.clear();
        }
        let some: Vec<_> = self.relieved.keys().copied().take(AT_ONCE).collect();
        let mut planned = Vec::new();
        for (cookie, direction) in some {
            self.relieved.remove(&(cookie, direction));
            // One that has ended is forgotten with all others.
            if let Some(seen) = self.observer.get(cookie) {
                let change = Change::Restore { cookie, direction };
                planned.push(Planned::of(change, &seen));
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
    use taut_observe::scan::Scope;
    use taut_observe::table::Keep;
    use taut_sys::netns::Netns;
    use taut_sys::pidfd_socket::{Buffers, Pidfd};

    use super::*;
    use crate::actuate::Actuators;
    use crate::journal::Journal;
    use crate::pressure::Memory;
    use crate::tuner::{Lists, Outcome, Told};

    /// A namespace that goes with this.
    struct Space(Netns);

    impl Drop for Space {
        fn drop(&mut self) {
            let _ = Netns::delete(self.0.name());
        }
    }

    static IN_USE: AtomicU64 = AtomicU64::new(0);

    /// The machine's own is not made short for a test.
    #[expect(clippy::unnecessary_wraps, reason = "as the one that is read")]
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
    fn who_rests_gives_back_while_memory_is_short_and_has_it_again() {
        let name = format!("taut-relief-{}", std::process::id());
        let space = Space(Netns::create(&name).unwrap());
        let up = std::process::Command::new("ip")
            .args(["-n", &name, "link", "set", "lo", "up"])
            .status();
        assert!(up.unwrap().success());
        let connect = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (near, listener.accept().unwrap().0)
        };
        let (near, _far) = space.0.run(connect).unwrap();
        // One that has a large buffer, and no use for it.
        sockopt::set_socket_send_buffer_size_force(&near, 8 << 20).unwrap();
        let large = buffers(&near);
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::free(&dir.path().join("journal")).unwrap();
        let keep = Keep {
            connections: 100,
            samples: 2,
        };
        let observer = Observer::new(Scope::Named(name), keep, false);
        let lists = Lists {
            only: Filter::all(),
            skip: Vec::new(),
        };
        let mut tuner = Tuner::new(observer, lists, Some(Actuators::new(journal)));
        tuner.memory = memory;
        let mut round = || -> Vec<Told> {
            let told = tuner.round(|| false).unwrap().told;
            told.into_iter()
                .filter(|told| told.connection.is_some())
                .collect()
        };
        round();
        assert_eq!(round(), []);
        assert_eq!(buffers(&near), large);
        // It is short: the largest gives, which is enough.
        IN_USE.store(799, Ordering::SeqCst);
        let told = round();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].outcome, Outcome::Made);
        assert!(
            told[0].change.ends_with("KiB, until there is memory again"),
            "{told:?}"
        );
        let small = buffers(&near);
        assert!(small.send < large.send / 4, "{small:?}");
        // Between the bounds nothing is done.
        IN_USE.store(650, Ordering::SeqCst);
        assert_eq!(round(), []);
        assert_eq!(buffers(&near), small);
        IN_USE.store(100, Ordering::SeqCst);
        let told = round();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].outcome, Outcome::Made);
        assert_eq!(buffers(&near), large);
        assert_eq!(round(), []);
        let undone = tuner.end();
        assert_eq!(undone.failed + undone.others, 0, "{undone:?}");
    }
}
