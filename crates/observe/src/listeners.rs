//! Sockets that listen, and the connection attempts that they dropped while they were observed.
//!
//! A SYN that is dropped makes no connection, so no scan of connections shows it: the client waits
//! for a second and tries again.

use std::cmp::Reverse;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;
use serde::Serialize;
use taut_sys::netns::NetnsId;
use taut_sys::plural::counted;
use taut_sys::sock_diag::{Listener, State};

use crate::filter::{Filter, Subject};
use crate::namespaces::OWN;
use crate::owner::{Owners, Process};
use crate::scan::Scanner;

/// The maximum number of sockets whose first figures are remembered. What those of further
/// namespaces drop is not reported.
const LISTENERS: usize = 100_000;
/// The maximum number of sockets that are reported: those that dropped most.
const REPORTED: usize = 100;
/// The maximum number of times that owners are looked for, each in at most 20,000 descriptors.
const LOOKS: usize = 10;

/// The namespaces and sockets that listened when the observation began.
#[derive(Debug)]
pub(crate) struct Listeners {
    began: Instant,
    /// The connection attempts that all listeners of a namespace had dropped until then
    /// (`ListenDrops`). A namespace that was not listed whole is not in it.
    namespaces: FxHashMap<NetnsId, u64>,
    /// The drops of each socket until then, by cookie.
    before: FxHashMap<u64, u32>,
}

/// A socket that dropped connection attempts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dropping {
    /// The name of its network namespace.
    pub netns: Box<str>,
    /// Its address.
    pub local: SocketAddr,
    /// The user that has made it.
    pub uid: u32,
    /// The process that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// That process's PID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Connection attempts that it dropped, at the most: segments, so a client that repeats its SYN
    /// counts each time. The socket counts other segments that it cannot use, too; these are left
    /// out as far as the namespace's count of attempts shows them.
    pub dropped: u32,
    /// The time of these, in seconds.
    pub seconds: f64,
    /// Connections that wait to be accepted, at the end.
    pub waiting: u32,
    /// The maximum that may wait.
    pub most_waiting: u32,
}

// === impl Listeners ===

impl Listeners {
    /// Remembers what each socket has dropped so far.
    pub(crate) fn begin(scanner: &Scanner) -> Self {
        let mut began = Self {
            began: Instant::now(),
            namespaces: FxHashMap::default(),
            before: FxHashMap::default(),
        };
        scanner.listeners(listen_drops, |namespace, listeners, drops| {
            let Some(drops) = drops else { return };
            if began.before.len() + listeners.len() <= LISTENERS {
                began.namespaces.insert(namespace.id, drops);
                let drops = listeners.iter().map(|one| (one.cookie, one.drops));
                began.before.extend(drops);
            }
        });
        began
    }

    /// Returns those that the filter matches and that have dropped connection attempts since, in
    /// descending order of their number.
    pub(crate) fn dropping(&self, scanner: &Scanner, filter: &Filter) -> Vec<Dropping> {
        let mut found: Vec<(Arc<str>, Listener, u32)> = Vec::new();
        scanner.listeners(listen_drops, |namespace, listeners, drops| {
            let before = self.namespaces.get(&namespace.id);
            let (Some(before), Some(drops)) = (before, drops) else {
                return;
            };
            let attempts = drops.saturating_sub(*before);
            for listener in listeners {
                let dropped = self.dropped(&listener, attempts);
                if dropped > 0 && found.len() < LISTENERS {
                    found.push((namespace.name.clone(), listener, dropped));
                }
            }
        });
        let seconds = self.began.elapsed().as_secs_f64();
        let owners = owners_of(&found);
        let mut dropping: Vec<_> = found
            .iter()
            .filter_map(|(netns, listener, dropped)| {
                let process = owners.of(listener.cookie).map(|process| &**process);
                let subject = subject(netns, listener, process);
                let is_wanted = filter.matches(&subject);
                is_wanted.then(|| Dropping::of(netns, listener, (*dropped, seconds), process))
            })
            .collect();
        dropping.sort_by_key(|one| (Reverse(one.dropped), one.local));
        dropping.truncate(REPORTED);
        dropping
    }

    /// Returns what a socket of a namespace that is in `namespaces` has dropped since the beginning,
    /// when all sockets there have dropped this many connection attempts. One that was not there
    /// then is new.
    fn dropped(&self, listener: &Listener, attempts: u64) -> u32 {
        let before = self.before.get(&listener.cookie).unwrap_or(&0);
        let dropped = listener.drops.wrapping_sub(*before);
        dropped.min(u32::try_from(attempts).unwrap_or(u32::MAX))
    }
}

/// Returns `ListenDrops` of the calling thread's namespace.
fn listen_drops() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").ok()?;
    counter(&text, "TcpExt:", "ListenDrops")
}

/// Returns a counter of netstat's format: a line with names, and one with their values.
fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut both = names.split_whitespace().zip(values.split_whitespace());
    both.find(|(found, _)| *found == name)?.1.parse().ok()
}

