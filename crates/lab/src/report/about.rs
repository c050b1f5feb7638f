//! What the known experiments are about.
//!
//! An experiment that is not in this table is reported all the same, without a story.

/// What a reader who was not there needs to know of an experiment.
#[derive(Debug)]
pub(super) struct About {
    /// As `taut lab run` takes it.
    name: &'static str,
    pub(super) title: &'static str,
    pub(super) story: &'static str,
    /// Metrics, and which of the paper's figures shows the same.
    figures: &'static [(&'static str, &'static str)],
}

/// In the order of the report.
const KNOWN: &[About] = &[
    About {
        name: "pied-piper",
        title: "A long path, split at relays",
        story: "A client downloads files of several sizes over a path of 274 ms: a short leg to a \
                relay near it, a long one between two relays, and a short one to the server. End to \
                end, handshakes and slow start each pay the whole path. Relays that end TCP on \
                either side make three short loops of one long one; each configuration after “split” \
                adds one improvement. The same for a client with a small receive window, and two \
                flows to one client, a short and a long one. After “Pied Piper” (3.3 and 6.3), which \
                measured such a route between San Francisco and Bangalore.",
        figures: &[
            ("ttfb", "Figure 7"),
            ("total", "Figure 8, and with a 64 kB window Figure 9"),
            ("over_ideal", "Figure 5a"),
            ("times_ideal", "Figure 5a"),
            ("throughput", "Figures 14 (routed) and 15 (taut)"),
        ],
    },
    About {
        name: "consolidate",
        title: "A guest that waits for its core",
        story: "A client on a fast network sends to a guest that shares one core with others and with \
                the driver domain that carries its packets. What it sends waits until the guest has \
                its slice, and its acknowledgements wait for the driver domain’s, so that a \
                round trip takes as long as a round of the scheduler. taut snoop acknowledges what \
                has been put into the guest’s ring. Each figure is given at both ends, with the \
                handshake and without. After “vSnoop” (V-C).",
        figures: &[
            ("sender_data_phase", "Figures 5 and 6"),
            ("receiver_data_phase", "Figures 5 and 6"),
        ],
    },
    About {
        name: "applications",
        title: "Applications in guests that wait for their cores",
        story: "Two hosts, each with two guests and a driver domain on one core. A web server in a \
                guest of one asks a database in a guest of the other for each page that browsers \
                ask it for; then four processes of a parallel program, one in each guest, broadcast \
                to each other and exchange. taut snoop serves all guests’ taps. “Cores not shared” is \
                how fast the applications are when nobody waits. After “vSnoop” (V-D).",
        figures: &[
            ("web_requests", "Table II"),
            ("mpi_broadcast", "Figure 8b"),
            ("mpi_alltoall", "Figure 8c"),
        ],
    },
    About {
        name: "idle-sessions",
        title: "Sessions that say nothing",
        story: "One relay holds thousands of sessions, each of which has carried a byte each way. \
                Counted is what they cost in memory, and whether anything of them is left when \
                they have ended.",
        figures: &[],
    },
    About {
        name: "observe-cost",
        title: "What looking costs",
        story: "Thousands of connections are there, idle or each with something to carry, and taut \
                top looks at all of them once a second. Counted is the processor time that this \
                takes, and that of ss, which prints the kernel’s figures and says nothing about \
                them.",
        figures: &[],
    },
    About {
        name: "tune-cost",
        title: "What tuning costs",
        story: "Ten thousand connections are there, and nothing goes through them. Counted is the                 processor time of taut tune, which looks whether one of them wants something.",
        figures: &[],
    },
];

/// What is known of an experiment.
pub(super) fn of(experiment: &str) -> Option<&'static About> {
    KNOWN.iter().find(|about| about.name == experiment)
}

/// Where in the report an experiment belongs.
pub(super) fn rank(experiment: &str) -> usize {
    KNOWN
        .iter()
        .position(|about| about.name == experiment)
        .unwrap_or(KNOWN.len())
}

/// A metric in words.
pub(super) fn metric(name: &str) -> String {
    match name {
        "sender_data_phase" => {
            "Throughput at the sender, first byte to last acknowledgement".to_owned()
        }
        "sender_with_handshake" => "The same, from connect()".to_owned(),
        "receiver_data_phase" => "Throughput at the receiver, first byte to last".to_owned(),
        "receiver_with_handshake" => "The same, from the sender\u{2019}s connect()".to_owned(),
        "ttfb" => "Time to first byte".to_owned(),
        "total" => "Download time".to_owned(),
        "over_ideal" => "Download time over the ideal pipe\u{2019}s".to_owned(),
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
    /// Which of the paper's figures shows `metric`.
    pub(super) fn figure(&self, metric: &str) -> Option<&'static str> {
        let (_, figure) = self.figures.iter().find(|(name, _)| *name == metric)?;
        Some(figure)
    }
}
