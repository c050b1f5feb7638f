//! The plan: the measurements in each world, their number, and their order.

use std::fmt;

use crate::experiment::guests::configuration::Configuration;
use crate::experiment::{Form, Request};

/// The machine that the guests share. A different machine needs different guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) guests: usize,
    /// The load of each guest, in per cent.
    pub(super) load: u8,
}

/// What is varied on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scenario {
    /// One connection.
    Plain,
    /// Ten connections at once.
    Concurrent,
    /// The driver domain has another core.
    DriverApart,
    /// The sender is a guest on another host, one of three guests.
    SenderGuest,
    /// A guest as sender, with a slow start that does not end when round trips become longer.
    NoHyStart,
}

impl Scenario {
    pub(super) fn connections(self) -> usize {
        if self == Self::Concurrent { 10 } else { 1 }
    }

    pub(super) fn is_sent_by_guest(self) -> bool {
        matches!(self, Self::SenderGuest | Self::NoHyStart)
    }
}

/// A condition under which sizes are transferred, such as one of the paper's nine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) machine: Machine,
    pub(super) scenario: Scenario,
}

/// The world of figure 5.
const THREE: Machine = Machine {
    guests: 3,
    load: 60,
};

/// The machine of the smallest form.
const ALONE: Machine = Machine {
    guests: 1,
    load: 60,
};

impl Condition {
    /// Returns whether this is the world of figure 5.
    pub(super) fn is_figure_5(self) -> bool {
        self.machine == THREE && self.scenario == Scenario::Plain
    }
}

impl fmt::Display for Condition {
    /// Formats the third part of a series' name; empty in the world of figure 5.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.scenario, self.machine) {
            (Scenario::Plain, THREE) => Ok(()),
            (Scenario::Plain, Machine { guests: 1, .. }) => write!(f, "1 guest"),
            (Scenario::Plain, Machine { guests, load: 60 }) => write!(f, "{guests} guests"),
            (Scenario::Plain, Machine { load, .. }) => write!(f, "load of {load} %"),
            (Scenario::Concurrent, _) => write!(f, "10 connections"),
            (Scenario::DriverApart, _) => write!(f, "driver on a core of its own"),
            (Scenario::SenderGuest, _) => write!(f, "sender a guest too"),
            (Scenario::NoHyStart, _) => write!(f, "sender a guest without HyStart"),
        }
    }
}

/// Transfers of one size under one condition, with each configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) condition: Condition,
    /// The bytes of each stream.
    pub(super) size: usize,
    /// The number of transfers with each configuration.
    pub(super) runs: usize,
}

impl Cell {
    /// Formats the size for a series' name.
    pub(super) fn size_label(&self) -> String {
        match self.size {
            kilo if kilo < 1_000_000 => format!("{} kB", kilo / 1_000),
            mega => format!("{} MB", mega / 1_000_000),
        }
    }

    /// Returns the cell's name: the size and the condition.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.size_label(), self.condition)
            .trim_end()
            .to_owned()
    }

    /// Returns whether the cell is measured without `--only`. Large transfers take longest: the full form has
    /// them in the world of figure 5, and where the end of slow start matters.
    fn is_by_default(&self) -> bool {
        let is_long = self.condition.scenario.is_sent_by_guest();
        self.condition.is_figure_5() || self.size <= if is_long { 10 * MB } else { MB }
    }

    /// Returns the number of the cell's transfers in block `block` of `blocks`.
    fn runs_in(&self, block: usize, blocks: usize) -> usize {
        self.runs / blocks + usize::from(block < self.runs % blocks)
    }
}

/// One step: sets up a configuration, then makes these transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) configuration: Configuration,
    /// Each cell, and how many of its transfers the step makes.
    pub(super) transfers: Vec<(Cell, usize)>,
}

/// The measurements on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) machine: Machine,
    /// The steps. Every few blocks include each configuration once, so that a drift of the machine
    /// affects all configurations equally.
    pub(super) blocks: Vec<Block>,
}

const KB: usize = 1_000;
const MB: usize = 1_000_000;

