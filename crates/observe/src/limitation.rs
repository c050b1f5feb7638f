//! What an observer could not see, in words.

use std::fmt;

use taut_sys::privileges::{Capability, advice, has};

use crate::owner::Process;

/// Something that an observer could not see, or not all of. Displayed as a clause for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limitation {
    /// Namespaces that the caller may not enter.
    DeniedNamespaces(usize),
    /// Processes whose descriptors the caller may not inspect.
    DeniedProcesses(usize),
    /// Processes whose namespace root may not inspect: their number, and the pid of the first.
    HiddenProcesses(usize, u32),
    /// All that root sees and another user does not.
    NotRoot,
    /// Connections that did not fit into the table.
    Connections(usize),
    /// Ends of connections that were not read before the ring buffer was full.
    Ends(u64),
    /// Round trips that were not compared with those of other connections, because there are too many peers.
    RoundTrips(usize),
    /// Namespaces beyond the limit, and messages of the kernel that are unknown or incomplete.
    Incomplete(usize),
    /// Connections whose events are not counted.
    WithoutEvents(usize),
    /// There is no BPF, for this reason.
    NoBpf(String),
    /// Events cannot be counted, for this reason.
    NoEvents(String),
    /// Ends cannot be read, for this reason.
    NoEnds(String),
    /// Drops on this host cannot be counted, for this reason.
    NoHostDrops(String),
    /// Connections whose drops on this host are not counted.
    WithoutHostDrops(usize),
    /// Drops on this host are not counted completely, for this reason.
    SomeHostDrops(String),
    /// The kernel hides the names of its functions.
    NoSymbols,
    /// Packets that were dropped on this host at too many places to be counted.
    DropPlaces(u64),
}

// === impl Limitation ===

impl Limitation {
    /// Whether root, as a rule, has no such limitation.
    pub(crate) fn is_of_other_users(&self) -> bool {
        matches!(
            self,
            Self::DeniedNamespaces(_)
                | Self::DeniedProcesses(_)
                | Self::HiddenProcesses(..)
                | Self::NoBpf(_)
                | Self::NoEvents(_)
                | Self::NoEnds(_)
                | Self::NoHostDrops(_)
        )
    }
}

/// Returns a number with its subject and verb.
fn some(count: impl TryInto<u64>, one: &str, many: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

impl fmt::Display for Limitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = |count: &usize, one: &str, many: &str| {
            some(
                *count,
                &format!("connection {one}"),
                &format!("connections {many}"),
            )
        };
        let processes = |count: &usize| some(*count, "process", "processes");
        match self {
            Self::DeniedNamespaces(count) => write!(
                f,
                "{} cannot be entered, so connections are missing: {}",
                some(*count, "network namespace", "network namespaces"),
                advice(&[Capability::SysAdmin])
            ),
            Self::DeniedProcesses(count) => write!(
                f,
                "{} cannot be inspected, so connections have no process name: {}",
                processes(count),
                advice(&[Capability::SysPtrace])
            ),
            Self::HiddenProcesses(count, first) => {
                let of = match Process::of_pid(*first) {
                    Some(process) => format!("{}/{first}", process.name),
                    None => format!("process {first}"),
                };
                let more = match count - 1 {
                    0 => String::new(),
                    more => format!(" and {}", some(more, "other process", "other processes")),
                };
                write!(f, "connections of {of}{more} may be missing: ")?;
                match has(Capability::SysPtrace) {
                    true => f.write_str("the network namespace is hidden, even from root"),
                    false => f.write_str(&advice(&[Capability::SysPtrace])),
                }
            }
            Self::NotRoot => f.write_str(
                "without root, other network namespaces, other users' processes and connections between two scans are \
                 not seen",
            ),
            Self::Connections(count) => write!(
                f,
                "{} left out: raise --connections",
                connections(count, "is", "are")
            ),
            Self::Ends(count) => write!(
                f,
                "{} not read in time: the sums do not count them",
                some(*count, "ended connection was", "ended connections were")
            ),
            Self::RoundTrips(count) => write!(
                f,
                "{} not compared with those of other connections to the same peer: at most 100,000 peers are \
                 remembered, for five minutes",
                some(*count, "round trip was", "round trips were")
            ),
            Self::Incomplete(count) => write!(
                f,
                "{} left out",
                some(
                    *count,
                    "network namespace or message of the kernel is",
                    "network namespaces or messages of the kernel are"
                )
            ),
            Self::WithoutEvents(count) => write!(
                f,
                "{} no event counters (at most 100,000 have, and net.core.optmem_max has to leave room for them)",
                connections(count, "has", "have")
            ),
            Self::NoBpf(why) => write!(
                f,
                "BPF is missing, so it is unknown which applications set their buffer sizes, and connections that \
                 open and close between two scans are not reported: {why}"
            ),
            Self::NoEvents(why) => write!(
                f,
                "the TCP tracepoints (Linux 5.19) are missing, so events between scans are not counted, and \
                 connections that open and close between two scans are not reported (--no-events does without): {why}"
            ),
            Self::NoEnds(why) => write!(
                f,
                "the ring buffer of ended connections is missing, so connections that open and close between two \
                 scans are not reported: {why}"
            ),
            Self::NoHostDrops(why) => write!(
                f,
                "the kernel's reports of dropped packets (BPF, Linux 5.17) are missing, so drops on this host are not \
                 recognised: {why}"
            ),
            Self::WithoutHostDrops(count) => write!(
                f,
                "{} left out: drops on this host are counted for 16,384 connections only; narrow the filter",
                connections(count, "is", "are")
            ),
            Self::SomeHostDrops(why) => write!(
                f,
                "the kernel's reports of dropped packets are incomplete: {why}"
            ),
            Self::NoSymbols => f.write_str(
                "the names of the kernel's functions are missing (kernel.kptr_restrict), so packets that were dropped \
                 without a reason are not counted",
            ),
            Self::DropPlaces(count) => write!(
                f,
                "{} not counted: at most 16,384 kinds of drops are",
                some(
                    *count,
                    "packet that was dropped on this host is",
                    "packets that were dropped on this host are"
                )
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_and_many_have_their_words() {
        for (limitation, beginning) in [
            (Limitation::Connections(1), "1 connection is left out"),
            (Limitation::WithoutEvents(2), "2 connections have no event"),
            (
                Limitation::Ends(u64::MAX),
                "18446744073709551615 ended connections were",
            ),
            (Limitation::NoBpf("because".into()), "BPF is missing"),
        ] {
            let said = limitation.to_string();
            assert!(said.starts_with(beginning), "{said}");
        }
    }
}
