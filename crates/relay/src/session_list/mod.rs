//! Open sessions as an operator sees them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The number of a session in this process: its worker, its place there, and how often that place
/// has been used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalId {
    pub(crate) worker: usize,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// An open session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionRow {
    /// The session's number, for `taut relay end --session`.
    pub id: String,
    /// The session's identifier in the session logs of all relays of its route, if there is one
    /// yet.
    pub session: Option<String>,
    /// The forward's name; `mesh` for a session from another relay.
    pub forward: String,
    /// The client, as the first relay of the route saw it.
    pub client: SocketAddr,
    /// The address that the upstream leg is connected to.
    pub upstream: Option<SocketAddr>,
    /// The next relay of the route.
    pub peer: Option<String>,
    /// What the session does: `connecting`, `relaying`, `client_ended`, `upstream_ended`,
    /// `breaking` or `lingering`.
    pub state: String,
    /// Seconds since the client was accepted.
    pub age: f64,
    /// Bytes forwarded to the upstream leg.
    pub to_upstream: u64,
    /// Bytes forwarded to the client.
    pub to_client: u64,
}

/// Which sessions are meant. Every part that is set must match.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionFilter {
    pub(crate) id: Option<LocalId>,
    pub(crate) forward: Option<String>,
    pub(crate) peer: Option<String>,
    pub(crate) client: Option<IpNet>,
}

// === impl LocalId ===

impl fmt::Display for LocalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.worker, self.slot, self.generation)
    }
}

impl FromStr for LocalId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a session's number, such as 0-12-345");
        let mut parts = text.split('-');
        let mut next = || parts.next()?.parse::<u32>().ok();
        let (worker, slot, generation) = (next(), next(), next());
        let (Some(worker), Some(slot), Some(generation)) = (worker, slot, generation) else {
            return Err(wrong());
        };
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Self {
            worker: worker as usize,
            slot,
            generation,
        })
    }
}

// === impl SessionFilter ===

impl SessionFilter {
    /// Returns whether no part is set, so that every session matches.
    pub(crate) fn is_empty(&self) -> bool {
        let Self {
            id,
            forward,
            peer,
            client,
        } = self;
        id.is_none() && forward.is_none() && peer.is_none() && client.is_none()
    }

    pub(crate) fn matches(
        &self,
        id: LocalId,
        forward: &Arc<str>,
        peer: Option<&str>,
        client: IpAddr,
    ) -> bool {
        let client = client.to_canonical();
        self.id.is_none_or(|wanted| wanted == id)
            && self.forward.as_deref().is_none_or(|f| f == &**forward)
            && self.peer.as_deref().is_none_or(|p| Some(p) == peer)
            && self.client.is_none_or(|net| net.contains(&client))
    }
}

/// Parses a client prefix: a network or an address.
pub(crate) fn prefix(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse::<IpNet>()
        .or_else(|_| address())
        .map_err(|_| format!("`{text}` is not a prefix of clients, such as 192.0.2.0/24"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_back_as_it_was_written_and_other_texts_are_refused() {
        let id = LocalId {
            worker: 3,
            slot: 70_000,
            generation: 9,
        };
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in ["", "1-2", "1-2-3-4", "a-2-3", "1--3", "1-2-99999999999"] {
            assert!(bad.parse::<LocalId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn every_part_of_a_filter_must_match() {
        let id = LocalId {
            worker: 0,
            slot: 1,
            generation: 2,
        };
        let web: Arc<str> = "web".into();
        let client = "::ffff:192.0.2.7".parse().unwrap();
        let matches = |filter: &SessionFilter| filter.matches(id, &web, Some("fra1"), client);
        let mut filter = SessionFilter::default();
        assert!(filter.is_empty() && matches(&filter));
        filter.client = Some(prefix("192.0.2.0/24").unwrap());
        filter.forward = Some("web".into());
        filter.peer = Some("fra1".into());
        filter.id = Some(id);
        assert!(matches(&filter));
        for change in [
            |f: &mut SessionFilter| f.client = Some(prefix("192.0.2.8").unwrap()),
            |f: &mut SessionFilter| f.forward = Some("ssh".into()),
            |f: &mut SessionFilter| f.peer = Some("lon1".into()),
            |f: &mut SessionFilter| f.id = "0-1-3".parse().ok(),
        ] {
            let mut other = filter.clone();
            change(&mut other);
            assert!(!matches(&other), "{other:?}");
        }
    }
}
