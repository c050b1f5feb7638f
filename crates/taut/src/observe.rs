//! Arguments and messages shared by `taut top`, `taut why` and `taut watch`.

use std::io::Write as _;

use clap::Args as ClapArgs;
use taut_observe::filter::Filter;
use taut_observe::observer::Observer;
use taut_observe::scan::{ScanSummary, Scope};
use taut_observe::table::Retention;

use crate::Failure;

/// Arguments that choose connections.
#[derive(ClapArgs)]
pub(crate) struct ConnectionArgs {
    /// Only these connections: `dst 10.0.0.0/8 and dport 443`, a pid, a process name
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,

    /// Only connections of this network namespace (a name in /run/netns)
    #[arg(long, value_name = "NAME", conflicts_with = "own_netns")]
    netns: Option<String>,

    /// Only connections of the network namespace in which this is started
    #[arg(long)]
    own_netns: bool,

    /// Do not count events between scans: counting costs a little time at each segment
    #[arg(long)]
    no_events: bool,

    /// Keep at most this many connections, and only count the others [default: 100000; `why`: 10000]
    #[arg(long, value_name = "COUNT", value_parser = count)]
    connections: Option<usize>,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("must be a number of at least 1".into()),
        Ok(count) => Ok(count),
    }
}

// === impl ConnectionArgs ===

impl ConnectionArgs {
    /// Parses the filter.
    ///
    /// # Errors
    /// If the filter does not parse.
    pub(crate) fn filter(&self) -> Result<Filter, Failure> {
        let filter = self.text();
        filter.parse().map_err(|e| {
            Failure::Usage(format!(
                "filter {filter:?}: {e} (docs/observe.md has the syntax)"
            ))
        })
    }

    /// Returns the filter as the user typed it.
    pub(crate) fn text(&self) -> String {
        self.filter.join(" ")
    }

    /// Returns an observer that keeps `samples` of each connection. `connections` is the default of
    /// `--connections`.
    pub(crate) fn observer(&self, connections: usize, samples: usize) -> Observer {
        let scope = match &self.netns {
            Some(name) => Scope::Named(name.clone()),
            None if self.own_netns => Scope::Own,
            None => Scope::Machine,
        };
        let keep = Retention {
            connections: self.connections.unwrap_or(connections),
            samples,
        };
        Observer::new(scope, keep, !self.no_events)
    }
}

/// Reports what cannot be observed, each item once.
#[derive(Default)]
pub(crate) struct Missing {
    reported: [bool; 8],
}

// === impl Missing ===

impl Missing {
    /// Writes to standard error what is missing in a scan and was not reported before.
    pub(crate) fn report(&mut self, observer: &Observer, summary: &ScanSummary) {
        if let Some(sentence) = self.sentence(observer, summary) {
            // The reader may be gone; the error is ignored.
            let _ = writeln!(std::io::stderr(), "taut: {sentence}");
        }
    }

    /// Returns what is missing in a scan and was not reported before.
    pub(crate) fn sentence(
        &mut self,
        observer: &Observer,
        summary: &ScanSummary,
    ) -> Option<String> {
        let left_out = observer.left_out();
        let missing = [
            (
                summary.denied,
                "network namespaces cannot be entered, so their connections are missing: run this as root",
            ),
            (
                observer.denied(),
                "processes cannot be inspected, so their connections have no process name: run this as root",
            ),
            (
                summary.hidden,
                "processes may be in network namespaces that are not known, so connections may be missing: run this as root",
            ),
            (left_out, "connections are left out: raise --connections"),
            (
                summary.left_out + summary.incomplete,
                "network namespaces or messages of the kernel are left out",
            ),
            (
                summary.without_slot,
                "connections have no event counters (at most 100,000 have, and net.core.optmem_max has to leave room for \
                 them)",
            ),
            (
                usize::from(summary.without_bpf),
                "source is missing, BPF, so it is unknown which applications set their buffer sizes: run this as root, on a \
                 kernel with BTF",
            ),
            (
                usize::from(summary.without_events && !summary.without_bpf),
                "source is missing, the TCP tracepoints, so events between scans are not counted (they need Linux 5.19; \
                 --no-events does without)",
            ),
        ];
        let mut sentences = Vec::new();
        for ((count, what), reported) in missing.into_iter().zip(&mut self.reported) {
            if count > 0 && !*reported {
                *reported = true;
                sentences.push(format!("{count} {what}"));
            }
        }
        (!sentences.is_empty()).then(|| sentences.join("; "))
    }
}
