//! Which routes were asked for, by their destinations. Pure.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;

use super::message::{
    HEADER, Name, RT_TABLE_MAIN, RTA_DST, RTA_TABLE, V4, V6, attributes, find, number,
};

/// Routes that were asked for by one word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    text: String,
    destinations: Vec<IpNet>,
}

/// Destinations of routes that are looked at.
#[derive(Clone, Debug, Default)]
pub struct Destinations {
    nets: HashSet<IpNet>,
    /// Their first ones.
    addresses: HashSet<IpAddr>,
}

/// A word that names no destination.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChosenError {
    /// It is none.
    #[error("no destination of a route: write it as in default, 10.0.0.0/8 or 2001:db8::/32")]
    NoPrefix,
    /// It has bits that do not count.
    #[error("it has bits that its length does not count: did you mean {0}?")]
    Bits(IpNet),
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
    /// Whether this is one of them.
    pub fn takes(&self, name: &Name) -> bool {
        name.prefix()
            .is_some_and(|prefix| self.nets.contains(&prefix))
    }

    /// Whether there is one of IPv4 among them, and one of IPv6.
    pub fn families(&self) -> [bool; 2] {
        let has = |is: fn(&IpAddr) -> bool| self.addresses.iter().any(is);
        [has(IpAddr::is_ipv4), has(IpAddr::is_ipv6)]
    }

    /// Whether a list of these may miss one of them, because a route that this message is of came or went meanwhile.
    ///
    /// The kernel goes on with a list of IPv4 after the destination that it was at, in whatever table of that, and only there by a count; of IPv6 it goes on
    /// by a count of the whole table.
    pub fn miss(&self, message: &[u8]) -> bool {
        let Some((header, rest)) = message.split_first_chunk::<HEADER>() else {
            return true;
        };
        let Some(attributes) = attributes(rest) else {
            return true;
        };
        match header[0] {
            V4 => {
                let bytes = match find(&attributes, RTA_DST) {
                    None => Some([0; 4]),
                    Some(bytes) => bytes.try_into().ok(),
                };
                bytes.is_none_or(|bytes| self.addresses.contains(&IpAddr::from(bytes)))
            }
            V6 => {
                let table = find(&attributes, RTA_TABLE).and_then(number);
                let [_, has_any] = self.families();
                has_any && table.unwrap_or(header[4].into()) == RT_TABLE_MAIN
            }
            _ => false,
        }
    }
}

// === impl Chosen ===

impl Chosen {
    /// Which they are.
    pub fn destinations(&self) -> &[IpNet] {
        &self.destinations
    }

    /// Whether this is one of them.
    pub fn takes(&self, name: &Name) -> bool {
        name.prefix()
            .is_some_and(|prefix| self.destinations.contains(&prefix))
    }

    /// All default routes.
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

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Chosen {
    type Err = ChosenError;

    fn from_str(text: &str) -> Result<Self, ChosenError> {
        if text == "default" {
            return Ok(Self::defaults());
        }
        let address = |text: &str| text.parse::<IpAddr>().map(IpNet::from);
        let net: IpNet = text
            .parse()
            .or_else(|_| address(text))
            .map_err(|_| ChosenError::NoPrefix)?;
        match net == net.trunc() {
            true => Ok(Self {
                text: text.to_owned(),
                destinations: vec![net],
            }),
            false => Err(ChosenError::Bits(net.trunc())),
        }
    }
}

#[cfg(test)]
mod tests;
