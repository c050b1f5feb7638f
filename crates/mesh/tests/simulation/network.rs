//! The network between the relays: delay, loss, and cuts in one direction.

use std::collections::HashMap;
use std::time::Duration;

use crate::engine::{Random, Time};

/// The number of a relay, or of a destination, which come after the relays.
pub(crate) type Node = u16;

/// The share of packets that are lost.
const LOSS: f64 = 0.003;

/// The delay of a path of length 1, which is the width of the world, one way.
const ACROSS: Duration = Duration::from_millis(90);

/// Where the nodes are, and which paths are cut.
pub(crate) struct Network {
    places: Vec<(f64, f64)>,
    cuts: Vec<Cut>,
    /// When a packet was last lost between two nodes, the lower number first.
    losses: HashMap<(Node, Node), Time>,
}

/// Packets from any of some nodes to any of others are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) from: Group,
    pub(crate) to: Group,
}

/// Some nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    One(Node),
    All,
    /// The nodes whose numbers have this remainder modulo 2.
    Half(Node),
}

impl Network {
    /// Places `nodes` nodes at random.
    pub(crate) fn new(nodes: usize, random: &mut Random) -> Self {
        Self {
            places: (0..nodes).map(|_| (random.unit(), random.unit())).collect(),
            cuts: Vec::new(),
            losses: HashMap::new(),
        }
    }

    /// Returns the delay from one node to another, without jitter.
    pub(crate) fn delay(&self, from: Node, to: Node) -> Duration {
        let (a, b) = (self.places[usize::from(from)], self.places[usize::from(to)]);
        Duration::from_micros(300) + ACROSS.mul_f64((a.0 - b.0).hypot(a.1 - b.1))
    }

    /// Returns how long a packet travels that is sent `now`, or `None` if it is lost.
    pub(crate) fn send(
        &mut self,
        (from, to): (Node, Node),
        now: Time,
        random: &mut Random,
    ) -> Option<Duration> {
        if self.is_cut(from, to) || random.happens(LOSS) {
            self.losses.insert((from.min(to), from.max(to)), now);
            return None;
        }
        Some(self.delay(from, to).mul_f64(1.0 + 0.05 * random.unit()))
    }

    /// Returns whether a packet was lost between two nodes since this time.
    pub(crate) fn has_lost_since(&self, a: Node, b: Node, since: Time) -> bool {
        let last = self.losses.get(&(a.min(b), a.max(b)));
        last.is_some_and(|at| *at >= since)
    }

    pub(crate) fn is_cut(&self, from: Node, to: Node) -> bool {
        self.cuts.iter().any(|cut| cut.covers(from, to))
    }

    pub(crate) fn cut(&mut self, cut: Cut) {
        self.cuts.push(cut);
    }

    pub(crate) fn heal(&mut self, cut: &Cut) {
        if let Some(i) = self.cuts.iter().position(|c| c == cut) {
            self.cuts.remove(i);
        }
    }

    /// Returns how long a sender waits for an acknowledgement before it sends again: a second for a SYN, and
    /// at least 200 ms otherwise, twice as long each time (RFC 6298; Linux has the lower limit).
    pub(crate) fn retransmission_wait(
        &self,
        from: Node,
        to: Node,
        is_syn: bool,
        tries: u8,
    ) -> Time {
        let first = match is_syn {
            true => Duration::from_secs(1),
            false => Duration::from_millis(200) + 2 * self.delay(from, to),
        };
        first * (1 << tries.min(7))
    }
}

impl Cut {
    pub(crate) fn covers(&self, from: Node, to: Node) -> bool {
        self.from.has(from) && self.to.has(to) && from != to
    }
}

impl Group {
    fn has(self, node: Node) -> bool {
        match self {
            Self::One(one) => node == one,
            Self::All => true,
            Self::Half(rest) => node % 2 == rest,
        }
    }
}
