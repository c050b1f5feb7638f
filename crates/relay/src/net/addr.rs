//! The addresses of a session. Each role has its own type, so that legs cannot be confused.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::str::FromStr;

use taut_mesh::hello::Target;

pub use taut_sys::listen::Listen;

/// The address a listener is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenAddr(pub SocketAddr);

/// The address a client connected from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddr(pub SocketAddr);

/// The address the upstream leg connects to: the destination or the next relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamAddr(pub SocketAddr);

/// A destination as written in the configuration: `host:port`, where the host is a name or an
/// address (IPv6 in brackets).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// A DNS name or the text of an IP address, without brackets.
    pub host: String,
    /// The TCP port, not 0.
    pub port: u16,
}

/// The reason why a text is not a valid address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddrError {
    /// The port is missing or not a port number.
    #[error(
        "`{0}` does not end in a port: write host:port, such as example.org:443 or [2001:db8::1]:443"
    )]
    Port(String),
    /// The port is 0, which nothing can connect to.
    #[error("`{0}` has port 0, to which nothing can connect")]
    PortZero(String),
    /// The host is missing.
    #[error("`{0}` names no host before its port")]
    Host(String),
    /// An IPv6 address without brackets runs into its port.
    #[error("`{0}` looks like an IPv6 address: put it in brackets, such as [2001:db8::1]:443")]
    Brackets(String),
}

/// Returns destinations as a text.
pub(crate) fn names_of(all: &[Destination]) -> String {
    let names: Vec<_> = all.iter().map(Destination::to_string).collect();
    names.join(", ")
}

// === impl Destination ===

impl FromStr for Destination {
    type Err = AddrError;

    fn from_str(s: &str) -> Result<Self, AddrError> {
        let (host, port) = s
            .rsplit_once(':')
            .ok_or_else(|| AddrError::Port(s.into()))?;
        let host = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            Some(inner) => {
                inner
                    .parse::<Ipv6Addr>()
                    .map_err(|_| AddrError::Host(s.into()))?;
                inner
            }
            None if host.contains(':') => return Err(AddrError::Brackets(s.into())),
            None => host,
        };
        if host.is_empty() || host.chars().any(char::is_whitespace) {
            return Err(AddrError::Host(s.into()));
        }
        match port.parse() {
            Ok(0) => Err(AddrError::PortZero(s.into())),
            Ok(port) => Ok(Self {
                host: host.to_owned(),
                port,
            }),
            Err(_) => Err(AddrError::Port(s.into())),
        }
    }
}

impl From<&Target> for Destination {
    fn from(target: &Target) -> Self {
        let host = match target {
            Target::Addr(addr) => addr.ip().to_string(),
            Target::Name { host, .. } => host.clone(),
        };
        Self {
            host,
            port: target.port(),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_a_name_or_an_address_with_a_port() {
        for (text, host, port) in [
            ("example.org:443", "example.org", 443),
            ("10.0.0.1:80", "10.0.0.1", 80),
            ("[2001:db8::1]:80", "2001:db8::1", 80),
        ] {
            let d: Destination = text.parse().unwrap();
            assert_eq!((d.host.as_str(), d.port), (host, port));
            assert_eq!(d.to_string(), text);
        }
    }

    #[test]
    fn a_bad_destination_says_what_is_wrong_with_it() {
        let error = |s: &str| s.parse::<Destination>().unwrap_err();
        assert_eq!(error("example.org"), AddrError::Port("example.org".into()));
        assert_eq!(
            error("example.org:http"),
            AddrError::Port("example.org:http".into())
        );
        assert_eq!(
            error("example.org:0"),
            AddrError::PortZero("example.org:0".into())
        );
        assert_eq!(error(":80"), AddrError::Host(":80".into()));
        assert_eq!(
            error("2001:db8::1:80"),
            AddrError::Brackets("2001:db8::1:80".into())
        );
        assert_eq!(
            error("[nonsense]:80"),
            AddrError::Host("[nonsense]:80".into())
        );
        assert_eq!(error("a b:80"), AddrError::Host("a b:80".into()));
    }
}
