//! The routes that `--route` selects, by destination. Pure.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use taut_sys::route::{Family, MAIN_TABLE};

use super::message::{RouteKey, dump_position};

/// The routes that one `--route` selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    text: String,
    destinations: Vec<IpNet>,
}

/// The destinations of all selected routes.
#[derive(Clone, Debug, Default)]
pub struct Destinations {
    nets: HashSet<IpNet>,
    /// The first address of each destination.
    addresses: HashSet<IpAddr>,
}

/// Why a text is not a destination of a route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The text is neither a prefix nor an address.
    #[error("no destination of a route: write it as in default, 10.0.0.0/8 or 2001:db8::/32")]
    NoPrefix,
    /// The address has bits set beyond the prefix length.
    #[error("the address has bits set beyond its prefix length: did you mean {0}?")]
    HostBits(IpNet),
}

// === impl Selector ===

impl Selector {
    /// Returns the selected destinations.
    pub fn destinations(&self) -> &[IpNet] {
        &self.destinations
    }

    /// Whether this selects the route.
    pub fn selects(&self, route: &RouteKey) -> bool {
        route
            .prefix()
            .is_some_and(|prefix| self.destinations.contains(&prefix))
    }

    /// Selects all default routes.
    pub fn defaults() -> Self {
        Self {
            text: "default".to_owned(),
            destinations: vec![
                IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
                IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0),
            ],
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        if text == "default" {
            return Ok(Self::defaults());
        }
        let address = |text: &str| text.parse::<IpAddr>().map(IpNet::from);
        let net: IpNet = text
            .parse()
            .or_else(|_| address(text))
            .map_err(|_| SelectorError::NoPrefix)?;
        match net == net.trunc() {
            true => Ok(Self {
                text: text.to_owned(),
                destinations: vec![net],
            }),
            false => Err(SelectorError::HostBits(net.trunc())),
        }
    }
}

// === impl Destinations ===

impl FromIterator<IpNet> for Destinations {
    fn from_iter<T: IntoIterator<Item = IpNet>>(nets: T) -> Self {
        let nets: HashSet<IpNet> = nets.into_iter().collect();
        let addresses = nets.iter().map(IpNet::network).collect();
        Self { nets, addresses }
    }
}

impl Destinations {
    /// Whether the route has one of these destinations.
    pub fn contains(&self, route: &RouteKey) -> bool {
        route
            .prefix()
            .is_some_and(|prefix| self.nets.contains(&prefix))
    }

    /// Whether there are IPv4 destinations, and whether there are IPv6 destinations.
    pub fn families(&self) -> [bool; 2] {
        let has = |is: fn(&IpAddr) -> bool| self.addresses.iter().any(is);
        [has(IpAddr::is_ipv4), has(IpAddr::is_ipv6)]
    }

    /// Whether a list of these destinations may miss a route, because the route of `message` was
    /// added or removed while the list was read.
    ///
    /// The kernel continues an IPv4 dump after the last destination reached, and counts only the
    /// routes of that destination, in any table. It continues an IPv6 dump by counting the routes
    /// of the whole table.
    pub fn may_miss(&self, message: &[u8]) -> bool {
        let Some(position) = dump_position(message) else {
            return true;
        };
        match position.family {
            Some(Family::V4) => position
                .destination
                .is_none_or(|destination| self.addresses.contains(&destination)),
            Some(Family::V6) => {
                let [_, has_any] = self.families();
                has_any && position.table == u32::from(MAIN_TABLE)
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests;
