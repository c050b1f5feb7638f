//! Arguments and messages shared by `taut top`, `taut why` and `taut watch`.

use std::collections::HashSet;
use std::mem::{Discriminant, discriminant};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use taut_observe::filter::Filter;
use taut_observe::limitation::Limitation;
use taut_observe::observer::Observer;
use taut_observe::scan::{ScanSummary, Scope, Wants};
use taut_observe::table::Retention;

use crate::confine::SandboxArgs;
use crate::failure::Failure;

/// The syntax of filters, for the end of the help of a command.
macro_rules! filter_help {
    () => {
        "\
A FILTER is one or more tests, joined by and, or, not and parentheses:
  10.0.0.9   10.0.0.0/8   2001:db8::1     an address or a network, at either end
  10.0.0.9:443  [2001:db8::1]:443  :443   a port of an address, or of any
  src ...   dst ...                       one of these at this end, at the peer
  host example.com                        a host's addresses, looked up once
  port 443  sport 8000-8100  dport https  a port, a range, a service
  dport != 443  sport >= 8000             a comparison; = and != of other tests
  nginx   process 'ngin*'                 a process, by its name or a pattern
  812   pid 812                           a process by its pid
  user www-data   uid 33                  the owner of the socket
  cgroup /system.slice/nginx.service      a cgroup, and those below it
  container '0123*'   netns blue   cc bbr   state close-wait"
    };
}
pub(crate) use filter_help;

/// The maximum time between two readings of ended connections: the kernel's ring buffer has a
/// limit.
const POLL_ENDED: Duration = Duration::from_millis(500);

/// Waits until `until`, and at least twice a second calls `poll`, which reads the connections that
/// have ended.
pub(crate) fn wait_until(until: Instant, mut poll: impl FnMut()) {
    while let Some(pause) = next_pause(Instant::now(), until) {
        std::thread::sleep(pause);
        poll();
    }
}

/// Returns the time to the next reading; `None` from `until` on.
fn next_pause(now: Instant, until: Instant) -> Option<Duration> {
    let left = until.saturating_duration_since(now);
    (!left.is_zero()).then(|| left.min(POLL_ENDED))
}

/// Whether a command reports connections that have ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    Recorded,
    Ignored,
}

/// Arguments that choose connections.
#[derive(ClapArgs)]
pub(crate) struct ConnectionArgs {
    /// Only these connections: `10.0.0.9:443`, `dst 10.0.0.0/8 and dport https`, a process; see below
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,

    /// Only connections of this network namespace (a name in /run/netns)
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with = "own_netns",
        help_heading = "Connections"
    )]
    netns: Option<String>,

    /// Only connections of the network namespace in which this is started
    #[arg(long, help_heading = "Connections")]
    own_netns: bool,

    /// Do not count events between scans: counting costs a little time at each segment
    #[arg(long, help_heading = "Connections")]
    no_events: bool,

    /// Keep at most this many connections, and only count the others [default: 100000; `why`: 10000]
    #[arg(long, value_name = "COUNT", value_parser = count, help_heading = "Connections")]
    connections: Option<usize>,

    #[command(flatten)]
    sandbox: SandboxArgs,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("must be a number of at least 1".into()),
        Ok(count) => Ok(count),
    }
}

// === impl ConnectionArgs ===

impl ConnectionArgs {
    /// Returns whether there is a sandbox.
    pub(crate) fn sandbox(&self) -> SandboxArgs {
        self.sandbox
    }

    /// Parses the filter.
    ///
    /// # Errors
    /// If the filter does not parse.
    pub(crate) fn filter(&self) -> Result<Filter, Failure> {
        let filter = self.text();
        filter
            .parse()
            .map_err(|e| Failure::Usage(format!("filter {filter:?}: {e} (--help has the syntax)")))
    }

    /// Whether events may be counted, which costs a little time at each.
    pub(crate) fn counts_events(&self) -> bool {
        !self.no_events
    }

    /// Returns the filter as the user typed it.
    pub(crate) fn text(&self) -> String {
        self.filter.join(" ")
    }

    /// Whether the connections of all network namespaces are meant.
    pub(crate) fn is_of_machine(&self) -> bool {
        self.netns.is_none() && !self.own_netns
    }

    /// Returns an observer that keeps `samples` of each connection. `connections` is the default of
    /// `--connections`.
    pub(crate) fn observer(&self, connections: usize, samples: usize, ends: Ends) -> Observer {
        let scope = match &self.netns {
            Some(name) => Scope::Named(name.clone()),
            None if self.own_netns => Scope::Own,
            None => Scope::Machine,
        };
        let keep = Retention {
            connections: self.connections.unwrap_or(connections),
            samples,
        };
        let events = self.counts_events();
        let wants = Wants {
            events,
            ends: events && ends == Ends::Recorded,
        };
        Observer::new(scope, keep, wants)
    }
}

/// Reports what cannot be observed, each kind once.
#[derive(Default)]
pub(crate) struct Missing {
    reported: HashSet<Discriminant<Limitation>>,
}

// === impl Missing ===

impl Missing {
    /// Writes to standard error what is missing in a scan and was not reported before.
    pub(crate) fn report(&mut self, observer: &Observer, summary: &ScanSummary) {
        if let Some(sentence) = self.sentence(observer, summary) {
            crate::log::say(&sentence);
        }
    }

    /// Returns what is missing in a scan and was not reported before.
    pub(crate) fn sentence(
        &mut self,
        observer: &Observer,
        summary: &ScanSummary,
    ) -> Option<String> {
        let mut new = observer.limitations(summary);
        new.retain(|limitation| self.reported.insert(discriminant(limitation)));
        let clauses: Vec<_> = new.iter().map(Limitation::to_string).collect();
        (!clauses.is_empty()).then(|| clauses.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_twice_a_second_however_long_the_wait() {
        let began = Instant::now();
        let until = began + Duration::from_millis(60_100);
        let mut now = began;
        let mut readings = 0;
        while let Some(pause) = next_pause(now, until) {
            assert!(pause <= Duration::from_millis(500));
            now += pause;
            readings += 1;
        }
        assert_eq!((now, readings), (until, 121));
        assert_eq!(next_pause(until + POLL_ENDED, until), None);
    }
}