/// Sizes and numbers of transfers in figure 6.
const SIZES: [(usize, usize); 5] = [
    (50 * KB, 5),
    (100 * KB, 5),
    (MB, 3),
    (10 * MB, 3),
    (100 * MB, 1),
];
/// Sizes and numbers of transfers in the world of figure 5.
const SIZES_FIGURE_5: [(usize, usize); 5] = [
    (50 * KB, 8),
    (100 * KB, 120),
    (MB, 8),
    (10 * MB, 3),
    (100 * MB, 1),
];
/// Sizes at which the end of slow start matters, and numbers of transfers.
const SIZES_LONG: [(usize, usize); 2] = [(MB, 3), (10 * MB, 3)];
/// The maximum number of transfers of a cell with `snoop --start-early`.
const EARLY_RUNS: usize = 80;
/// The rounds in the world of figure 5, and in each other.
const ROUNDS_FIGURE_5: usize = 4;
const ROUNDS: usize = 2;
/// The sizes of the short forms; the smallest has one transfer of the first.
const SIZES_QUICK: [(usize, usize); 2] = [(100 * KB, 5), (MB, 2)];

/// The whole plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) parts: Vec<Part>,
}

// === impl Plan ===

impl Plan {
    pub(super) fn of(request: &Request) -> Self {
        let runs = |runs| request.runs.unwrap_or(runs);
        let on = |machine, scenario| Condition { machine, scenario };
        let on_three = on(THREE, Scenario::Plain);
        let cells = |condition: Condition, sizes: &[(usize, usize)]| -> Vec<Cell> {
            sizes
                .iter()
                .map(|&(size, often)| Cell {
                    condition,
                    size,
                    runs: runs(often),
                })
                // Ten such streams would need more memory than a guest has.
                .filter(|cell| cell.size * condition.scenario.connections() <= 100 * MB)
                .filter(|cell| match &request.only {
                    Some(only) => cell.name().contains(only),
                    None => cell.is_by_default(),
                })
                .collect()
        };
        if request.form == Form::Smoke {
            let cells = cells(on(ALONE, Scenario::Plain), &SIZES_QUICK[..1]);
            let mut part = Part::of(ALONE, &cells, 1);
            part.blocks
                .retain(|block| block.configuration == Configuration::Grow);
            return Self { parts: vec![part] };
        }
        if request.form.is_short() {
            let cells = cells(on_three, &SIZES_QUICK);
            return Self {
                parts: vec![Part::of(THREE, &cells, 1)],
            };
        }
        let mut three = cells(on_three, &SIZES_FIGURE_5);
        for scenario in [
            Scenario::Concurrent,
            Scenario::DriverApart,
            Scenario::SenderGuest,
        ] {
            three.extend(cells(on(THREE, scenario), &SIZES));
        }
        three.extend(cells(on(THREE, Scenario::NoHyStart), &SIZES_LONG));
        let mut parts = vec![Part::of(THREE, &three, ROUNDS_FIGURE_5)];
        let others = [(1, 60), (2, 60), (5, 60), (3, 40), (3, 80), (3, 100)];
        for (guests, load) in others {
            let machine = Machine { guests, load };
            let cells = cells(on(machine, Scenario::Plain), &SIZES);
            parts.push(Part::of(machine, &cells, ROUNDS));
        }
        parts.retain(|part| !part.blocks.is_empty());
        Self { parts }
    }

    pub(super) fn steps(&self) -> u64 {
        let blocks = self.parts.iter().flat_map(|part| &part.blocks);
        let transfers = blocks.flat_map(|block| &block.transfers);
        transfers.map(|(_, often)| *often as u64).sum()
    }
}

/// Returns how often a cell is measured with a configuration. Figure 5 has four of the six
/// configurations. `Early` is not among them and is measured often enough for a median.
fn most(cell: &Cell, configuration: Configuration) -> usize {
    match configuration {
        Configuration::Early => cell.runs.min(EARLY_RUNS),
        _ => cell.runs,
    }
}

// === impl Part ===

