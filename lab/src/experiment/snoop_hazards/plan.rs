//! The plan: which transfers are made, and what the guest does to them.

use crate::experiment::Request;

/// How the guest handles the data that it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hazard {
    /// The guest forwards the data to a receiver behind it, over a link that loses segments.
    Forwarding(Way),
    /// The guest's application lowers SO_RCVBUF while data is in flight.
    Rcvbuf(Reads),
}

/// When an application reads the data that has arrived since it lowered SO_RCVBUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reads {
    /// After 0.3 to 2 s.
    Soon,
    /// After 8 to 15 s. By then a sender, or the host, has retransmitted several times and backs
    /// off.
    Late,
}

/// How a guest forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// As a router: the peer knows the receiver's own address, and the TTL is one less.
    Routed,
    /// As a NAT: the peer knows only the guest's address.
    Nat,
    /// As a router that sets the TTL back to 64, so that the host cannot see the forwarding.
    TtlKept,
}

/// Transfers under one set of conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) hazard: Hazard,
    pub(super) v6: bool,
    /// Whether the guest alternately has a CPU for 30 ms and no CPU for 60 ms.
    pub(super) paused: bool,
    /// Whether `taut snoop` runs; without it, the cell is a control.
    pub(super) snoop: bool,
    pub(super) transfers: u64,
    pub(super) seed: u64,
    /// The first port of its receivers.
    pub(super) port: u16,
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) cells: Vec<Cell>,
}

/// The number of concurrent transfers. Each has its own port.
pub(super) const AT_ONCE: u16 = 20;
/// The ports of all cells.
pub(super) const PORTS: std::ops::Range<u16> = 5_000..6_000;

/// Each cell: hazard, IPv6, paused, and the numbers of transfers with `taut snoop` and without,
/// first for the long form and then for the short form.
const CELLS: [(Hazard, bool, bool, [u64; 4]); 9] = [
    (
        Hazard::Forwarding(Way::Routed),
        false,
        false,
        [150, 25, 40, 10],
    ),
    (
        Hazard::Forwarding(Way::Routed),
        true,
        false,
        [125, 15, 20, 0],
    ),
    (
        Hazard::Forwarding(Way::Routed),
        false,
        true,
        [100, 0, 20, 0],
    ),
    (
        Hazard::Forwarding(Way::Nat),
        false,
        false,
        [125, 15, 20, 10],
    ),
    (
        Hazard::Forwarding(Way::TtlKept),
        false,
        false,
        [100, 0, 20, 0],
    ),
    (Hazard::Rcvbuf(Reads::Soon), false, false, [190, 25, 30, 10]),
    (Hazard::Rcvbuf(Reads::Soon), true, false, [50, 0, 0, 0]),
    (Hazard::Rcvbuf(Reads::Soon), false, true, [240, 25, 30, 10]),
    (Hazard::Rcvbuf(Reads::Late), false, false, [20, 10, 0, 0]),
];

// === impl Plan ===

impl Plan {
    pub(super) fn of(request: &Request) -> Self {
        let mut cells = Vec::new();
        for (hazard, v6, paused, transfers) in CELLS {
            let form = request.form.pick(0, 2, 2);
            // The smallest form has a tenth of the short one's transfers.
            let part = request.form.pick(1, 1, 10);
            for snoop in [true, false] {
                let cell = Cell {
                    hazard,
                    v6,
                    paused,
                    snoop,
                    transfers: transfers[form + usize::from(!snoop)] / part,
                    seed: request.seed << 16 | cells.len() as u64,
                    port: PORTS.start + cells.len() as u16 * AT_ONCE,
                };
                cells.push(cell);
            }
        }
        let asked = |name: String| {
            let only = request.only.as_ref();
            only.is_none_or(|only| name.contains(only.as_str()))
        };
        cells.retain(|cell| cell.transfers > 0 && asked(cell.name()));
        Self { cells }
    }

    pub(super) fn transfers(&self) -> u64 {
        self.cells.iter().map(|cell| cell.transfers).sum()
    }
}

// === impl Cell ===

