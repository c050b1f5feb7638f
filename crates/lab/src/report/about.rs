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
                either side make three short loops of one long one, and connections between them \
                that are already there save a round trip more. After “Pied Piper” (3.3), which \
                measured such a route between San Francisco and Bangalore.",
        figures: &[("ttfb", "Figure 7"), ("total", "Figure 8")],
    },
    About {
        name: "routes",
        title: "Which relays to go through",
        story: "With several relays to choose from, the route planner picks one, two or three by \
                their round-trip times alone. Every route is also measured, so the planner's choice \
                can be held against the best there was. After “Pied Piper” (4.1 and 4.4).",
        figures: &[],
    },
    About {
        name: "failover",
        title: "A relay dies",
        story: "Sessions run through relays while one is killed, and again while one is asked to \
                drain. Counted is what clients noticed, and for how long.",
        figures: &[],
    },
    About {
        name: "consolidate",
        title: "A guest that waits for its CPU",
        story: "A guest receives a transfer while it and the host's driver domain share a core with \
                other guests, in turns of tens of milliseconds. Each acknowledgement waits for the \
                guest's turn, so slow start takes one step a scheduling round instead of one a \
                round trip. The host acknowledging in the guest's place closes the loop on time. \
                After “vSnoop” (V-C).",
        figures: &[],
    },
    About {
        name: "incast",
        title: "Timeouts of senders that were not running",
        story: "Senders in guests answer one receiver at once, with small retransmission timeouts. \
                A sender that was descheduled wakes to a timer that fired before it could read the \
                acknowledgements already waiting, and resends what had arrived. After “PVTCP”.",
        figures: &[],
    },
    About {
        name: "descheduled",
        title: "A sender that loses its CPU",
        story: "A guest sends one flow while its core is taken away and given back. The congestion \
                control's model of the path comes to include the time it was not running; a \
                rate-based one, such as BBR, may then send far less than its share of the CPU would \
                allow.",
        figures: &[],
    },
    About {
        name: "long-fat",
        title: "Buffers smaller than the path",
        story: "On a path with a large bandwidth-delay product, an application that fixed its \
                socket's buffer gets one buffer a round trip, whatever the link could carry. \
                Measured before and after the buffer is sized to the path. After the thesis on \
                automatic TCP buffer tuning.",
        figures: &[],
    },
    About {
        name: "budget",
        title: "Buffers for many, from one budget",
        story: "Many connections share a memory budget for their buffers. Measured is whether the \
                budget held, how evenly the connections fared, and what they carried against the \
                kernel's own tuning.",
        figures: &[],
    },
    About {
        name: "verdicts",
        title: "What limits a connection",
        story: "Connections are given a known limit each (a window, a buffer, the application, the \
                path), and the diagnosis is asked which it is. Counted is how often it is right, \
                and how often it is wrong and sure.",
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