impl Part {
    fn of(machine: Machine, cells: &[Cell], rounds: usize) -> Self {
        let blocks = (0..rounds).flat_map(|round| {
            let mut order = Configuration::ALL;
            // Each round starts with a different configuration, so that no configuration is always
            // first.
            order.rotate_left(round % Configuration::ALL.len());
            order.map(|configuration| Block {
                configuration,
                transfers: cells
                    .iter()
                    .map(|cell| (cell, most(cell, configuration)))
                    .map(|(cell, runs)| (*cell, Cell { runs, ..*cell }.runs_in(round, rounds)))
                    .filter(|(_, often)| *often > 0)
                    .collect(),
            })
        });
        Self {
            machine,
            blocks: blocks.filter(|block| !block.transfers.is_empty()).collect(),
        }
    }

    /// Returns whether one of the part's scenarios satisfies `is_such`.
    pub(super) fn has(&self, is_such: fn(Scenario) -> bool) -> bool {
        let transfers = self.blocks.iter().flat_map(|block| &block.transfers);
        transfers
            .map(|(cell, _)| cell)
            .any(|cell| is_such(cell.condition.scenario))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::super::measured::LEAST;
    use super::*;

    fn plan(quick: bool, runs: Option<usize>) -> Plan {
        Plan::of(&Request {
            runs,
            ..Request::of_test(Form::of(quick))
        })
    }

    fn counts(plan: &Plan) -> BTreeMap<(String, usize, Configuration), usize> {
        let mut counts = BTreeMap::new();
        for block in plan.parts.iter().flat_map(|part| &part.blocks) {
            for (cell, often) in &block.transfers {
                let key = (cell.condition.to_string(), cell.size, block.configuration);
                *counts.entry(key).or_default() += often;
            }
        }
        counts
    }

    #[test]
    fn figure_5_has_more_transfers_than_a_decided_cell_needs() {
        let counts = counts(&plan(false, None));
        for configuration in Configuration::ALL {
            let often = if configuration == Configuration::Early {
                EARLY_RUNS
            } else {
                120
            };
            assert_eq!(counts[&(String::new(), 100 * KB, configuration)], often);
            assert!(often > LEAST);
        }
    }

    #[test]
    fn every_condition_has_a_name_of_its_own_and_every_configuration() {
        let counts = counts(&plan(false, None));
        let conditions: BTreeSet<_> = counts.keys().map(|(name, ..)| name).collect();
        assert_eq!(conditions.len(), 11, "{conditions:?}");
        // All sizes in figure 5's; four with a guest as sender, two of them without HyStart; three else.
        assert_eq!(counts.len(), (5 + 4 + 2 + 8 * 3) * Configuration::ALL.len());
    }

    #[test]
    fn the_number_of_runs_can_be_said() {
        for quick in [true, false] {
            assert!(
                counts(&plan(quick, Some(3)))
                    .values()
                    .all(|count| *count == 3)
            );
        }
    }

    #[test]
    fn a_part_can_be_asked_for_by_its_name() {
        let of = |only: &str| {
            let plan = Plan::of(&Request {
                only: Some(only.into()),
                ..Request::of_test(Form::Full)
            });
            counts(&plan)
                .into_keys()
                .map(|(condition, size, _)| (condition, size))
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(
            of("100 kB 2 guests"),
            BTreeSet::from([("2 guests".into(), 100 * KB)])
        );
        assert_eq!(of("100 kB").len(), 10);
        assert_eq!(of("no such").len(), 0);
    }

    #[test]
    fn a_part_has_one_machine() {
        for part in plan(false, None).parts {
            for (cell, _) in part.blocks.iter().flat_map(|block| &block.transfers) {
                assert_eq!(cell.condition.machine, part.machine);
            }
        }
    }

    #[test]
    fn sizes_are_named_as_quantities() {
        let condition = Condition {
            machine: THREE,
            scenario: Scenario::Plain,
        };
        let label = |size| {
            Cell {
                condition,
                size,
                runs: 1,
            }
            .size_label()
        };
        assert_eq!([label(50 * KB), label(100 * MB)], ["50 kB", "100 MB"]);
    }
}
