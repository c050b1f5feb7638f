//! The server names of a forward's `sni`.

use std::str::FromStr;

use crate::access::host_name;
use crate::net::addr::Destination;

/// A server name that selects a destination.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerName {
    /// This name, in lower case.
    Exact(String),
    /// Every name below this one, which is in lower case; written as `*.NAME`.
    Below(String),
}

/// A server name and its destinations.
pub type Named = (ServerName, Vec<Destination>);

/// A text is not a server name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a server name: write a host name such as example.org, or *.example.org")]
pub struct ServerNameError(String);

impl FromStr for ServerName {
    type Err = ServerNameError;

    fn from_str(text: &str) -> Result<Self, ServerNameError> {
        let (name, make): (_, fn(String) -> Self) = match text.strip_prefix("*.") {
            Some(name) => (name, Self::Below),
            None => (text, Self::Exact),
        };
        match host_name(name) {
            Some(name) => Ok(make(name.to_ascii_lowercase())),
            None => Err(ServerNameError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_name_is_a_host_name_or_a_wildcard_before_one() {
        assert_eq!(
            "A.example.".parse(),
            Ok(ServerName::Exact("a.example".into()))
        );
        assert_eq!("*.Example".parse(), Ok(ServerName::Below("example".into())));
        for text in ["", "*", "*.", "a.*.b", "*a.b", "192.0.2.1", "a:443", "a b"] {
            assert!(text.parse::<ServerName>().is_err(), "{text}");
        }
    }
}