fn owners_of(found: &[(Arc<str>, Listener, u32)]) -> Owners {
    let mut owners = Owners::default();
    for _ in 0..LOOKS {
        if found
            .iter()
            .all(|(_, one, _)| owners.of(one.cookie).is_some())
        {
            break;
        }
        owners.update(found.iter().map(|(_, one, _)| (one.cookie, one.inode)));
    }
    owners
}

fn subject<'a>(netns: &'a str, listener: &Listener, process: Option<&'a Process>) -> Subject<'a> {
    Subject {
        local: listener.local,
        // It has no peer.
        remote: SocketAddr::from(([0, 0, 0, 0], 0)),
        state: State::Closed,
        congestion_control: None,
        uid: listener.uid,
        cgroup: listener.cgroup,
        netns,
        process,
    }
}

// === impl Dropping ===

impl Dropping {
    fn of(
        netns: &str,
        listener: &Listener,
        (dropped, seconds): (u32, f64),
        process: Option<&Process>,
    ) -> Self {
        Self {
            netns: netns.into(),
            local: listener.local,
            uid: listener.uid,
            process: process.map(|process| process.name.to_string()),
            pid: process.map(|process| process.pid),
            dropped,
            seconds,
            waiting: listener.waiting,
            // The kernel lets one more wait than the backlog.
            most_waiting: listener.backlog.saturating_add(1),
        }
    }

    /// Returns what happened and what helps, in two lines.
    pub(crate) fn text(&self) -> String {
        let process = match (&self.process, self.pid) {
            (Some(name), Some(pid)) => format!(" ({name}, pid {pid})"),
            _ => String::new(),
        };
        let netns = match &*self.netns {
            OWN => String::new(),
            netns => format!(" in namespace {netns}"),
        };
        let attempts = counted(self.dropped, "connection attempt");
        let remedy = match self.waiting >= self.most_waiting {
            true => {
                "have it accept sooner, or let more wait (the backlog of listen(), net.core.somaxconn)"
            }
            false => {
                "its queue is not full now: if it accepts in bursts, let more wait (the backlog of listen(), \
                 net.core.somaxconn); else look for SYN floods and a lack of memory (`nstat -az TcpExtListenOverflows TcpExtTCPReqQFullDrop`)"
            }
        };
        format!(
            "listener {}{process}{netns}\n  dropped {attempts} in {:.1} s; {} of at most {} wait to be accepted\n  \
             what helps: {remedy}\n",
            self.local,
            self.seconds,
            self.waiting,
            counted(self.most_waiting, "connection")
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    fn listener(cookie: u64, drops: u32) -> Listener {
        Listener {
            local: SocketAddr::from(([192, 0, 2, 1], 80)),
            cookie,
            inode: 7,
            uid: 33,
            cgroup: None,
            waiting: 0,
            backlog: 128,
            drops,
        }
    }

    #[test]
    fn drops_are_those_since_the_beginning_also_when_the_count_wraps() {
        let began = Listeners {
            began: Instant::now(),
            namespaces: FxHashMap::default(),
            before: [(1, u32::MAX - 1)].into_iter().collect(),
        };
        assert_eq!(began.dropped(&listener(1, u32::MAX - 1), 9), 0);
        assert_eq!(began.dropped(&listener(1, 3), 9), 5);
        // It is new.
        assert_eq!(began.dropped(&listener(2, 3), 9), 3);
        // The rest were no connection attempts, such as resets of connections that have ended.
        assert_eq!(began.dropped(&listener(1, 3), 2), 2);
        assert_eq!(began.dropped(&listener(1, 3), 0), 0);
    }

    #[test]
    fn a_counter_is_found_by_its_name() {
        let text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 1 2 3\nIpExt: A\nIpExt: 9\n";
        assert_eq!(counter(text, "TcpExt:", "ListenDrops"), Some(3));
        assert_eq!(counter(text, "IpExt:", "ListenDrops"), None);
        assert_eq!(
            counter("TcpExt: ListenDrops", "TcpExt:", "ListenDrops"),
            None
        );
        assert!(listen_drops().is_some());
    }

    #[test]
    fn a_filter_tests_the_address_and_the_owner_of_a_listener() {
        let one = listener(1, 1);
        for (filter, expected) in [
            ("port 80", true),
            ("192.0.2.1", true),
            ("uid 33", true),
            ("dport 80", false),
            ("state established", false),
        ] {
            let filter: Filter = filter.parse().unwrap();
            assert_eq!(
                filter.matches(&subject("-", &one, None)),
                expected,
                "{filter:?}"
            );
        }
    }

    #[test]
    fn the_remedy_depends_on_whether_the_queue_is_full() {
        let full = Listener {
            waiting: 129,
            ..listener(1, 1)
        };
        let full = Dropping::of("web", &full, (1, 5.0), None).text();
        assert!(full.starts_with("listener 192.0.2.1:80 in namespace web\n  dropped 1 connection attempt in 5.0 s; 129 of at most 129"), "{full}");
        assert!(full.contains("have it accept sooner"), "{full}");
        let empty = Dropping::of("-", &listener(1, 9), (9, 5.0), None).text();
        assert!(empty.contains("SYN floods"), "{empty}");
    }
}
