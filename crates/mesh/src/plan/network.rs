//! The relays, and what is known of the paths between them.

use std::collections::HashMap;
use std::time::Duration;

use super::LegSettings;
use super::path::Path;
use crate::members::{Member, MemberName, Price};

/// A relay's place in its [`Network`].
pub type RelayId = u16;

/// A relay, as the planner sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Relay {
    /// Its name in the list of members.
    pub name: MemberName,
    /// The cloud that it is in.
    pub cloud: Option<String>,
    /// The price of sending one GB from it, in any currency; `None` if unknown, which counts as 0.
    pub price: Option<f64>,
    /// Whether routes may use it. A relay that drains or does not answer is not usable.
    pub usable: bool,
}

/// Relays, and the path from each to each: n² entries of 8 bytes.
#[derive(Clone, Debug)]
pub struct Network {
    relays: Vec<Relay>,
    /// Row by row: the path from relay `i` to relay `j` is at `i * n + j`.
    paths: Vec<Path>,
    /// The settings of legs that differ from those of the others.
    legs: HashMap<(RelayId, RelayId), LegSettings>,
}

/// The known paths of a client and a destination: those between them and every relay, in the order
/// of the network's relays, and the path that uses no relay.
#[derive(Clone, Debug, PartialEq)]
pub struct Ends {
    /// From the client to each relay.
    pub from: Vec<Path>,
    /// From each relay to the destination.
    pub to: Vec<Path>,
    /// From the client to the destination.
    pub direct: Path,
}

// === impl Relay ===

impl Relay {
    /// Returns the relay of this member, usable.
    pub fn from_member(member: &Member) -> Self {
        Self {
            name: member.name.clone(),
            cloud: member.cloud.clone(),
            price: member.price.map(Price::per_gb),
            usable: true,
        }
    }
}

// === impl Network ===

impl Network {
    /// Creates a network of these relays, of which no path is known.
    ///
    /// # Panics
    /// If there are more relays than a [`RelayId`] can name. A list of members is far smaller
    /// ([`crate::members::MAX_MEMBERS`]).
    pub fn new(relays: Vec<Relay>) -> Self {
        let n = relays.len();
        assert!(n <= usize::from(RelayId::MAX), "{n} relays are too many");
        let mut paths = vec![Path::UNKNOWN; n * n];
        for relay in 0..n {
            paths[relay * n + relay] = Path::ZERO;
        }
        Self {
            relays,
            paths,
            legs: HashMap::new(),
        }
    }

    /// Returns the number of relays.
    pub fn len(&self) -> usize {
        self.relays.len()
    }

    /// Returns whether there is no relay.
    pub fn is_empty(&self) -> bool {
        self.relays.is_empty()
    }

    /// Returns every relay's place.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = RelayId> + use<> {
        0..self.relays.len() as RelayId
    }

    /// Returns a relay.
    ///
    /// # Panics
    /// If the relay is not in this network. So do all methods that take a [`RelayId`].
    pub fn relay(&self, relay: RelayId) -> &Relay {
        &self.relays[usize::from(relay)]
    }

    /// Returns the relay of this name.
    pub fn find(&self, name: &str) -> Option<RelayId> {
        let mut ids = self.ids();
        ids.find(|&id| self.relay(id).name.as_str() == name)
    }

    /// Returns the path from one relay to another.
    pub fn path(&self, from: RelayId, to: RelayId) -> Path {
        self.paths[self.index(from, to)]
    }

    /// Sets the path from one relay to another, in this direction.
    pub fn set(&mut self, from: RelayId, to: RelayId, path: Path) {
        let index = self.index(from, to);
        self.paths[index] = path;
    }

    /// Returns the settings of a leg, if it has its own.
    pub fn leg(&self, from: RelayId, to: RelayId) -> Option<LegSettings> {
        self.legs.get(&(from, to)).copied()
    }

    /// Sets how the leg from one relay to another begins. Others begin as [`super::Options::legs`]
    /// says.
    pub fn set_leg(&mut self, from: RelayId, to: RelayId, settings: LegSettings) {
        self.legs.insert((from, to), settings);
    }

    /// Sets whether routes may use a relay.
    pub fn set_usable(&mut self, relay: RelayId, usable: bool) {
        self.relays[usize::from(relay)].usable = usable;
    }

    /// Returns the paths from a relay to all.
    pub(super) fn row(&self, from: RelayId) -> &[Path] {
        let start = self.index(from, 0);
        &self.paths[start..start + self.len()]
    }

    fn index(&self, from: RelayId, to: RelayId) -> usize {
        let n = self.relays.len();
        assert!(usize::from(to) < n, "no relay {to}");
        usize::from(from) * n + usize::from(to)
    }
}

// === impl Ends ===

impl Ends {
    /// Returns the ends of a session that is at relay `me` already, to a destination with these
    /// paths from every relay: every route begins with `me`.
    pub fn at_relay(network: &Network, me: RelayId, to: Vec<Path>) -> Self {
        let mut from = vec![Path::UNKNOWN; network.len()];
        from[usize::from(me)] = Path::ZERO;
        Self {
            from,
            to,
            direct: Path::UNKNOWN,
        }
    }

    /// Returns the usable relay that is nearest to an end by round trip.
    pub(super) fn nearest(paths: &[Path], usable: impl Fn(RelayId) -> bool) -> Option<RelayId> {
        (0..)
            .zip(paths)
            .filter(|&(id, path)| path.is_known() && usable(id))
            .min_by_key(|(_, path)| path.rtt().unwrap_or(Duration::MAX))
            .map(|(id, _)| id)
    }
}
