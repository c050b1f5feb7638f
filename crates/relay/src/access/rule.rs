//! A rule of a list, as written in the configuration.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;

use super::name;

/// Destinations that a list allows or denies.
///
/// | written | means |
/// |---|---|
/// | `10.0.0.0/8:80`, `10.0.0.1:80` | a prefix, or one address |
/// | `[2001:db8::]/32:443`, `[2001:db8::/32]:443`, `2001:db8::/32:443` | the same in IPv6 |
/// | `example.org:443` | a name |
/// | `*.example.org:443` | every name below it, not the name itself |
/// | `*:443` | every public destination; in a list of denials, every destination |
///
/// The port may be a range, `80-90`, or `*` for all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The hosts.
    pub pattern: Pattern,
    /// The ports.
    pub ports: Ports,
}

/// The hosts that a [`Rule`] matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Addresses. No bit is set beyond the prefix, and the prefix is not IPv4-mapped.
    Prefix(IpNet),
    /// A name, in lower case and without a trailing dot.
    Name(String),
    /// Every name below this one, in the form of [`Pattern::Name`].
    Below(String),
    /// `*`: every host.
    Any,
}

/// A non-empty range of TCP ports. Never contains port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    first: u16,
    last: u16,
}

/// The reason why a text is not a valid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The text does not end in `:PORT`.
    #[error("`{0}` does not end in ports: write {0}:443, {0}:80-90, or {0}:* for all ports")]
    NoPorts(String),
    /// The part after the last colon is not a port, range or `*`.
    #[error("`{rule}`: `{ports}` is not a port from 1 to 65535, a range such as 80-90, or *")]
    Ports {
        /// The whole text.
        rule: String,
        /// The part that should be ports.
        ports: String,
    },
    /// An IPv6 address without brackets runs into its port.
    #[error("`{0}` looks like an IPv6 address: put it in brackets, such as [2001:db8::1]:443")]
    Brackets(String),
    /// The text before the ports is not a prefix.
    #[error("`{rule}`: `{prefix}` is not an address prefix such as 10.0.0.0/8 or [2001:db8::]/32")]
    Prefix {
        /// The whole text.
        rule: String,
        /// The part that should be a prefix.
        prefix: String,
    },
    /// The address has bits outside the prefix, so either the address or the length is wrong.
    #[error("`{written}` has bits set beyond its prefix: did you mean {meant}?")]
    HostBits {
        /// The prefix as written.
        written: String,
        /// The prefix without those bits.
        meant: IpNet,
    },
    /// The prefix is an IPv4-mapped one.
    #[error("`{0}` is IPv4 written as IPv6: write the IPv4 prefix, which matches every form")]
    Mapped(String),
    /// The host is neither a name nor `*` nor `*.name`.
    #[error(
        "`{rule}`: `{host}` is not an address, a name, `*`, or `*.` and a name \
         (names beyond ASCII are written as xn--)"
    )]
    Host {
        /// The whole text.
        rule: String,
        /// The part that should be a host.
        host: String,
    },
}

// === impl Rule ===

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let (host, ports) = text
            .rsplit_once(':')
            .filter(|(_, ports)| !ports.contains(['/', ']']))
            .ok_or_else(|| RuleError::NoPorts(text.into()))?;
        // In `2001:db8::1` and `2001:db8::1:443`, the last colon may or may not precede a port.
        if host.contains(':') && !host.contains(['[', '/']) {
            return Err(RuleError::Brackets(text.into()));
        }
        let ports = ports.parse().map_err(|()| RuleError::Ports {
            rule: text.into(),
            ports: ports.into(),
        })?;
        let pattern = pattern(text, host)?;
        Ok(Self { pattern, ports })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.pattern, self.ports)
    }
}

fn pattern(rule: &str, host: &str) -> Result<Pattern, RuleError> {
    if host == "*" {
        return Ok(Pattern::Any);
    }
    if host.contains(['/', '[', ']']) || host.parse::<IpAddr>().is_ok() {
        return prefix(rule, host).map(Pattern::Prefix);
    }
    let bad = || RuleError::Host {
        rule: rule.into(),
        host: host.into(),
    };
    let lower = |name: &str| name::host_name(name).map(str::to_ascii_lowercase);
    match host.strip_prefix("*.") {
        Some(parent) => lower(parent).map(Pattern::Below).ok_or_else(bad),
        None => lower(host).map(Pattern::Name).ok_or_else(bad),
    }
}

/// Parses an address or a prefix, with or without brackets. Error messages quote `whole`.
pub(super) fn prefix(whole: &str, text: &str) -> Result<IpNet, RuleError> {
    let bad = || RuleError::Prefix {
        rule: whole.into(),
        prefix: text.into(),
    };
    let plain = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        // `[2001:db8::]/32` and `[2001:db8::/32]`. Only IPv6 is written in brackets.
        Some((inner, rest)) if rest.is_empty() || rest.starts_with('/') => {
            let addr = inner.split('/').next().unwrap_or(inner);
            addr.parse::<Ipv6Addr>().map_err(|_| bad())?;
            format!("{inner}{rest}")
        }
        _ => text.to_owned(),
    };
    let net: IpNet = if plain.contains('/') {
        plain.parse().map_err(|_| bad())?
    } else {
        plain.parse::<IpAddr>().map_err(|_| bad())?.into()
    };
    if net.trunc() != net {
        return Err(RuleError::HostBits {
            written: plain,
            meant: net.trunc(),
        });
    }
    if let IpNet::V6(v6) = net
        && v6.prefix_len() >= 96
        && v6.addr().to_ipv4_mapped().is_some()
    {
        return Err(RuleError::Mapped(plain));
    }
    Ok(net)
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(net @ IpNet::V4(_)) if net.prefix_len() == 32 => {
                write!(f, "{}", net.addr())
            }
            Self::Prefix(net @ IpNet::V4(_)) => write!(f, "{net}"),
            Self::Prefix(net @ IpNet::V6(_)) if net.prefix_len() == 128 => {
                write!(f, "[{}]", net.addr())
            }
            Self::Prefix(net @ IpNet::V6(_)) => write!(f, "[{}]/{}", net.addr(), net.prefix_len()),
            Self::Name(name) => f.write_str(name),
            Self::Below(parent) => write!(f, "*.{parent}"),
            Self::Any => f.write_str("*"),
        }
    }
}

// === impl Ports ===

impl Ports {
    /// Every port.
    pub const ALL: Self = Self {
        first: 1,
        last: u16::MAX,
    };

    /// Returns whether `port` is in the range.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl FromStr for Ports {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "*" {
            return Ok(Self::ALL);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let [first, last] = [port(first)?, port(last)?];
        if first == 0 || first > last {
            return Err(());
        }
        Ok(Self { first, last })
    }
}

/// Parses a port of digits only: Rust's own parser accepts `+80`.
fn port(text: &str) -> Result<u16, ()> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(());
    }
    text.parse().map_err(|_| ())
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.last) {
            (1, u16::MAX) => f.write_str("*"),
            (first, last) if first == last => write!(f, "{first}"),
            (first, last) => write!(f, "{first}-{last}"),
        }
    }
}

#[cfg(test)]
mod tests;
