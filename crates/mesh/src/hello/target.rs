//! The target of a connection: a host, by address or by name, and a port.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// The longest host name, in bytes (RFC 1035 2.3.4, without the length bytes of the wire form).
const MAX_HOST: usize = 253;

/// The longest label, the part between dots, in bytes (RFC 1035 2.3.4).
const MAX_LABEL: usize = 63;

/// A destination or a relay, `host:port`, where host is an address (IPv6 in brackets) or a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// An address.
    Addr(SocketAddr),
    /// A host name, which the connecting relay resolves.
    Name {
        /// A DNS name in ASCII, case-insensitive.
        host: String,
        /// The TCP port, not 0.
        port: u16,
    },
}

/// A rule that a target breaks. The message begins with the target, so that it can follow a subject
/// such as "the destination".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The port is missing or not a port number.
    #[error(
        "`{0}` does not end in a port: write host:port, such as example.org:443 or [2001:db8::1]:443"
    )]
    Port(String),
    /// The port is 0.
    #[error("`{0}` has port 0, which cannot be connected to")]
    PortZero(String),
    /// An IPv6 address has no brackets.
    #[error("`{0}` looks like an IPv6 address: put it in brackets, such as [2001:db8::1]:443")]
    Brackets(String),
    /// The host is neither an address nor a valid name.
    #[error(
        "`{0}` has no valid host: a name has at most {MAX_HOST} letters, digits, hyphens, underscores and dots, at most {MAX_LABEL} between dots, and its last part is not a number"
    )]
    Host(String),
    /// The unspecified address, for which Linux would connect to the relay itself.
    #[error("`{0}` is the unspecified address, which no machine has")]
    Unspecified(String),
    /// An address with a zone, which is valid on one machine only.
    #[error("`{0}` has a zone, which is valid on one machine only: use an address without a zone")]
    Zone(String),
}

impl Target {
    /// Returns the port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Addr(addr) => addr.port(),
            Self::Name { port, .. } => *port,
        }
    }

    /// Checks that the target could be connected to, without resolving it.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self) -> Result<(), TargetError> {
        let fault = match self {
            Self::Addr(addr) if addr.ip().to_canonical().is_unspecified() => {
                TargetError::Unspecified
            }
            Self::Addr(SocketAddr::V6(addr)) if addr.scope_id() != 0 => TargetError::Zone,
            Self::Name { host, .. } if !is_host_name(host) => TargetError::Host,
            _ if self.port() == 0 => TargetError::PortZero,
            _ => return Ok(()),
        };
        Err(fault(self.to_string()))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addr(addr) => write!(f, "{addr}"),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(s: &str) -> Result<Self, TargetError> {
        let target = match s.parse::<SocketAddr>() {
            // An IPv4-mapped address becomes IPv4; a zone is kept, for the check to report.
            Ok(addr) => match addr.ip().to_canonical() {
                ip if ip.is_ipv4() => Self::Addr((ip, addr.port()).into()),
                _ => Self::Addr(addr),
            },
            Err(_) => {
                let (host, port) = s
                    .rsplit_once(':')
                    .ok_or_else(|| TargetError::Port(s.into()))?;
                if host.contains(':') && !host.starts_with('[') {
                    return Err(TargetError::Brackets(s.into()));
                }
                // Rust would parse `+443`.
                if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(TargetError::Port(s.into()));
                }
                Self::Name {
                    host: host.to_owned(),
                    port: port.parse().map_err(|_| TargetError::Port(s.into()))?,
                }
            }
        };
        target.check().map(|()| target)
    }
}

/// Returns whether `host` consists of labels of letters, digits, hyphens and underscores (RFC 1123 2.1;
/// underscores are in use), with an optional trailing dot.
///
/// The last label must not be a number (RFC 3696 section 2): resolvers read `127.1` and `0x7f000001` as
/// addresses, which would bypass rules for addresses.
fn is_host_name(host: &str) -> bool {
    let labels = host.strip_suffix('.').unwrap_or(host);
    let is_label = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let last = labels.rsplit('.').next().unwrap_or_default();
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let is_number = last.bytes().all(|b| b.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    host.len() <= MAX_HOST && labels.split('.').all(is_label) && !is_number
}

/// Returns the bytes of a host name, truncated to one byte more than allowed.
pub(super) fn cut(host: &str) -> &[u8] {
    &host.as_bytes()[..host.len().min(MAX_HOST + 1)]
}

#[cfg(test)]
mod tests;
