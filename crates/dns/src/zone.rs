//! The zone: its names and the records that do not depend on the client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::rdata::{A, AAAA, NS, SOA};
use hickory_proto::rr::{Name, RData, Record};
use rustc_hash::FxHashMap;

use crate::nearness::RelayId;

/// How long resolvers may keep the answer that a name or a record does not exist (the MINIMUM of RFC
/// 2308 section 5), in seconds.
pub const NEGATIVE_TTL: u32 = 60;

/// The TTL of SOA, NS and the addresses of name servers, in seconds.
pub const INFRASTRUCTURE_TTL: u32 = 3600;

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Type A.
    V4,
    /// Type AAAA.
    V6,
}

/// The names of the zone.
#[derive(Debug)]
pub struct Zone {
    origin: Name,
    soa: RData,
    name_servers: Vec<Name>,
    nodes: FxHashMap<Name, Node>,
}

/// The records at a name of the zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Nothing but names below it, or the zone's own records (an empty non-terminal, RFC 8020).
    Empty,
    /// A name server of the zone with its addresses.
    NameServer(Vec<IpAddr>),
    /// A name that leads to the nearest of these relays, in ascending order; empty: of all relays.
    Steered(Vec<RelayId>),
}

/// Where a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// Not in the zone.
    Outside,
    /// In the zone, which has no such name.
    Missing,
    /// In the zone.
    Here(&'a Node),
}

/// A name of the zone that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZoneError {
    /// The name is not in the zone.
    #[error("`{0}` is not in the zone `{1}`")]
    Outside(String, String),
    /// The name is used twice.
    #[error("`{0}` is listed twice")]
    Twice(String),
}

// === impl Zone ===

impl Zone {
    /// Returns a zone without steered names. `name_servers` have addresses if they are in the zone.
    ///
    /// # Errors
    /// [`ZoneError`] if a name server is listed twice, or has addresses and is not in the zone.
    pub fn new(
        origin: Name,
        contact: Name,
        serial: u32,
        name_servers: Vec<(Name, Vec<IpAddr>)>,
    ) -> Result<Self, ZoneError> {
        let primary = name_servers.first().map_or(&origin, |(name, _)| name);
        let soa = SOA::new(
            primary.clone(),
            contact,
            serial,
            7200,
            900,
            1_209_600,
            NEGATIVE_TTL,
        );
        let mut zone = Self {
            soa: RData::SOA(soa),
            name_servers: name_servers.iter().map(|(name, _)| name.clone()).collect(),
            nodes: FxHashMap::from_iter([(origin.clone(), Node::Empty)]),
            origin,
        };
        for (name, addresses) in name_servers {
            if !addresses.is_empty() {
                zone.add(name, Node::NameServer(addresses))?;
            }
        }
        Ok(zone)
    }

    /// Adds a name.
    ///
    /// # Errors
    /// [`ZoneError`].
    pub fn add(&mut self, name: Name, node: Node) -> Result<(), ZoneError> {
        if !self.origin.zone_of(&name) {
            return Err(ZoneError::Outside(
                name.to_string(),
                self.origin.to_string(),
            ));
        }
        // Names between the new one and the origin exist, too (RFC 8020 section 2).
        let mut between = name.base_name();
        while self.origin.zone_of(&between) {
            self.nodes.entry(between.clone()).or_insert(Node::Empty);
            if between == self.origin {
                break;
            }
            between = between.base_name();
        }
        let known = self.nodes.entry(name.clone()).or_insert(Node::Empty);
        if *known != Node::Empty {
            return Err(ZoneError::Twice(name.to_string()));
        }
        *known = node;
        Ok(())
    }

    /// Finds a name, without regard to case.
    pub fn find(&self, name: &Name) -> Found<'_> {
        if !self.origin.zone_of(name) {
            return Found::Outside;
        }
        self.nodes.get(name).map_or(Found::Missing, Found::Here)
    }

    /// Returns whether `name` is the zone's own.
    pub(crate) fn is_origin(&self, name: &Name) -> bool {
        self.origin == *name
    }

    /// Returns the SOA record. `below` is a name in the zone: the record's owner is written as it is
    /// there, so that it is compressed whatever the case of the query.
    pub(crate) fn soa(&self, below: &Name, ttl: u32) -> Record {
        let labels = self.origin.iter().count();
        Record::from_rdata(below.trim_to(labels), ttl, self.soa.clone())
    }

    /// Returns the NS records, with `owner` as the zone's name.
    pub(crate) fn name_servers(&self, owner: &Name) -> Vec<Record> {
        let record = |name: &Name| {
            let data = RData::NS(NS(name.clone()));
            Record::from_rdata(owner.clone(), INFRASTRUCTURE_TTL, data)
        };
        self.name_servers.iter().map(record).collect()
    }
}

/// Returns the record of an address.
pub(crate) fn address(owner: &Name, address: IpAddr, ttl: u32) -> Record {
    let data = match address {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    };
    Record::from_rdata(owner.clone(), ttl, data)
}

// === impl Family ===

impl Family {
    /// Returns the family of `address`.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Returns the address without any bit set.
    pub(crate) fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Self::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn zone() -> Zone {
        let servers = vec![
            (name("ns1.x.example."), vec![IpAddr::from([192, 0, 2, 53])]),
            (name("ns.other.example."), Vec::new()),
        ];
        Zone::new(name("x.example."), name("host.x.example."), 1, servers).unwrap()
    }

    #[test]
    fn names_above_a_name_of_the_zone_exist_and_others_do_not() {
        let mut zone = zone();
        zone.add(name("a.b.x.example."), Node::Steered(Vec::new()))
            .unwrap();
        assert_eq!(zone.find(&name("b.x.example.")), Found::Here(&Node::Empty));
        assert_eq!(zone.find(&name("X.Example.")), Found::Here(&Node::Empty));
        assert_eq!(zone.find(&name("c.x.example.")), Found::Missing);
        assert_eq!(zone.find(&name("c.a.b.x.example.")), Found::Missing);
        assert_eq!(zone.find(&name("example.")), Found::Outside);
        assert_eq!(zone.find(&name("yx.example.")), Found::Outside);
    }

    #[test]
    fn a_name_may_be_added_once_also_after_one_below_it() {
        let mut zone = zone();
        let steered = || Node::Steered(vec![1]);
        zone.add(name("a.b.x.example."), steered()).unwrap();
        zone.add(name("b.x.example."), steered()).unwrap();
        zone.add(name("x.example."), steered()).unwrap();
        assert!(matches!(
            zone.add(name("B.x.example."), steered()),
            Err(ZoneError::Twice(_))
        ));
        assert!(matches!(
            zone.add(name("ns1.x.example."), steered()),
            Err(ZoneError::Twice(_))
        ));
        assert!(matches!(
            zone.add(name("y.example."), steered()),
            Err(ZoneError::Outside(..))
        ));
    }
}
