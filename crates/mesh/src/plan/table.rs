//! Files of measured round trips.
//!
//! A line a path: `FROM TO RTT_MS [LOSS_PERCENT] [RATE_MBIT]`, separated by blanks; `#` begins a
//! comment. FROM and TO are names of members or prefixes. A path that is given in one direction
//! holds for the other, too, unless that is given as well.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;

use super::network::{Ends, Network, Relay, RelayId};
use super::path::Path;
use crate::members::{MAX_MEMBERS, MemberName};

/// The largest accepted size of a file, in bytes: enough for every path between 1,000 relays.
pub const MAX_TABLE: u64 = 64 << 20;

/// The largest number of paths in a file, 24 bytes each: those of 1,000 relays in both directions,
/// and as many to prefixes.
pub const MAX_PATHS: usize = 2_000_000;

/// The longest round trip, in milliseconds: an hour.
const MAX_RTT_MS: f64 = 3_600_000.0;

/// An end of a path: a member, or hosts outside of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    /// A member of the mesh.
    Member(MemberName),
    /// A prefix; one address is a prefix of full length.
    Prefix(IpNet),
}

/// A text that is not a [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither the name of a member nor a prefix such as 203.0.113.0/24")]
pub struct EndpointError(String);

/// Measured paths between places.
#[derive(Clone, Debug, Default)]
pub struct Table {
    places: Vec<Endpoint>,
    ids: HashMap<Endpoint, u32>,
    members: usize,
    paths: HashMap<(u32, u32), Path>,
}

/// A fault in a file of round trips.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct TableError {
    /// The number of the line, from 1.
    pub line: usize,
    /// The mistake in it.
    pub fault: TableFault,
}

/// The mistake in a line.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum TableFault {
    /// Too few or too many words.
    #[error("it has {0} words; FROM TO RTT_MS [LOSS_PERCENT] [RATE_MBIT] are expected")]
    Words(usize),
    /// FROM or TO is malformed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// FROM and TO are the same.
    #[error("a path from {0} to itself needs no line")]
    Itself(Endpoint),
    /// The round trip is malformed.
    #[error("the round trip `{0}` is not a number of milliseconds from 0 to an hour")]
    Rtt(String),
    /// The loss is malformed.
    #[error("the loss `{0}` is not a percentage from 0 to 100")]
    Loss(String),
    /// The rate is malformed.
    #[error("the rate `{0}` is not a number of Mbit/s above 0")]
    Rate(String),
    /// The file names too many members.
    #[error("this is member {0}; at most {MAX_MEMBERS} are allowed")]
    Members(usize),
    /// The file has too many paths.
    #[error("more than {MAX_PATHS} paths")]
    Paths,
    /// The same path has a line already.
    #[error("the path from {0} to {1} has a line already")]
    Again(Endpoint, Endpoint),
}

// === impl Table ===

