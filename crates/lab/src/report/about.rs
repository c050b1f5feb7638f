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
        name: "idle-sessions",
        title: "Sessions that say nothing",
        story: "One relay holds thousands of sessions, each of which has carried a byte each way. \
                Counted is what they cost in memory, and whether anything of them is left when \
                they have ended.",
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
