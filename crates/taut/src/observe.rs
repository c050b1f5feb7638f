//! What `taut top` and `taut why` have in common.

use std::io::Write as _;

use clap::Args as ClapArgs;
use taut_observe::filter::Filter;
use taut_observe::observer::Observer;
use taut_observe::scan::{ScanSummary, Scope};
use taut_observe::table::Keep;

use crate::Failure;

/// Which connections.
#[derive(ClapArgs)]
pub(crate) struct Which {
    /// Which connections: `dst 10.0.0.0/8 and dport 443`, a pid, a process
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,

    /// Only of this network namespace (of /run/netns)
    #[arg(long, value_name = "NAME", conflicts_with = "own_netns")]
    netns: Option<String>,

    /// Only of the network namespace in which this is started
    #[arg(long)]
    own_netns: bool,

    /// Look only, and count nothing between looks, which takes a little time at each segment
    #[arg(long)]
    no_events: bool,

    /// Connections that are kept; more are counted [default: 100000, and 10000 with `why`]
    #[arg(long, value_name = "COUNT", value_parser = count)]
    connections: Option<usize>,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a number, 1 at least".into()),
        Ok(count) => Ok(count),
    }
}

// === impl Which ===

impl Which {
    /// The filter.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn filter(&self) -> Result<Filter, Failure> {
        let filter = self.text();
        filter.parse().map_err(|e| {
            Failure::Usage(format!(
                "filter {filter:?}: {e} (the words are in docs/observe.md)"
            ))
        })
    }

    /// The filter as it was typed.
    pub(crate) fn text(&self) -> String {
        self.filter.join(" ")
    }

    /// One who observes, and keeps so many connections if nothing else is said, and so many looks at each.
    pub(crate) fn observer(&self, connections: usize, samples: usize) -> Observer {
        let scope = match &self.netns {
            Some(name) => Scope::Named(name.clone()),
            None if self.own_netns => Scope::Own,
            None => Scope::Machine,
        };
        let keep = Keep {
            connections: self.connections.unwrap_or(connections),
            samples,
        };
        Observer::new(scope, keep, !self.no_events)
    }
}

/// Says, once, what cannot be seen.
#[derive(Default)]
pub(crate) struct Missing {
    said: [bool; 8],
}

// === impl Missing ===

impl Missing {
    /// After a look: to whoever reads the error output.
    pub(crate) fn say(&mut self, observer: &Observer, summary: &ScanSummary) {
        if let Some(sentence) = self.sentence(observer, summary) {
            // Nobody may be reading any more.
            let _ = writeln!(std::io::stderr(), "taut: {sentence}");
        }
    }

    /// After a look: what is missing, and was not said before.
    pub(crate) fn sentence(
        &mut self,
        observer: &Observer,
        summary: &ScanSummary,
    ) -> Option<String> {
        let left_out = observer.left_out();
        let missing = [
            (
                summary.denied,
                "network namespaces may not be entered, so that their connections are missing: run this as root",
            ),
            (
                observer.denied(),
                "processes may not be looked into, so that their connections have no name: run this as root",
            ),
            (
                summary.hidden,
                "processes may be in network namespaces whose connections are missing: run this as root",
            ),
            (left_out, "connections are left out: see --connections"),
            (
                summary.left_out + summary.incomplete,
                "namespaces or answers of the kernel are left out",
            ),
            (
                summary.without_slot,
                "connections have no place in which what happens to them between looks is counted (there are 100,000 \
                 places; or net.core.optmem_max leaves no room)",
            ),
            (
                usize::from(summary.without_bpf),
                "source is missing, BPF, so that nothing says whether applications have set their buffers: run this as \
                 root, on a kernel with BTF",
            ),
            (
                usize::from(summary.without_events && !summary.without_bpf),
                "source is missing, the tracepoints of TCP, so that nothing counts what happens between looks (Linux \
                 5.19 has them; --no-events does without)",
            ),
        ];
        let mut sentences = Vec::new();
        for ((count, what), said) in missing.into_iter().zip(&mut self.said) {
            if count > 0 && !*said {
                *said = true;
                sentences.push(format!("{count} {what}"));
            }
        }
        (!sentences.is_empty()).then(|| sentences.join("; "))
    }
}