impl Table {
    /// Parses a file.
    ///
    /// # Errors
    /// [`TableError`], at the first faulty line.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let mut table = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            table.read(line).map_err(|fault| TableError {
                line: number + 1,
                fault,
            })?;
        }
        Ok(table)
    }

    fn read(&mut self, line: &str) -> Result<(), TableFault> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (from, to, rtt, rest) = match words[..] {
            [] => return Ok(()),
            [from, to, rtt, ref rest @ ..] if rest.len() <= 2 => (from, to, rtt, rest),
            _ => return Err(TableFault::Words(words.len())),
        };
        let (from, to): (Endpoint, Endpoint) = (from.parse()?, to.parse()?);
        if from == to {
            return Err(TableFault::Itself(from));
        }
        let rtt = number(rtt, |n| n <= MAX_RTT_MS).ok_or_else(|| TableFault::Rtt(rtt.into()))?;
        let loss = rest.first().map_or(Ok(0.0), |text| {
            number(text, |n| n <= 100.0).ok_or_else(|| TableFault::Loss((*text).into()))
        })?;
        let rate = rest
            .get(1)
            .map(|text| number(text, |n| n > 0.0).ok_or_else(|| TableFault::Rate((*text).into())));
        let rate = rate.transpose()?.map(|mbit| (mbit * 1e6) as u64);
        let path = Path::new(Duration::from_secs_f64(rtt / 1e3), loss / 100.0, rate);
        let key = (self.intern(&from), self.intern(&to));
        if self.members > MAX_MEMBERS {
            return Err(TableFault::Members(self.members));
        }
        if self.paths.len() == MAX_PATHS {
            return Err(TableFault::Paths);
        }
        match self.paths.insert(key, path) {
            Some(_) => Err(TableFault::Again(from, to)),
            None => Ok(()),
        }
    }

    fn intern(&mut self, place: &Endpoint) -> u32 {
        if let Some(&id) = self.ids.get(place) {
            return id;
        }
        let id = self.places.len() as u32;
        self.members += usize::from(matches!(place, Endpoint::Member(_)));
        self.places.push(place.clone());
        self.ids.insert(place.clone(), id);
        id
    }

    /// Returns every member that the file names, in the order of their first lines.
    pub fn members(&self) -> impl Iterator<Item = &MemberName> + Clone {
        self.places.iter().filter_map(|place| match place {
            Endpoint::Member(name) => Some(name),
            Endpoint::Prefix(_) => None,
        })
    }

    /// Returns a usable relay of each member that the file names, without a cloud and a price.
    pub fn relays(&self) -> impl Iterator<Item = Relay> {
        self.members().map(|name| Relay {
            name: name.clone(),
            cloud: None,
            price: None,
            usable: true,
        })
    }

    /// Returns every path between a member and a prefix, however it is written. A path that has a
    /// line in each direction comes twice.
    pub fn prefixes(&self) -> impl Iterator<Item = (IpNet, &MemberName, Path)> {
        self.paths.iter().filter_map(|(&(from, to), &path)| {
            match (&self.places[from as usize], &self.places[to as usize]) {
                (Endpoint::Member(member), Endpoint::Prefix(prefix))
                | (Endpoint::Prefix(prefix), Endpoint::Member(member)) => {
                    Some((*prefix, member, path))
                }
                _ => None,
            }
        })
    }

    /// Returns the path between two places; [`Path::UNKNOWN`] if the file has none.
    pub fn path(&self, from: &Endpoint, to: &Endpoint) -> Path {
        match (self.ids.get(from), self.ids.get(to)) {
            (Some(&from), Some(&to)) => self.between(from, to),
            _ => Path::UNKNOWN,
        }
    }

    fn between(&self, from: u32, to: u32) -> Path {
        let paths = [(from, to), (to, from)];
        let mut known = paths.iter().filter_map(|key| self.paths.get(key));
        known.next().copied().unwrap_or(Path::UNKNOWN)
    }

    /// Returns the network of these relays, with every path that the file has between them.
    pub fn network(&self, relays: Vec<Relay>) -> Network {
        let mut network = Network::new(relays);
        let names = network.ids().map(|id| (network.relay(id).name.clone(), id));
        let ids: HashMap<MemberName, RelayId> = names.collect();
        let known: Vec<(u32, RelayId)> = (0..)
            .zip(&self.places)
            .filter_map(|(place, name)| match name {
                Endpoint::Member(name) => Some((place, *ids.get(name.as_str())?)),
                Endpoint::Prefix(_) => None,
            })
            .collect();
        for &(from_place, from) in &known {
            for &(to_place, to) in known.iter().filter(|(_, to)| *to != from) {
                network.set(from, to, self.between(from_place, to_place));
            }
        }
        network
    }

    /// Returns the place of the file that a client or destination belongs to: the member of this
    /// name, or the longest prefix that contains it.
    pub fn locate(&self, end: &Endpoint) -> Option<Endpoint> {
        match end {
            Endpoint::Member(_) => self.ids.contains_key(end).then(|| end.clone()),
            Endpoint::Prefix(wanted) => self
                .places
                .iter()
                .filter_map(|place| match place {
                    Endpoint::Prefix(prefix) if prefix.contains(wanted) => Some(*prefix),
                    _ => None,
                })
                .max_by_key(IpNet::prefix_len)
                .map(Endpoint::Prefix),
        }
    }

    /// Returns the paths between two places of the file and every relay. From a member, sessions
    /// are at its relay already; to a member means to the machine of its relay.
    pub fn ends(&self, network: &Network, from: &Endpoint, to: &Endpoint) -> Ends {
        let to_paths = network.ids().map(|id| self.outward(network, id, to));
        let to_paths = to_paths.collect();
        let at = |place: &Endpoint| match place {
            Endpoint::Member(name) => network.find(name.as_str()),
            Endpoint::Prefix(_) => None,
        };
        match at(from) {
            Some(me) => Ends::at_relay(network, me, to_paths),
            None => Ends {
                from: network
                    .ids()
                    .map(|id| self.path(from, &Endpoint::Member(network.relay(id).name.clone())))
                    .collect(),
                to: to_paths,
                direct: self.path(from, to),
            },
        }
    }

    fn outward(&self, network: &Network, relay: RelayId, to: &Endpoint) -> Path {
        let relay = Endpoint::Member(network.relay(relay).name.clone());
        match relay == *to {
            true => Path::ZERO,
            false => self.path(&relay, to),
        }
    }
}

fn number(text: &str, is_valid: impl Fn(f64) -> bool) -> Option<f64> {
    let number: f64 = text.parse().ok()?;
    (number.is_finite() && number >= 0.0 && is_valid(number)).then_some(number)
}

// === impl Endpoint ===

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let error = || EndpointError(text.chars().take(64).collect());
        if text.contains('/') {
            let prefix: IpNet = text.parse().map_err(|_| error())?;
            return Ok(Self::Prefix(prefix.trunc()));
        }
        if let Ok(addr) = text.parse::<IpAddr>() {
            return Ok(Self::Prefix(IpNet::from(addr)));
        }
        text.parse().map(Self::Member).map_err(|_| error())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member(name) => name.fmt(f),
            Self::Prefix(prefix) => prefix.fmt(f),
        }
    }
}
