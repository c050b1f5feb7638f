//! Titles and descriptions of the known experiments.
//!
//! An experiment that is not in this table also appears in the report, without a description.

/// What a reader needs to know about an experiment.
#[derive(Debug)]
pub(super) struct About {
    /// The name that `taut lab run` takes.
    name: &'static str,
    /// The commands that it is about. Those of one job are together.
    pub(super) job: &'static str,
    pub(super) title: &'static str,
    pub(super) story: &'static str,
    /// The metric whose figure stands before all others.
    first: Option<&'static str>,
    /// Metrics, each with the paper's figure that shows the same quantity.
    figures: &'static [(&'static str, &'static str)],
}

/// The known experiments, in the order of the report.
const KNOWN: &[About] = &[
    About {
        name: "pied-piper",
        job: "taut relay, taut mesh",
        title: "A long path, split at relays",
        story: "A client downloads files of several sizes over a path with a round-trip time of 274 ms: a short leg to a \
                relay near it, a long one between two relays, and a short one to the server. End to \
                end, handshakes and slow start each pay the whole path. Relays that end TCP on \
                either side make three short loops of one long one; each configuration after “split” \
                adds one improvement. Two more parts: a client with a small receive window, and a \
                short and a long flow to one client. After “Pied Piper” (3.3 and 6.3), which measured \
                such a route between San Francisco and Bangalore.",
        first: Some("total"),
        figures: &[
            ("ttfb", "Figure 7"),
            ("total", "Figure 8, and with a 64 kB window Figure 9"),
            ("over_ideal", "Figure 5a"),
            ("times_ideal", "Figure 5a"),
            ("throughput", "Figures 14 (routed) and 15 (taut)"),
        ],
    },
    About {
        name: "internet",
        job: "taut relay, taut mesh",
        title: "The Internet, or a cloud",
        story: "A client downloads files of several sizes over an Internet path that loses segments, with \
            Cubic, with Cubic and large windows, and with BBR; and over two relays with a clean cloud leg \
            between them, with four ways of sending on that leg. Round trips, rates and losses have \
            published sources. After “Pied Piper” (2.3, 4.2 and 4.3).",
        first: None,
        figures: &[
            ("total", "Figures 2 and 3; for the mesh’s ways Figure 11"),
            ("times_ideal", "Figure 5a"),
        ],
    },
    About {
        name: "neighbours",
        job: "taut relay, taut mesh",
        title: "What a mesh does to its neighbours",
        story: "Cubic flows of others fill the link between two relays’ hosts. Then as many flows of the \
            mesh join, or as many Cubic flows, for comparison. After “Pied Piper” (6.3, “Inside the \
            cloud”).",
        first: None,
        figures: &[("throughput", "Figure 13")],
    },
    About {
        name: "routes",
        job: "taut relay, taut mesh",
        title: "Which relays",
        story: "Downloads between cities go end to end, and through one, two and three relays in ten \
            cities. `taut mesh plan` knows the round trips and rates and chooses a route for each pair; \
            the figures compare its choice with the best route that was measured. After “Pied Piper” \
            (4.1 and 4.4).",
        first: None,
        figures: &[("gain", "Figure 12")],
    },
    About {
        name: "failover",
        job: "taut relay, taut mesh",
        title: "A relay fails",
        story: "A near relay has two alternatives and carries 200 sessions a second. The one that carries \
            more of them is killed, drained, cut off or slowed down. The figures say for how long new \
            sessions fail.",
        first: None,
        figures: &[],
    },
    About {
        name: "soak",
        job: "taut relay, taut mesh",
        title: "A mesh under load and attack",
        story: "A mesh of two relays carries 200 sessions a second while relays are killed, stopped and \
            revoked, links cut, keys rotated, and an outsider attacks. Both ends compare every byte.",
        first: None,
        figures: &[],
    },
    About {
        name: "mesh-peers",
        job: "taut relay, taut mesh",
        title: "A protected leg, beside other proxies",
        story: "Two taut relay with TLS between them carry the same loads as two HAProxy, nginx and stunnel \
            with TLS, one after the other on one host.",
        first: None,
        figures: &[],
    },
    About {
        name: "relay-peers",
        job: "taut relay, taut mesh",
        title: "One relay, beside other relays",
        story: "taut relay carries the same loads as HAProxy, nginx, socat and ssh, one after the other on \
            one host: a bulk flow, new connections, the echo of a byte, and idle sessions.",
        first: None,
        figures: &[],
    },
    About {
        name: "idle-sessions",
        job: "taut relay, taut mesh",
        title: "Idle sessions",
        story: "One relay holds thousands of sessions, each of which has carried one byte each way. The \
            figures are the memory they use, and what is left of them after they have ended.",
        first: None,
        figures: &[],
    },
    About {
        name: "consolidate",
        job: "taut snoop",
        title: "A guest that waits for its core",
        story: "A client on a fast network sends to a guest that shares one core with other guests and with \
            the driver domain that carries its packets. Segments wait until the guest is scheduled, and its \
            acknowledgements wait until the driver domain is, so a round trip takes as long as one round of \
            the scheduler. taut snoop acknowledges what is in the guest’s ring. Each figure is given at \
            both ends, with the handshake and without. After “vSnoop” (V-C).",
        first: None,
        figures: &[
            ("sender_data_phase", "Figures 5 and 6"),
            ("receiver_data_phase", "Figures 5 and 6"),
        ],
    },
    About {
        name: "applications",
        job: "taut snoop",
        title: "Applications in guests that wait for their cores",
        story: "Two hosts, each with two guests and a driver domain on one core. A web server in a \
            guest on one host queries a database in a guest on the other for each page; then four \
            processes of a parallel program, one in each guest, broadcast and exchange data. taut snoop \
            serves the taps of all guests. “Cores not shared” is the speed of the applications when no \
            guest waits. After “vSnoop” (V-D).",
        first: None,
        figures: &[
            ("web_requests", "Table II"),
            ("mpi_broadcast", "Figure 8b"),
            ("mpi_alltoall", "Figure 8c"),
        ],
    },
    About {
        name: "snoop-soak",
        job: "taut snoop",
        title: "Every byte, with taut snoop",
        story: "Transfers to a guest go through loss, reordering, full rings and pauses, while taut snoop is \
            killed, stopped and turned off. Both ends compare every byte.",
        first: None,
        figures: &[],
    },
    About {
        name: "snoop-hazards",
        job: "taut snoop",
        title: "Guests that do not keep what was acknowledged",
        story: "Guests that forward, and guests whose application lowers its receive buffer, cannot keep \
            data that somebody else acknowledged for them. Every transfer has to complete with taut snoop.",
        first: None,
        figures: &[],
    },
    About {
        name: "incast",
        job: "taut guest",
        title: "Time-outs of a guest that waits for its core",
        story: "A client reads blocks over 1 to 20 connections at once from a guest that is descheduled for \
            60 ms of each 90. Acknowledgements that came meanwhile are processed after the timer, so the \
            guest takes its own absence for loss. After “PVTCP” (III and V).",
        first: None,
        figures: &[("goodput", "Figures 12 and 13")],
    },
    About {
        name: "descheduled",
        job: "taut guest",
        title: "A sending guest whose core is taken away",
        story: "A guest sends over one connection while its core is taken away in slices of 30 ms. Cubic \
            keeps its rate; BBR measures the gaps as bandwidth and falls. taut guest replaces both.",
        first: None,
        figures: &[],
    },
    About {
        name: "long-fat",
        job: "taut tune",
        title: "A buffer that is fixed too small",
        story: "One connection over 1 Gbit/s and up to 200 ms, whose receiver or sender has fixed its buffer \
            at 64 kB, before and after taut tune --apply starts at both ends. After the thesis on tuning \
            with Web100 (6.2).",
        first: None,
        figures: &[("throughput", "Figures 6.2 and 6.4")],
    },
    About {
        name: "budget",
        job: "taut tune",
        title: "Five hundred connections in 64 MB",
        story: "A server’s 500 connections over 1 to 200 ms share 64 MB of memory: with taut tune --budget, \
            with the kernel’s own limit, and without a limit.",
        first: None,
        figures: &[],
    },
    About {
        name: "tune-cost",
        job: "taut tune",
        title: "The cost of tuning",
        story: "Ten thousand connections are idle. The figure is the processor time of taut tune, which \
            checks whether one of them needs a change.",
        first: None,
        figures: &[],
    },
    About {
        name: "verdicts",
        job: "taut why, top and watch",
        title: "Whether the verdicts are right",
        story: "Connections are limited on purpose, in families of worlds with other congestion controls, \
            queues, jitter, several flows and causes. taut why, taut top and taut watch name what they \
            think limits them. Thresholds were set on some families; others were left out.",
        first: None,
        figures: &[],
    },
    About {
        name: "gains",
        job: "taut why, top and watch",
        title: "Whether a repair gains what was predicted",
        story: "taut why predicts what a connection would carry without its limit. The same world without \
            the limit shows whether it does.",
        first: None,
        figures: &[],
    },
    About {
        name: "observe-cost",
        job: "taut why, top and watch",
        title: "The cost of observing",
        story: "Thousands of connections, idle or each with data to carry, are scanned by taut top \
            once a second. The figures are its processor time, and that of ss, which prints the \
            kernel’s figures without interpreting them.",
        first: None,
        figures: &[],
    },
];

