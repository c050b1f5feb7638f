//! Where a session or the next relay is: a host, by address or by name, and a port.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// The longest host name, in bytes (RFC 1035 2.3.4, without the lengths of the wire form).
const MAX_HOST: usize = 253;

/// The longest part between dots, in bytes.
const MAX_LABEL: usize = 63;

/// A destination or a relay: `host:port`, host being an address (IPv6 in brackets) or a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// By address.
    Addr(SocketAddr),
    /// By a name, which the relay that connects looks up.
    Name {
        /// A DNS name in ASCII; upper and lower case mean the same.
        host: String,
        /// The TCP port, not 0.
        port: u16,
    },
}

/// Why a text or a value is no target. Begins with the culprit, so that it can end a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No port, or not a number that can be one.
    #[error(
        "`{0}` does not end in a port: write host:port, such as example.org:443 or [2001:db8::1]:443"
    )]
    Port(String),
    /// Port 0.
    #[error("`{0}` has port 0, to which nothing can connect")]
    PortZero(String),
    /// An IPv6 address without brackets.
    #[error("`{0}` looks like an IPv6 address: put it in brackets, such as [2001:db8::1]:443")]
    Brackets(String),
    /// Neither an address nor a name.
    #[error(
        "`{0}` has no host that could be looked up: a name is at most {MAX_HOST} letters, digits, hyphens, underscores and dots, at most {MAX_LABEL} between dots, and its last part is no number"
    )]
    Host(String),
    /// The address of no machine, by which Linux would connect to the relay itself.
    #[error("`{0}` is the unspecified address, which is no machine's")]
    Unspecified(String),
    /// An address that holds on one machine only.
    #[error("`{0}` has a zone, which means nothing on another machine: use an address without one")]
    Zone(String),
}

impl Target {
    /// Its port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Addr(addr) => addr.port(),
            Self::Name { port, .. } => *port,
        }
    }

    /// Whether one could connect to it, as far as that can be seen.
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
            // IPv4 in IPv6 form is IPv4; a zone is kept, to be named by the check.
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
                // `+443` is a number to Rust, and a mistake here.
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

/// Letters, digits, hyphens and underscores between dots (RFC 1123 2.1; underscores are in use),
/// perhaps with the dot of the root.
///
/// The last part is no number (RFC 3696 section 2): resolvers take `127.1` and `0x7f000001` for
/// addresses, which rules for addresses would not see coming.
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

/// The bytes of a host name, of one that is too long only as many as show it.
pub(super) fn cut(host: &str) -> &[u8] {
    &host.as_bytes()[..host.len().min(MAX_HOST + 1)]
}

#[cfg(test)]
mod tests;
