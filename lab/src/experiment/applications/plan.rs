//! The plan: the measurements, their number, and their order.

use std::fmt;
use std::time::Duration;

use super::network::GUESTS;
use crate::experiment::Request;
use crate::experiment::guests::configuration::Configuration;

/// An arm of the comparison: how guests are served, and whether they wait for their cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arm {
    pub(super) configuration: Configuration,
    /// Whether guests take turns on their cores; otherwise all guests run all the time.
    pub(super) shared: bool,
}

// === impl Arm ===

impl Arm {
    /// The guests' settings for receiving in all arms.
    pub(super) const SETTINGS: Configuration = Configuration::Tuned;

    /// The baseline.
    pub(super) const TUNED: Self = Self::sharing(Configuration::Tuned);
    /// Early acknowledgement within the guest's window.
    pub(super) const SNOOP: Self = Self::sharing(Configuration::Snoop);
    /// Like the paper's vSnoop: beyond the guest's window and from the first segment.
    pub(super) const PAPERS: Self = Self::sharing(Configuration::GrowEarly);
    /// The applications without waiting for cores.
    pub(super) const NOT_SHARED: Self = Self {
        configuration: Configuration::Tuned,
        shared: false,
    };

    pub(super) const ALL: [Self; 6] = [
        Self::NOT_SHARED,
        Self::TUNED,
        Self::SNOOP,
        Self::sharing(Configuration::Early),
        Self::sharing(Configuration::Grow),
        Self::PAPERS,
    ];
    /// The arms of the short form.
    const QUICK: [Self; 4] = [Self::NOT_SHARED, Self::TUNED, Self::SNOOP, Self::PAPERS];
    const SMOKE: [Self; 1] = [Self::SNOOP];

    const fn sharing(configuration: Configuration) -> Self {
        Self {
            configuration,
            shared: true,
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self.shared {
            true => self.configuration.label(),
            false => "cores not shared",
        }
    }
}

/// How the web server connects to its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Connections {
    /// Each page opens a connection, which is PHP's default.
    New,
    /// Each of the web server's processes keeps a connection.
    Kept,
}

impl fmt::Display for Connections {
    /// Formats the third part of a series' name; empty for the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New => Ok(()),
            Self::Kept => write!(f, "connections kept"),
        }
    }
}

/// Browsers that request one page after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Browsing {
    pub(super) browsers: usize,
    pub(super) connections: Connections,
}

/// A collective operation of a parallel program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pattern {
    Broadcast,
    Alltoall,
}

impl Pattern {
    pub(super) const ALL: [Self; 2] = [Self::Broadcast, Self::Alltoall];

    /// Returns the pattern's name in `collectives.c`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast",
            Self::Alltoall => "alltoall",
        }
    }
}

/// Formats a message size for a series' name.
pub(super) fn size_label(bytes: usize) -> String {
    match bytes {
        small if small < 1_000 => format!("{small} B"),
        large => format!("{} kB", large / 1_000),
    }
}

/// The two-tier application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Web {
    pub(super) browsing: Vec<Browsing>,
    /// The duration of each measurement.
    pub(super) lasts: Duration,
    /// The measurement of the headline.
    pub(super) headline: Browsing,
}

/// The parallel program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mpi {
    /// The size of a message, in bytes.
    pub(super) sizes: Vec<usize>,
    /// The maximum number of repetitions of each pattern and size in a run.
    pub(super) times: usize,
    /// How long a run continues after each pattern and size has been done once.
    pub(super) lasts: Duration,
}

/// The whole plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) web: Web,
    pub(super) mpi: Mpi,
    /// The arms in the order of their measurement, for each part.
    pub(super) order: Vec<Arm>,
}

/// The loads of the guests in the world of figure 7: the web server, its neighbour, the database,
/// its neighbour.
pub(super) const WEB_LOADS: [u8; GUESTS] = [0, 30, 0, 30];
/// The loads when all four run processes of a parallel program, which poll and so are never idle.
pub(super) const MPI_LOADS: [u8; GUESTS] = [0; GUESTS];

// === impl Plan ===

impl Plan {
    pub(super) fn of(request: &Request) -> Self {
        let form = request.form;
        let headline = Browsing {
            browsers: 8,
            connections: Connections::New,
        };
        let browsing = match form.is_short() {
            true => vec![headline],
            false => vec![
                Browsing {
                    browsers: 1,
                    ..headline
                },
                headline,
                Browsing {
                    browsers: 32,
                    ..headline
                },
                Browsing {
                    connections: Connections::Kept,
                    ..headline
                },
            ],
        };
        let rounds = request.runs.unwrap_or(if form.is_short() { 1 } else { 2 });
        let arms: &[Arm] = form.pick(&Arm::ALL, &Arm::QUICK, &Arm::SMOKE);
        let order = (0..rounds).flat_map(|round| {
            let mut order = arms.to_vec();
            // Each round starts with a different arm, so that no arm is always first.
            order.rotate_left(round % arms.len());
            order
        });
        Self {
            web: Web {
                browsing,
                lasts: Duration::from_secs(form.pick(6, 6, 1)),
                headline,
            },
            mpi: Mpi {
                sizes: match form.is_short() {
                    true => vec![16_000],
                    false => vec![1_000, 16_000, 64_000, 256_000],
                },
                times: if form.is_short() { 5 } else { 20 },
                lasts: Duration::from_secs(if form.is_short() { 4 } else { 20 }),
            },
            order: order.collect(),
        }
    }

    pub(super) fn steps(&self) -> u64 {
        (self.order.len() * (self.web.browsing.len() + 1)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Form;

    fn plan(quick: bool, runs: Option<usize>) -> Plan {
        Plan::of(&Request {
            runs,
            ..Request::of_test(Form::of(quick))
        })
    }

    #[test]
    fn every_arm_comes_equally_often_and_in_changing_order() {
        let plan = plan(false, Some(4));
        for arm in Arm::ALL {
            assert_eq!(plan.order.iter().filter(|one| **one == arm).count(), 4);
        }
        assert_ne!(plan.order[..6], plan.order[6..12]);
    }

    #[test]
    fn both_forms_measure_what_the_headline_is_of() {
        for plan in [plan(true, None), plan(false, None)] {
            assert!(plan.web.browsing.contains(&plan.web.headline));
            for arm in [Arm::NOT_SHARED, Arm::TUNED, Arm::SNOOP, Arm::PAPERS] {
                assert!(plan.order.contains(&arm), "{arm:?}");
            }
        }
    }

    #[test]
    fn arms_have_names_of_their_own() {
        let labels: std::collections::BTreeSet<_> = Arm::ALL.map(Arm::label).into();
        assert_eq!(labels.len(), Arm::ALL.len());
    }

    #[test]
    fn sizes_are_named_as_quantities() {
        assert_eq!([500, 64_000].map(size_label), ["500 B", "64 kB"]);
    }
}