/// Returns the description of an experiment, if it is known.
pub(super) fn of(experiment: &str) -> Option<&'static About> {
    KNOWN.iter().find(|about| about.name == experiment)
}

/// Returns the position of an experiment in the report.
pub(super) fn rank(experiment: &str) -> usize {
    KNOWN
        .iter()
        .position(|about| about.name == experiment)
        .unwrap_or(KNOWN.len())
}

/// Returns a metric's name in words.
pub(super) fn metric(name: &str) -> String {
    match name {
        "sender_data_phase" => {
            "Throughput at the sender, first byte to last acknowledgement".to_owned()
        }
        "sender_with_handshake" => "The same, from connect()".to_owned(),
        "receiver_data_phase" => "Throughput at the receiver, first byte to last byte".to_owned(),
        "receiver_with_handshake" => "The same, from the sender\u{2019}s connect()".to_owned(),
        "ttfb" => "Time to first byte".to_owned(),
        "total" => "Download time".to_owned(),
        "over_ideal" => "Download time minus that of the ideal pipe".to_owned(),
        "times_ideal" => "Download time as a multiple of the ideal pipe\u{2019}s".to_owned(),
        "jain" => "Jain\u{2019}s index of fairness".to_owned(),
        "long_flow_share" => "The long flow\u{2019}s share".to_owned(),
        other => {
            let words = other.replace('_', " ");
            let mut letters = words.chars();
            letters
                .next()
                .map(|first| first.to_uppercase().chain(letters).collect())
                .unwrap_or_default()
        }
    }
}

// === impl About ===

impl About {
    /// Returns whether the figure of `metric` stands first.
    pub(super) fn is_first(&self, metric: &str) -> bool {
        self.first == Some(metric)
    }

    /// Returns the paper's figure that shows `metric`.
    pub(super) fn figure(&self, metric: &str) -> Option<&'static str> {
        let (_, figure) = self.figures.iter().find(|(name, _)| *name == metric)?;
        Some(figure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;

    #[test]
    fn every_experiment_is_described() {
        for one in registry::ALL {
            assert!(of(one.name).is_some(), "{}", one.name);
        }
    }
}