impl Cell {
    /// Returns the cell's name in the figures.
    pub(super) fn name(&self) -> String {
        let way = match self.hazard {
            Hazard::Forwarding(Way::Routed) => "forwarding",
            Hazard::Forwarding(Way::Nat) => "forwarding NAT",
            Hazard::Forwarding(Way::TtlKept) => "forwarding TTL kept",
            Hazard::Rcvbuf(Reads::Soon) => "rcvbuf",
            Hazard::Rcvbuf(Reads::Late) => "rcvbuf read late",
        };
        let version = if self.v6 { "IPv6" } else { "IPv4" };
        let paused = if self.paused { " paused" } else { "" };
        let snoop = if self.snoop { "snoop" } else { "control" };
        format!("{way}/{version}{paused}/{snoop}")
    }
}

/// The random choices of a transfer, the same for the same seed (SplitMix64).
#[derive(Debug)]
pub(super) struct Draws(u64);

impl Draws {
    pub(super) fn of(cell: &Cell, number: u64) -> Self {
        Self(cell.seed << 24 ^ number)
    }

    /// Returns a number from `range`.
    pub(super) fn from(&mut self, range: std::ops::Range<u64>) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        range.start + (z ^ (z >> 31)) % (range.end - range.start)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::*;
    use crate::experiment::Form;

    fn plan(quick: bool, only: Option<&str>) -> Plan {
        Plan::of(&Request {
            form: Form::of(quick),
            seed: 1,
            runs: None,
            only: only.map(str::to_owned),
            taut: PathBuf::new(),
        })
    }

    #[test]
    fn each_hazard_has_hundreds_of_transfers_with_snoop_and_a_control() {
        let plan = plan(false, None);
        let count = |snoop, of: fn(Hazard) -> bool| -> u64 {
            let cells = plan
                .cells
                .iter()
                .filter(|c| c.snoop == snoop && of(c.hazard));
            cells.map(|cell| cell.transfers).sum()
        };
        let told = |h| matches!(h, Hazard::Forwarding(Way::Routed | Way::Nat));
        assert_eq!(count(true, told), 500);
        assert_eq!(count(true, |h| matches!(h, Hazard::Rcvbuf(_))), 500);
        assert!(count(false, told) > 0);
        assert!(count(false, |h| matches!(h, Hazard::Rcvbuf(_))) > 0);
    }

    #[test]
    fn no_two_cells_share_a_name_a_seed_or_a_port() {
        let cells = plan(false, None).cells;
        let names: BTreeSet<_> = cells.iter().map(Cell::name).collect();
        let seeds: BTreeSet<_> = cells.iter().map(|cell| cell.seed).collect();
        let ports: BTreeSet<_> = cells.iter().map(|cell| cell.port / AT_ONCE).collect();
        assert!([names.len(), seeds.len(), ports.len()] == [cells.len(); 3]);
        assert!(
            cells
                .iter()
                .all(|cell| PORTS.contains(&(cell.port + AT_ONCE)))
        );
    }

    #[test]
    fn the_short_form_has_every_way_and_a_part_of_it_can_be_asked_for() {
        let plan_of = |only| plan(true, only).cells;
        let ways: BTreeSet<_> = plan_of(None).iter().map(|cell| cell.hazard).collect();
        assert_eq!(ways.len(), 4);
        let only = plan_of(Some("rcvbuf"));
        assert!(
            !only.is_empty()
                && only
                    .iter()
                    .all(|cell| matches!(cell.hazard, Hazard::Rcvbuf(_)))
        );
        assert!(plan_of(Some("nothing")).is_empty());
    }

    #[test]
    fn draws_stay_in_their_range_and_differ() {
        let cell = plan(true, None).cells[0];
        let mut draws = Draws::of(&cell, 3);
        let drawn: BTreeSet<_> = (0..100).map(|_| draws.from(5..25)).collect();
        assert!(drawn.len() > 10 && drawn.iter().all(|n| (5..25).contains(n)));
        assert_eq!(
            Draws::of(&cell, 3).from(0..1 << 40),
            Draws::of(&cell, 3).from(0..1 << 40)
        );
    }
}
